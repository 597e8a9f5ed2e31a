"""Progress: what a running build shows, taken from published manifests on any engine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cachelib.canonical import seal
from cachelib.shard import read_manifest
from cachelib.storage import Storage
from pipelines.plan import Plan, shard_id

POLL_SECONDS = 0.5
"""How often a running wave is looked at."""

STATUS_SECONDS = 5.0
"""How often the status object is written, at most: stores limit writes to one object."""

LOOK_AHEAD = 32
"""Unfinished splits that are looked at each time."""


@dataclass(frozen=True)
class Progress:
    """How far a build is.

    Attributes:
        waves, wave: number of waves and the one running.
        bytes, total: bytes of text done and in all, about.
        rows, tokens, rejects: of finished parts.
        seconds: since the build began.
    """

    waves: int
    wave: int
    bytes: int
    total: int
    rows: int
    tokens: int
    rejects: int
    seconds: float

    def line(self) -> str:
        """One line for a terminal."""
        share = self.bytes / self.total if self.total else 1.0
        line = (
            f"wave {self.wave + 1}/{self.waves}  {share:4.0%}  "
            f"{self.bytes / 1e6:,.0f}/{self.total / 1e6:,.0f} MB  {self.rows:,} rows  "
            f"{self.tokens:,} tokens  {self.rejects:,} rejects"
        )
        if self.bytes == 0:
            return line
        rate = self.bytes / self.seconds
        return f"{line}  {rate / 1e6:.1f} MB/s  {(self.total - self.bytes) / rate:.0f} s left"


class Watcher:
    """Follows the waves of a plan by the manifests of their parts.

    Args:
        storage: of the cache.
        plan, name: the plan and its digest.
        show: called with each new state.
    """

    def __init__(
        self, storage: Storage, plan: Plan, name: str, show: Callable[[Progress], None]
    ) -> None:
        self._storage = storage
        self._plan = plan
        self._name = name
        self._show = show
        self._began = time.monotonic()
        self._told = -STATUS_SECONDS
        self._bytes = self._rows = self._tokens = self._rejects = 0
        self._parts: dict[int, int] = {}

    @contextmanager
    def wave(self, number: int) -> Iterator[None]:
        """Watch a wave in the background until the block ends."""
        done = threading.Event()
        open_splits = list(self._plan.wave(number))

        def watch() -> None:
            while not done.wait(POLL_SECONDS):
                self._look(number, open_splits)

        thread = threading.Thread(target=watch, name="forebay-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self._look(number, open_splits, everything=True)

    def _look(self, wave: int, open_splits: list[int], everything: bool = False) -> None:
        for split in open_splits[: None if everything else LOOK_AHEAD]:
            while self._count(split):
                if self._parts[split] < 0:
                    open_splits.remove(split)
                    break
        self._report(wave)

    def _count(self, split: int) -> bool:
        """Count the next part of a split if it is published; -1 parts mean that it was the last."""
        part = self._parts.get(split, 0)
        manifest = read_manifest(self._storage, shard_id(self._name, split, part))
        if manifest is None:
            return False
        last = manifest.task["next"] is None
        self._rows += manifest.rows
        self._tokens += manifest.elements.get("tokens", 0)
        self._rejects += sum(manifest.rejects.values())
        if last:
            self._bytes += self._plan.splits[split].size
        self._parts[split] = -1 if last else part + 1
        return True

    def _report(self, wave: int) -> None:
        seconds = time.monotonic() - self._began
        progress = Progress(
            waves=self._plan.wave_count,
            wave=wave,
            bytes=self._bytes,
            total=self._plan.size,
            rows=self._rows,
            tokens=self._tokens,
            rejects=self._rejects,
            seconds=seconds,
        )
        self._show(progress)
        if seconds - self._told >= STATUS_SECONDS:
            self._told = seconds
            self._storage.write(f"_status/{self._name}.json", seal(vars(progress)))


def terminal() -> Callable[[Progress], None]:
    """Shows progress on standard error: one line that is rewritten, or plain lines in a log."""
    live = sys.stderr.isatty()
    shown = [0.0]

    def show(progress: Progress) -> None:
        now = time.monotonic()
        if live:
            sys.stderr.write("\r\x1b[K" + progress.line())
        elif now - shown[0] > 10:
            shown[0] = now
            sys.stderr.write(progress.line() + "\n")
        sys.stderr.flush()

    return show
