"""How a command on an engine ends: by an error, which is said in words, or by a signal."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cachelib.errors import EngineError, ForebayError
from cachelib.words import legible
from pipelines.config import ConfigError
from pipelines.progress import Terminal

_STOPPED = "forebay: stopped. What is committed can be read; the same command goes on from here"

_GOES_ON = "What is committed stays; the same command goes on from here"

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def silence() -> None:
    """Let engines tell of errors only by those that they raise.

    Beam logs them as well, and lets threads of its own end with tracebacks of them.
    """
    logging.disable(logging.CRITICAL)
    threading.excepthook = lambda _: None


def failed(error: Exception, verbose: bool) -> int:
    """Say what ended a command; returns the exit status.

    Raises:
        Exception: the error itself, where it is the engine's and all is to be told.
    """
    if isinstance(error, ForebayError):
        print(f"forebay: {type(error).__name__}: {legible(str(error))}", file=sys.stderr)
        if isinstance(error, EngineError):
            print(_GOES_ON, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    if verbose:
        raise error
    print(
        f"forebay: the engine failed: {legible(_last_line(error))}\n"
        f"{_GOES_ON}. --verbose tells more",
        file=sys.stderr,
    )
    return 1


Handler = Callable[[int, object], None]


def stop_at_once(screen: Terminal) -> Handler:
    """Ends this process and its workers.

    A build needs no tidying up; Beam's takes long and complains, and waits for ever for worker
    processes that are about to start.
    """

    def stop(signum: int, frame: object) -> None:
        for child in descendants():
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        with suppress(OSError):  # the terminal may be what has gone
            screen.end()
            print(_STOPPED, file=sys.stderr, flush=True)
        os._exit(128 + signum)

    return stop


def descendants() -> list[int]:
    """Processes below this one, on Linux; elsewhere they end when they lose their connection."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for process in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def interrupt(signum: int, frame: object) -> None:
    """Lets Beam tell the engine."""
    raise KeyboardInterrupt(signum)


def stopped(stop: KeyboardInterrupt) -> int:
    """Say that a command was interrupted; returns the exit status."""
    print(_STOPPED, file=sys.stderr)
    return 128 + (stop.args[0] if stop.args else signal.SIGINT)


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Handles the signals that stop a build, but for those that are ignored, as nohup does."""
    heard = [number for number in _STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _last_line(error: Exception) -> str:
    """What an engine's error says in the end: Beam puts whole tracebacks into its messages."""
    details = getattr(error, "details", None)  # of gRPC, whose messages end with a bracket
    said = details() if callable(details) else str(error)
    lines = [line.strip() for line in str(said).splitlines() if re.search(r"\w", line)]
    return lines[-1] if lines else type(error).__name__
