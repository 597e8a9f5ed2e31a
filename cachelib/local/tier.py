"""Tier: what of one or several caches is kept on this machine, for one process that reads them."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cachelib import words
from cachelib.errors import CorruptData, ForebayError, StorageError
from cachelib.latest import Latest
from cachelib.local.entry import FORMS, Form, name_of
from cachelib.local.folder import Entry, Folder

DOWNLOADS = 4
"""Objects that one process downloads at the same time, beside what it reads."""

MAPS = 16_384
"""Entries that one process keeps mapped; systems let it map some 65,000."""


FULL_SECONDS = 1.0
"""For how long nothing is asked for once there was no room."""


@dataclass(frozen=True)
class Counts:
    """What one process has had of its tier.

    Attributes:
        hits: objects of which something was read from here.
        misses: objects of which something was read from where the cache lies.
        downloaded: objects kept, and bytes of them as they are kept.
        downloaded_bytes: likewise.
        damaged: entries that were found damaged, and fetched again.
        evicted: entries that made room for others.
    """

    hits: int = 0
    misses: int = 0
    downloaded: int = 0
    downloaded_bytes: int = 0
    damaged: int = 0
    evicted: int = 0


class Wanted(NamedTuple):
    """An object that may be kept.

    Attributes:
        path: of its entry.
        size: bytes of its body, at most.
        checks: as `Folder.open` takes it.
        made: gives body and checks, from where the cache lies.
    """

    path: str
    size: int
    checks: int | None
    made: Callable[[], tuple[bytes | bytearray, np.ndarray]]


class Tier:
    """A folder on this machine in which objects of caches are kept for reads to come.

    What is not there is read from where the cache lies, as without a tier, and downloaded beside
    that, as a whole: no read waits for a download. Thread-safe; picklable (counts begin anew).

    Args:
        folder: its path; made if it is missing. Any number of processes, caches and users share it.
        form: "encoded" keeps objects as they are stored, "raw" the values that they decode to,
            which are then mapped into memory instead of being decoded at each read.
        limit: of the bytes kept in the folder; None leaves a tenth of the disk free.

    Attributes:
        folder, form, limit: those; the folder as an absolute path.
    """

    def __init__(
        self, folder: str | os.PathLike[str], form: Form = "encoded", limit: int | None = None
    ) -> None:
        if not isinstance(folder, (str, os.PathLike)) or "://" in os.fspath(folder):
            raise ValueError(f"local must be the path of a folder on this machine, got {folder!r}")
        if form not in FORMS:
            raise ValueError(f"local_format must be one of {', '.join(FORMS)}, got {form!r}")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise TypeError(f"local_bytes must be a number of bytes or None, got {limit!r}")
        if limit is not None and limit < 0:
            raise ValueError(f"local_bytes must be 0 or more, got {limit}")
        self.folder = str(Path(folder).expanduser().resolve())
        self.form: Form = form
        self.limit = limit
        self._files = Folder(self.folder, limit)
        self._lock = threading.Lock()
        self._counted = dict.fromkeys((f.name for f in fields(Counts)), 0)
        self._asked: dict[str, Future[None]] = {}
        self._refused: set[str] = set()
        self._elsewhere = 0
        self._full_until = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Tier, (self.folder, self.form, self.limit)

    def __repr__(self) -> str:
        c = self.counts
        return (
            f"Tier({self.folder!r}, {self.form!r}: {c.hits:,} hits, {c.misses:,} misses, "
            f"{words.counted(c.downloaded, 'object')} of {words.size(c.downloaded_bytes)} "
            f"downloaded, {c.damaged:,} damaged, {c.evicted:,} evicted)"
        )

    @property
    def counts(self) -> Counts:
        """What this process has had of it so far."""
        return Counts(**{**self._counted, "evicted": self._files.evicted})

    def wait(self) -> None:
        """Wait until what was asked for so far is downloaded or given up."""
        while True:
            with self._lock:
                asked = list(self._asked.values())
            if not asked:
                return
            wait(asked)

    def path(self, what: str) -> str:
        """The file of the entry for an object, given what `name_of` takes."""
        return os.path.join(self.folder, name_of(what, self.form))

    def find(self, paths: Sequence[str]) -> list[Entry | None]:
        """The entries of files that this process has opened before, and still knows."""
        found = _entries().find(paths)
        now = time.monotonic()
        for entry in found.values():
            if now >= entry.due and not self._files.touch(entry):
                _entries().forget(entry.path)  # its space is free once it is mapped no more
        return [found.get(path) for path in paths]

    def obtain(self, wanted: Wanted) -> Entry | None:
        """The entry of an object, if it is there; else it is downloaded beside other work."""
        entry = self._opened(wanted)
        if entry is None:
            self._ask(wanted)
        return entry

    def give_up(self, path: str, damaged: bool) -> None:
        """Know no more of an entry, and remove it if it has turned out to be damaged."""
        _entries().forget(path)
        if damaged and self._files.drop(os.path.basename(path)):
            self._count("damaged")

    def read_elsewhere(self, size: int) -> None:
        """Say that so many bytes of values were read from where the cache lies.

        Where entries must go for others, no more is downloaded than was read so: if the folder is
        much smaller than what is read, in no order, an entry is hardly read again before it goes.
        """
        with self._lock:
            self._elsewhere += size

    def _opened(self, wanted: Wanted) -> Entry | None:
        try:
            entry = self._files.open(os.path.basename(wanted.path), wanted.checks)
        except CorruptData:
            self.give_up(wanted.path, damaged=True)
            return None
        if entry is not None:
            _entries().keep([(wanted.path, entry)])
        return entry

    def _ask(self, wanted: Wanted) -> None:
        """Let an object be downloaded, unless that is under way or is not worth trying."""
        path = wanted.path
        with self._lock:
            if path in self._asked or path in self._refused or not self._files.takes:
                return
            if time.monotonic() < self._full_until:
                return
            with suppress(RuntimeError):  # Python is ending and starts nothing more
                self._asked[path] = _threads().submit(self._download, wanted)

    def _download(self, wanted: Wanted) -> None:
        name = os.path.basename(wanted.path)
        try:
            if not threading.main_thread().is_alive():
                return  # Python is ending and waits for its threads
            if self._opened(wanted) is None and self._may_take(wanted.size):
                body, checks = wanted.made()
                if self._files.put(name, body, checks):
                    self._count("downloaded")
                    self._count("downloaded_bytes", len(body))
                elif self._files.has(name):  # another user's, that cannot be read or replaced
                    self._refused.add(wanted.path)
        except StorageError:
            pass  # it is asked for again; who reads is told
        except ForebayError:
            self._refused.add(wanted.path)  # damaged where the cache lies, or gone
        finally:
            with self._lock:
                self._asked.pop(wanted.path, None)

    def _may_take(self, size: int) -> bool:
        """Whether an entry of so many bytes may be downloaded now."""
        room = self._files.room(size)
        with self._lock:
            if room == "free" or (room == "evicting" and self._elsewhere >= size):
                self._elsewhere -= size if room == "evicting" else 0
                return True
            self._full_until = time.monotonic() + FULL_SECONDS
            return False

    def count(self, hits: int, misses: int) -> None:
        """Say from where objects were read, as `Counts` has it."""
        with self._lock:
            self._counted["hits"] += hits
            self._counted["misses"] += misses

    def _count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self._counted[name] += more


def _most_maps() -> int:
    """Entries that this process may keep mapped."""
    if sys.version_info >= (3, 13):
        return MAPS
    import resource  # before, each map holds an open file, of which the system gives so many

    return min(MAPS, max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


@functools.cache
def _entries() -> Latest[str, Entry]:
    """The entries used last by all readers of this process, by path."""
    return Latest(_most_maps())


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads that download for all readers of this process."""
    return ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="forebay-download")
