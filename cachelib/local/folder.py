"""Folder: entries on this machine's disk, shared by all processes and users that may reach it.

There is no lock and no index: an entry is there once its file has its name, files are never
changed under a name, and what is damaged by a crash proves itself damaged. So nothing waits for
anybody, and whoever is killed leaves at most an unfinished file, which others remove.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from cachelib.errors import CorruptData
from cachelib.local.entry import Tail, is_entry, is_part, read_tail, tail_bytes, tail_of
from cachelib.local.eviction import Held, leaving

TOUCH_SECONDS = 60.0
"""How often the time of last use of an entry is written by one process, at most."""

SPARED_SECONDS = 600.0
"""Entries used within this time are not evicted for others to come."""

LEFT_SECONDS = 3600.0
"""Age of unfinished files from which they are taken for left behind."""

PAUSE_SECONDS = 60.0
"""For how long nothing is written after a write has failed, as on a full disk."""

FREE_SHARE = 10
"""One part in this many of the disk stays free where no bound is given."""

_NO_RIGHT = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

Room = Literal["free", "evicting", "none"]


@dataclass(eq=False)
class Entry:
    """An entry that was found whole.

    Attributes:
        path: of its file.
        view: its body, mapped, where that was asked for; it stays valid when the file is gone.
        checks: as of `Tail`.
        unseen: blocks of the body whose check is still to be made, 1 each; None where none is left.
        due: when its use is to be written down, by the monotonic clock.
    """

    path: str
    view: memoryview
    checks: np.ndarray
    unseen: bytearray | None
    due: float


class _Look(NamedTuple):
    """What lies in a folder.

    Attributes:
        held: the entries that may be removed.
        total: bytes of all entries, and of unfinished ones.
        limit: that bytes are to stay within.
        at, seconds: when it was looked at, and how long that took.
    """

    held: Sequence[Held]
    total: int
    limit: int
    at: float
    seconds: float

    def with_one(self, entry: Held) -> _Look:
        return self._replace(held=[*self.held, entry], total=self.total + entry.size)

    def without(self, gone: set[str], unheld: set[str]) -> _Look:
        """Without entries that are gone, and without others that are to be left alone."""
        freed = sum(entry.size for entry in self.held if entry.name in gone)
        held = [entry for entry in self.held if entry.name not in unheld]
        return self._replace(held=held, total=self.total - freed)


class Folder:
    """A folder of entries. Thread-safe. Nothing here raises because of the folder's state.

    Args:
        path: absolute; made if it is missing.
        limit: of the bytes of all entries in it; None leaves a tenth of the disk free.
    """

    def __init__(self, path: str, limit: int | None) -> None:
        self.path = path
        self.limit = limit
        self.evicted = 0
        self._lock = threading.Lock()
        self._look: _Look | None = None
        self._stuck: set[str] = set()  # entries that only others may remove
        self._closed_until = 0.0
        self._told = False
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            self._refuse(error)

    @property
    def takes(self) -> bool:
        """Whether entries can be put there, as far as is known."""
        return time.monotonic() >= self._closed_until

    def open(self, name: str, checks: int | None) -> Entry | None:
        """An entry, if it is there and may be read.

        Args:
            checks: the checks that it has, and its body is mapped; None for an entry without.

        Raises:
            CorruptData: the file is no whole entry of that name.
        """
        path = os.path.join(self.path, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            length = min(tail_bytes(checks or 0), status.st_size)
            end = os.pread(descriptor, length, status.st_size - length)
            tail = read_tail(name, end, status.st_size)
            if len(tail.checks) != (checks or 0):
                raise CorruptData(f"{name} has {len(tail.checks)} checks, expected {checks or 0}")
            view = memoryview(b"") if checks is None else _mapped(descriptor, tail.size)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        # What was used by another process lately need not be written down at once.
        unseen = bytearray(b"\x01") * len(tail.checks) if len(tail.checks) else None
        entry = Entry(path, view, tail.checks, unseen, 0.0)
        self.touch(entry, status.st_mtime)
        return entry

    def touch(self, entry: Entry, known: float = 0.0) -> bool:
        """Write down that an entry is used; False where it is not there any more.

        Args:
            known: when it was used as far as is written, in seconds since the epoch.
        """
        entry.due = time.monotonic() + TOUCH_SECONDS
        if time.time() - known < TOUCH_SECONDS:
            return True
        try:
            os.utime(entry.path)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # that of another user, or a folder that can only be read
        return True

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return os.path.lexists(os.path.join(self.path, name))

    def drop(self, name: str) -> bool:
        """Remove an entry, if that is allowed; False where it is not there any more."""
        try:
            os.unlink(os.path.join(self.path, name))
        except FileNotFoundError:
            return False
        except OSError:
            pass  # that of another user
        return True

    def room(self, size: int) -> Room:
        """Whether an entry of so many bytes fits, as things are or once others are evicted."""
        if not self.takes:
            return "none"
        with self._lock:
            look = self._looked()
            excess = look.total + size - look.limit
            if excess <= 0:
                return "free"
            goes = leaving(look.held, excess, time.time() - SPARED_SECONDS)
            return "none" if goes is None or size > look.limit else "evicting"

    def put(self, name: str, body: bytes | bytearray, checks: np.ndarray) -> bool:
        """Keep an entry, evicting others where that is needed; False where it cannot be kept."""
        tail = tail_of(name, Tail(len(body), checks))
        size = len(body) + len(tail)
        with self._lock:
            spared = time.time() - SPARED_SECONDS
            if not self._make_room(self._looked(), size, spared):
                return False
        try:
            if not self._write(name, body, tail):
                return False
        except OSError as error:
            self._refuse(error)
            return False
        with self._lock:
            look = self._looked().with_one(Held(name, size, time.time()))
            if 10 * look.total > 9 * look.limit:
                # Others may have put some at the same time: whoever is last sees all of them.
                look = self._scan()
                self._make_room(look, 0)
            else:
                self._look = look
        return True

    def _write(self, name: str, body: bytes | bytearray, tail: bytes) -> bool:
        """Write a file; False where something of that name is in its way that cannot be replaced.

        Others may read it as far as this process's umask lets them. It is not flushed to the disk:
        what a power cut leaves of it is found out by its end and its checks.
        """
        path = os.path.join(self.path, name)
        part = f"{path}.{os.urandom(8).hex()}.part"
        os.makedirs(self.path, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o666)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                for data in (body, tail):
                    rest = memoryview(data)
                    while rest:
                        rest = rest[file.write(rest) or 0 :]
            try:
                os.replace(part, path)
            except OSError:
                if not os.path.lexists(path):
                    raise
                return False
            return True
        finally:
            with suppress(OSError):
                os.unlink(part)

    def _make_room(self, look: _Look, size: int, spared: float = float("inf")) -> bool:
        """Evict until so many bytes more fit; False where they cannot."""
        if size > look.limit:
            return False
        while look.total + size > look.limit:
            goes = leaving(look.held, look.total + size - look.limit, spared)
            if goes is None:
                self._look = look
                return False
            look = look.without(self._evicted(goes), {entry.name for entry in goes})
        self._look = look
        return True

    def _evicted(self, goes: Sequence[Held]) -> set[str]:
        """Remove entries; the names of those that are gone, all but those that only others may
        remove."""
        gone = set()
        for entry in goes:
            try:
                os.unlink(os.path.join(self.path, entry.name))
                self.evicted += 1
            except FileNotFoundError:
                pass
            except OSError:
                self._stuck.add(entry.name)
                continue
            gone.add(entry.name)
        return gone

    def _looked(self) -> _Look:
        """What lies there; looked at anew unless that would be most of what is done here."""
        look = self._look
        if look is None or time.monotonic() - look.at > 10 * look.seconds:
            look = self._look = self._scan()
            if look.total > look.limit:  # it was filled under another bound
                self._make_room(look, 0)
        return self._look or look

    def _scan(self) -> _Look:
        began = time.monotonic()
        held: list[Held] = []
        total = 0
        for name, status in self._own_files():
            used = max(status.st_mtime, status.st_atime)
            if is_entry(name):
                if name not in self._stuck:
                    held.append(Held(name, status.st_size, used))
            elif time.time() - status.st_mtime > LEFT_SECONDS:
                self.drop(name)
                continue
            total += status.st_size
        limit = self.limit
        if limit is None:
            try:
                disk = shutil.disk_usage(self.path)
                limit = max(0, total + disk.free - disk.total // FREE_SHARE)
            except OSError:
                limit = 0
        ended = time.monotonic()
        return _Look(held, total, limit, ended, ended - began)

    def _own_files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Entries and unfinished ones: regular files of such names, and nothing else."""
        try:
            with os.scandir(self.path) as found:
                for file in found:
                    if is_entry(file.name) or is_part(file.name):
                        with suppress(OSError):  # it is gone
                            status = file.stat(follow_symlinks=False)
                            if stat.S_ISREG(status.st_mode):
                                yield file.name, status
        except OSError:
            return

    def _refuse(self, error: OSError) -> None:
        """Put nothing there for a while, or never again, and say so once."""
        never = error.errno in _NO_RIGHT
        self._closed_until = float("inf") if never else time.monotonic() + PAUSE_SECONDS
        if not self._told:
            self._told = True
            warnings.warn(
                f"nothing is kept in {self.path}{'' if never else ' for now'}: "
                f"{error.strerror or error}. What is not there is read from where the cache lies",
                stacklevel=2,
            )


def _mapped(descriptor: int, size: int) -> memoryview:
    """The first bytes of a file, mapped."""
    if size == 0:
        return memoryview(b"")
    if sys.version_info >= (3, 13):  # earlier ones keep a descriptor for each map
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False))
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
