"""Ledger: the numbered commits that alone say what a cache holds.

Commit n is the object ``_ledger/<n as 20 digits>.json``, created once by put-if-absent and never
rewritten. A snapshot is the state after one commit. Finding the newest commit takes a hint and a
few reads, never a listing; opening a snapshot takes the newest commit, its checkpoint and the
commits since.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cachelib.errors import (
    AttemptRetired,
    CacheNotFound,
    CorruptData,
    ForebayError,
    IncompatibleCache,
    SnapshotExpired,
    StorageError,
)
from cachelib.format.canonical import digest_of, seal
from cachelib.format.commit import Commit, commit_key
from cachelib.format.coverage import merge as merge_coverage
from cachelib.format.coverage import segments as coverage_segments
from cachelib.format.entries import Entries
from cachelib.format.snapshot import Snapshot, carried_on
from cachelib.format.storage import Storage

SEGMENT_ENTRIES = 8192
"""Entries in one segment of a checkpoint, at most."""


def no_cache(storage: Storage) -> CacheNotFound:
    """The error for a place without a cache."""
    nothing = f"there is no cache here (no {commit_key(0)})"
    return CacheNotFound(f"{storage.url}: {storage.fault() or nothing}")


def no_version(storage: Storage, version: int, newest: int) -> CacheNotFound:
    """The error for a version that a cache does not have."""
    there = f"versions 0 to {newest} are" if newest else "only version 0 is"
    return CacheNotFound(f"{storage.url}: there is no version {version}; {there} there")


@dataclass(frozen=True)
class Newest:
    """Where a ledger ends.

    Attributes:
        version: the newest version, None where there is no cache.
        lost: the version that the hint names, if it is not there: a hint is written after its
            commit, so that one was lost, or left out of a copy.
    """

    version: int | None
    lost: int | None

    def loss(self, url: str) -> str | None:
        """What is lost, in words, or None."""
        if self.lost is None:
            return None
        found = "none is there" if self.version is None else f"the newest is {self.version}"
        return (
            f"{url}: _ledger/head names version {self.lost}, but {found}: commits were lost, or "
            "left out of a copy"
        )


class Ledger:
    """The commits of the cache at a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def head(self) -> int | None:
        """The newest version, or None where there is no cache."""
        return self.newest().version

    def newest(self) -> Newest:
        """The newest version, by the hint and galloping reads, and whether the hint names more."""
        hint = self.storage.read("_ledger/head")
        hinted = int(hint) if hint is not None and re.fullmatch(rb"[0-9]{1,20}", hint) else None
        low = hinted or 0
        lost = None
        if not self._exists(low):
            lost = hinted
            if low == 0 or not self._exists(0):
                return Newest(None, lost)
            low = 0
        step = 1
        while self._exists(low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._exists(middle) else (low, middle)
        return Newest(low, lost)

    def _exists(self, version: int) -> bool:
        return self.storage.read(commit_key(version)) is not None

    def commit(self, version: int) -> Commit:
        """One commit.

        Raises:
            CacheNotFound: there is none of that version; says which there are.
        """
        return self.commits(version, version + 1)[0]

    def commits(self, start: int, stop: int) -> list[Commit]:
        """The commits [start, stop), read concurrently, each checked to follow from the one before.

        Raises:
            CacheNotFound: the last one is not there; says which are.
            CorruptData: one before is missing, one is damaged, or does not name the one before it
                as its parent.
        """
        keys = [commit_key(version) for version in range(start, stop)]
        found = []
        objects = self.storage.read_many(keys)
        for key, data in zip(keys, objects, strict=True):
            where = self.storage.where(key)
            if data is None and objects[-1] is not None:
                raise CorruptData(f"{where} is missing, though later commits are there")
            if data is None:
                raise self._no_version(stop - 1)
            found.append(Commit.from_json(self.storage.unsealed(key, data) or {}, where))
        for before, after in itertools.pairwise(found):
            if after.parent != before.digest:
                raise CorruptData(
                    f"{self.storage.where(commit_key(after.version))} names parent {after.parent}, "
                    f"but commit {before.version} has digest {before.digest}"
                )
        return found

    def _no_version(self, version: int) -> ForebayError:
        """The error for a version of which there is no commit."""
        newest = self.head()
        if newest is None:
            return no_cache(self.storage)
        if 0 <= version <= newest:
            where = self.storage.where(commit_key(version))
            return CorruptData(f"{where} is missing, though later commits are there")
        return no_version(self.storage, version, newest)

    def resolve(self, version: int | None) -> int:
        """The version asked for, or the newest.

        Warns (UserWarning) where the newest is asked for and the hint names a later one.

        Raises:
            CacheNotFound: the newest is asked for and there is no cache.
        """
        if version is not None:
            return version
        newest = self.newest()
        loss = newest.loss(self.storage.url)
        if newest.version is None:
            raise no_cache(self.storage) if loss is None else CacheNotFound(loss)
        if loss is not None:
            warnings.warn(loss, stacklevel=2)
        return newest.version

    def snapshot(self, version: int | None = None) -> Snapshot:
        """The state after a version, or after the newest.

        Warns as `resolve` does.

        Raises:
            CacheNotFound: there is no cache, or no such version; says which there are.
        """
        version = self.resolve(version)
        commit = self.commit(version)
        first = 0 if commit.base is None else commit.base["version"] + 1
        segments = [] if commit.base is None else self.segments(commit.base["segments"])
        since = self.commits(first, version + 1)
        entries = carried_on(segments, since, self.storage)
        sealed = [] if commit.base is None else commit.base.get("eras", [])
        snapshot = Snapshot.of(commit, entries, [*sealed, *(c.span for c in since if c.seals)])
        self._check(snapshot, version)
        return snapshot

    def grown(self, snapshot: Snapshot) -> Snapshot:
        """The newest state, by the commits after an earlier one; that one where there are none.

        It ends with the first commit after it that marks the cache complete. Reads one object that
        is not there, and those that are.

        Raises:
            CorruptData: the commits do not follow from the snapshot, or one is damaged.
        """
        since: list[Commit] = []
        version, step = snapshot.version + 1, 1
        while self._exists(version + step - 1):
            since += self.commits(version, version + step)
            version, step = version + step, 2 * step
        while step > 1:
            step //= 2
            if self._exists(version + step - 1):
                since += self.commits(version, version + step)
                version += step
        if not since:
            return snapshot
        before = snapshot.commit.digest
        for commit in since:
            if commit.parent != before:
                raise CorruptData(
                    f"{self.storage.where(commit_key(commit.version))} names parent "
                    f"{commit.parent}, but commit {commit.version - 1} has digest {before}"
                )
            before = commit.digest
        ends = next((i + 1 for i, commit in enumerate(since) if commit.finished), len(since))
        since = since[:ends]
        entries = carried_on([snapshot.entries], since, self.storage)
        sealed = [c.span for c in since if c.seals]
        found = Snapshot.of(since[-1], entries, [*snapshot.eras.tolist(), *sealed])
        self._check(found, found.version)
        return found

    def _check(self, snapshot: Snapshot, version: int) -> None:
        """Check that a commit is the one asked for and that its shards add up to its totals."""
        entries, totals = snapshot.entries, snapshot.commit.totals
        found = {
            "version": snapshot.version,
            "rows": entries.rows_left,
            "span": snapshot.rows,
            "shards": len(entries),
            "elements": {f: entries.elements_left(f) for f in snapshot.element_bases},
        }
        expectations = {**totals, "version": version, "span": snapshot.commit.span}
        for name, value in found.items():
            expected = expectations[name]
            if value != expected:
                raise CorruptData(
                    f"{self.storage.where(commit_key(version))}: its shards add up to {name} "
                    f"{value}, expected {expected}"
                )

    def segments(self, names: Sequence[str]) -> list[Entries]:
        return [Entries.from_json(value) for value in self.checkpointed(names)]

    def checkpointed(self, names: Sequence[str]) -> list[Any]:
        """The objects that commits refer to by these names, read concurrently.

        Raises:
            CorruptData: one is missing, damaged, or not the one that its name says.
        """
        keys = [f"_ledger/checkpoint/{name}.json" for name in names]
        values = []
        for key, data in zip(keys, self.storage.read_many(keys), strict=True):
            where = self.storage.where(key)
            if data is None:
                raise CorruptData(f"{where} is missing, though a commit names it")
            value = self.storage.unsealed(key, data)
            if f"_ledger/checkpoint/{digest_of(value)}.json" != key:
                raise CorruptData(f"{where} is named by a digest that is not its own")
            values.append(value)
        return values

    def check_kept(self, version: int) -> None:
        """Check that a version still has its rows, as far as the hint at the newest one tells.

        Raises:
            SnapshotExpired: naming the retire commit, and what can be opened instead.
        """
        hint = self.storage.read("_ledger/head") or b""
        if not re.fullmatch(rb"[0-9]{1,20}", hint) or int(hint) <= version:
            return  # versions expire by later commits
        with suppress(CacheNotFound, CorruptData, IncompatibleCache):
            self._refuse_expired(self.commit(int(hint)), version)

    def explained(self, version: int, error: CorruptData) -> ForebayError:
        """An error in reading a version as it should be raised: the version may have expired."""
        try:
            newest = self.head()
            if newest is not None:
                self._refuse_expired(self.commit(newest), version)
        except SnapshotExpired as expired:
            return expired
        except ForebayError:
            pass  # that it cannot be told must not hide what was found
        return error

    def _refuse_expired(self, newest: Commit, version: int) -> None:
        by = newest.expired_by(version)
        if by is not None:
            raise SnapshotExpired(
                f"{self.storage.url}: version {version} has expired: commit {by} (retire) gave up "
                f"arrays that it needs, and they are deleted. The newest version is "
                f"{newest.version}; a pin (forebay pin) keeps a version from then on"
            )

    def retired_attempts(self, collected: Mapping[str, Any] | None) -> frozenset[tuple[str, str]]:
        """The attempts, as (shard, attempt), that commits gave up: `Commit.collected`."""
        names = () if collected is None else collected["attempts"]
        return frozenset().union(*(_retired(self.storage, name) for name in names))

    def put_object(self, value: Any) -> str:
        """Store an immutable JSON value that commits refer to; returns its name, its digest."""
        name = digest_of(value)
        self.storage.put_json(f"_ledger/checkpoint/{name}.json", value)
        return name

    def append(self, commit: Commit) -> Commit:
        """Put a commit if there is none of its version; returns the one that is there then.

        Raises:
            AttemptRetired: an entry names an attempt that was given up.
        """
        self._refuse_retired(commit)
        key = commit_key(commit.version)
        data = seal(commit.to_json())
        there = self.storage.put_if_absent(key, data)
        if there != data:
            return self.commit(commit.version)
        with suppress(StorageError):  # a hint may lag; the commit is made
            self.storage.write("_ledger/head", str(commit.version).encode("ascii"))
        return commit

    def _refuse_retired(self, commit: Commit) -> None:
        if not len(commit.entries) or commit.collected is None:
            return
        retired = self.retired_attempts(commit.collected)
        entries = zip(commit.entries.shard, commit.entries.attempt, strict=True)
        found = sorted(retired.intersection(entries))
        if found:
            shard, attempt = found[0]
            raise AttemptRetired(
                f"{self.storage.url}: attempt {attempt} of shard {shard} (and {len(found) - 1} "
                "more) was given up by a gc, and its arrays are deleted. Nothing is damaged: let "
                "forebay gc run to its end, then the same command writes it anew"
            )

    def coverage_deltas(self, snapshot: Snapshot) -> list[Any]:
        """The coverage objects that add up to a snapshot's coverage, oldest first."""
        base = snapshot.commit.base
        first = 0 if base is None else base["version"] + 1
        commits = self.commits(first, snapshot.version + 1)
        names = [] if base is None else list(base["coverage"])
        names += [c.coverage for c in commits if c.coverage is not None]
        return self.checkpointed(names)

    def checkpoint(self, snapshot: Snapshot) -> dict[str, Any]:
        """Store a snapshot's entries and coverage as segments; returns a commit's ``base``."""
        entries, size = snapshot.entries, SEGMENT_ENTRIES
        return {
            "version": snapshot.version,
            "eras": snapshot.eras.tolist(),
            "segments": [
                self.put_object(entries.slice(first, first + size).to_json())
                for first in range(0, len(entries), size)
            ],
            "coverage": [
                self.put_object(segment)
                for segment in coverage_segments(
                    merge_coverage(self.coverage_deltas(snapshot)), SEGMENT_ENTRIES
                )
            ],
        }


@functools.lru_cache(maxsize=256)
def _retired(storage: Storage, name: str) -> frozenset[tuple[str, str]]:
    """The attempts that an object names; it never changes."""
    (value,) = Ledger(storage).checkpointed([name])
    return frozenset((shard, attempt) for shard, attempt in value["attempts"])
