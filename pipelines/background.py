"""Background: a build in a process of its own, which ends with the one that started it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from typing import IO, Any, NoReturn

from cachelib.errors import BuildFailed, ForebayError

PARENT_SECONDS = 1.0
"""How often a build looks whether the process that started it is still there."""

LOOK_SECONDS = 0.2
"""How often it is looked whether a build has come somewhere."""

PRINTED = 2000
"""Characters of what a build has printed that are shown where it ended without an error."""

_PROGRAM = "from pipelines.background import run; run()"


class Build:
    """A build that was started.

    Args:
        values: its keys, as of `pipelines.build`; JSON.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._told: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=self._told,
            stderr=self._printed,
            env={**os.environ, "PYTHONPATH": path},
        )
        weakref.finalize(self, self._process.poll)
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.write(json.dumps([os.getpid(), dict(values)], default=os.fspath).encode())

    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def check(self) -> None:
        """See that the build goes on, or has ended well.

        Raises:
            BuildFailed: it has not; says by which error, or what it printed at last.
        """
        status = self._process.poll()
        if status is None or status == 0:
            return
        last = _text(self._told) or _text(self._printed)[-PRINTED:] or "it printed nothing"
        raise BuildFailed(f"the build in the background ended with status {status}: {last}")

    def until(self, done: Callable[[], bool]) -> None:
        """Wait for what the build does, or for its end.

        Raises:
            BuildFailed: as of `check`.
        """
        while not done() and self.runs():
            time.sleep(LOOK_SECONDS)
        self.check()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace").strip()


def run() -> None:
    """What the process does: a build as told on standard input; its error goes to standard output.

    Nothing else does: what is printed by the engine, or by a function of the user's, is no error.
    """
    told = os.dup(1)
    os.dup2(2, 1)
    parent, values = json.loads(sys.stdin.read())
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        from pipelines.launcher import build

        build(**values)
    except ForebayError as error:
        _end(told, f"{type(error).__name__}: {error}")
    except BaseException:
        _end(told, traceback.format_exc())
    os._exit(0)  # taking down Beam takes long, and all that counts is stored


def _end(told: int, text: str) -> NoReturn:
    with open(told, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    os._exit(1)


def _end_with(parent: int) -> None:
    """End this process once the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)
