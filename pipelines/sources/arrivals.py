"""Arrivals: which files have newly come to stay, look by look.

A file is given out once it has not changed for a settle time, and again when it has changed since.
Who renames files into place, or writes objects to a store that shows them whole, needs none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from cachelib.errors import SourceError
from pipelines.sources import files
from pipelines.sources.discover import File, clashes, files_of
from pipelines.sources.inspect import told_stamp


@dataclass(frozen=True)
class Look:
    """What one look at the inputs found.

    Attributes:
        settled: files that are new or changed and have settled, sorted; each has a stamp.
        vanished: names of files that went before they had settled.
        unusable: (name, fault) of what is new and cannot be used as it lies there: files that
            cannot be told from others by name, folders that cannot be listed, links to nothing.
        waiting: how many files have not settled yet.
        nothing: why an input matches nothing, for each that does.
    """

    settled: tuple[File, ...]
    vanished: tuple[str, ...]
    unusable: tuple[tuple[str, str], ...]
    waiting: int
    nothing: tuple[str, ...]


@dataclass(frozen=True)
class _Waiting:
    file: File
    since: float


class Arrivals:
    """Looks at inputs again and again.

    Args:
        inputs: as of `discover`.
        any_suffix: as of `files_of`.
        settle_seconds: for how long a file must not have changed before it is given out.
        leave_out: which files are none of the sources.
        clock: seconds, of which only differences count.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        *,
        any_suffix: bool,
        settle_seconds: float,
        leave_out: Callable[[File], bool] = lambda file: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if settle_seconds < 0:
            raise ValueError(f"settle_seconds must not be negative, got {settle_seconds}")
        self._inputs = tuple(inputs)
        self._any_suffix = any_suffix
        self._settle = settle_seconds
        self._leave_out = leave_out
        self._clock = clock
        self._given: dict[str, File] = {}  # by URL
        self._waiting: dict[str, _Waiting] = {}
        self._unusable: frozenset[tuple[str, str]] = frozenset()  # (URL, fault)

    def look(self) -> Look:
        """What has come, settled or gone since the last look.

        Raises:
            SourceError: an input cannot be listed.
        """
        there, useless, nothing = self._list()
        faults = useless | dict(clashes(sorted(there)))
        present = {file.url: file for file in there if file not in faults}
        vanished = [w.file.name for url, w in self._waiting.items() if url not in present]
        unusable = [
            (file.name, why)
            for file, why in faults.items()
            if (file.url, why) not in self._unusable
        ]
        self._unusable = frozenset((file.url, why) for file, why in faults.items())
        self._given = {url: file for url, file in self._given.items() if url in present}
        new = [file for file in present.values() if not self._is_given(file)]
        waiting = {file.url: self._wait(file) for file in new}
        settled = {url: w.file for url, w in waiting.items() if self._has_settled(w)}
        self._given |= settled
        self._waiting = {url: w for url, w in waiting.items() if url not in settled}
        return Look(
            settled=tuple(sorted(settled.values())),
            vanished=tuple(sorted(vanished)),
            unusable=tuple(sorted(unusable)),
            waiting=len(self._waiting),
            nothing=nothing,
        )

    def forget(self, names: Iterable[str]) -> None:
        """Take files for new: they changed between being given out and being read."""
        gone = set(names)
        self._given = {url: file for url, file in self._given.items() if file.name not in gone}

    def find(self, name: str) -> File | None:
        """The file of a name as it is now, None where it has gone.

        Raises:
            SourceError: an input cannot be listed.
        """
        return next((file for file in self._list()[0] if file.name == name), None)

    def _is_given(self, file: File) -> bool:
        before = self._given.get(file.url)
        return before is not None and before.stamp == file.stamp

    def _list(self) -> tuple[list[File], dict[File, str], tuple[str, ...]]:
        """The files that are there, those that cannot be used, and the inputs of nothing."""
        found: set[File] = set()
        useless: dict[File, str] = {}
        nothing = []
        for given in self._inputs:
            try:
                there = files_of(given, any_suffix=self._any_suffix)
            except SourceError as error:
                if error.__cause__ is not None:
                    raise  # it may be there
                nothing.append(str(error))
                continue
            found.update(there.files)
            useless |= {file: why for file, why in there.faults if not self._leave_out(file)}
        stamped = (_stamped(file) for file in found if not self._leave_out(file))
        return [file for file in stamped if file is not None], useless, tuple(nothing)

    def _wait(self, file: File) -> _Waiting:
        before = self._waiting.get(file.url)
        if before is not None and before.file.stamp == file.stamp:
            return before
        return _Waiting(file, self._clock())

    def _has_settled(self, waiting: _Waiting) -> bool:
        if (
            waiting.file.url.startswith(files.STORES)
            or self._clock() - waiting.since >= self._settle
        ):
            return True
        written = _written(waiting.file.url)
        return written is not None and time.time() - written >= self._settle


def _stamped(file: File) -> File | None:
    """A local file with its stamp, None where it has gone; remote ones have theirs."""
    if not files.is_local(file.url):
        return file
    stamp = stamp_of(file.url)
    return None if stamp is None else replace(file, stamp=stamp)


def stamp_of(url: str) -> str | None:
    """The stamp of a file as it is now, None where it has gone; "" where that is not told.

    Raises:
        SourceError: its store cannot be asked now.
    """
    if url.startswith(files.HTTP):
        return ""
    if files.is_local(url):
        with suppress(OSError):
            found = os.stat(files.local_path(url))
            return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}"
        return None
    with files.naming(url):
        store, path = files.filesystem(url)
        try:
            return told_stamp(store.info(path))
        except FileNotFoundError:
            return None
        except PermissionError:
            return ""


def became(url: str, stamp: str) -> str | None:
    """Why a file that had a stamp cannot be read, but for what is in it: it has "vanished" or
    "changed", or its store is "unreached". Else None.
    """
    try:
        now = stamp_of(url)
    except SourceError:
        return "unreached"
    if now is None:
        return "vanished"
    return "changed" if now != stamp and now and stamp else None


def _written(url: str) -> float | None:
    """When a local file was last written, in seconds since the epoch; None for a remote one."""
    with suppress(OSError):
        return os.stat(files.local_path(url)).st_mtime if files.is_local(url) else None
    return None
