"""Watches that run in a thread while a test changes what they look at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.config import growing_config
from pipelines.tally import Tally
from pipelines.watching import watch


class Running:
    """A watch in a thread, and what it told."""

    def __init__(self, folder: str | Path, tokenizer: str, to: str | Path, **more: Any) -> None:
        self.lines: list[str] = []
        self.stopped = threading.Event()
        self.seen: Tally | None = None
        self.error: Exception | None = None
        values = {"every": 0.05, "settle": 0.0, "inputs": [str(folder)], "to": str(to), **more}
        self.configs = growing_config({"tokenizer": tokenizer, **values})
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.seen = watch(*self.configs, stopped=self.stopped, tell=self.lines.append)
        except Exception as error:
            self.error = error

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.lines
            assert self.thread.is_alive(), self.lines
            time.sleep(0.02)

    def told(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def end(self) -> Tally:
        self.stopped.set()
        self.thread.join(60)
        assert self.seen is not None, self.lines
        return self.seen
