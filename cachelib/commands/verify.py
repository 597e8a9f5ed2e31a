"""Verify: everything that a cache says of itself, checked against what is stored.

The ledger is walked from commit 0; every shard is read in full, in bounded memory, and its digest
computed anew. What a gc gave up is not looked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cachelib.cache import Cache
from cachelib.errors import CorruptData, ForebayError
from cachelib.format import coverage
from cachelib.format.canonical import digest, digest_of, unseal
from cachelib.format.digest import EMPTY, Digest, digest_rows, fold
from cachelib.format.entries import Entries
from cachelib.format.ledger import (
    Commit,
    Ledger,
    add_counts,
    commit_key,
    no_cache,
    no_version,
)
from cachelib.format.schema import Schema
from cachelib.format.shard import (
    REJECTS_KEPT_BYTES,
    Cover,
    Manifest,
    Statistics,
    manifest_key,
    read_details,
    read_manifest,
    read_rejects,
)
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged, offsets_of
from cachelib.reading.scan import Scan, arrays_of, in_order
from cachelib.words import counted

COMMITS_AT_ONCE = 64

ROWS_AT_ONCE = 4096
"""Rows that are compared at once."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        place: URL of the object or folder.
        what: what is wrong with it, in words.
    """

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" if self.place else self.what


@dataclass(frozen=True)
class Progress:
    """How far a check has come.

    Attributes:
        shards, rows: that were read.
        all_shards, all_rows: that are to be read: those of the version checked, and those that
            stood there before, as far as the ledger was read.
        collected: shards of older versions that a gc gave up, and that were not read.
    """

    shards: int
    all_shards: int
    rows: int
    all_rows: int
    collected: int = 0


def verify(
    storage: Storage,
    version: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Iterator[Problem]:
    """Everything that is wrong with a cache up to a version, as it is found.

    Args:
        version: the last version to check; None for the newest.
        progress: called after every shard.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        SnapshotExpired: rows of that version are gone.
        IncompatibleCache: a commit was written by a newer Forebay.
    """
    listed = _listed(storage)
    if not listed:
        raise no_cache(storage)
    last = listed[-1] if version is None else version
    if not 0 <= last <= listed[-1]:
        raise no_version(storage, last, listed[-1])
    yield from _check_hint(storage, listed[-1])
    ledger = Ledger(storage)
    ledger.check_kept(last)
    retired: frozenset[tuple[str, str]] = frozenset()
    needed = Entries()
    try:
        needed = ledger.snapshot(last).entries
        retired = ledger.retired_attempts(ledger.commit(listed[-1]).collected)
    except CorruptData:
        pass  # the walk will say so
    collected = retired.difference(zip(needed.shard, needed.attempt, strict=True))
    ahead = Progress(0, len(needed), 0, int(needed.rows.sum()))
    yield from _walk(_events(storage, ledger, last, collected), storage, ahead, progress)


def garbage(storage: Storage, version: int | None = None) -> int:
    """How many attempts lie in a cache that no commit up to a version names: remains of writers
    that were killed, what others are writing, and what a gc has yet to delete."""
    ledger = Ledger(storage)
    there = {
        (parts[1], parts[2])
        for parts in (key.split("/") for key in storage.list("shards/"))
        if len(parts) > 3
    }
    last = ledger.resolve(version)
    for _, commit in _commits(storage, last):
        if isinstance(commit, Commit):
            there.difference_update(zip(commit.entries.shard, commit.entries.attempt, strict=True))
    return len(there)


def _listed(storage: Storage) -> list[int]:
    """The versions that are there, by listing them: the one way that no lost object misleads."""
    keys = [key.removeprefix("_ledger/").removesuffix(".json") for key in storage.list("_ledger/")]
    return sorted(int(key) for key in keys if len(key) == 20 and key.isdigit())


@dataclass
class _Chain:
    """What the commits so far add up to."""

    version: int = -1
    digest: str = ""
    schema: Schema | None = None
    identity: dict[str, Any] | None = None
    rows: int = 0
    span: int = 0
    elements: dict[str, int] = field(default_factory=dict)
    content: Digest = EMPTY
    shards: int = 0
    base: dict[str, Any] | None = None
    parts: list[Entries] = field(default_factory=list)
    coverage: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    collected: dict[str, Any] | None = None
    retired: frozenset[tuple[str, str]] = frozenset()
    follows: bool = True  # whether the commit before was read
    complete: bool = True  # whether all were

    def check(self, commit: Commit) -> Iterator[str]:
        """What is wrong with a commit as the next one."""
        entries = commit.entries
        if len(sizes := _sizes(entries)) > 1:
            yield f"has columns of {sorted(sizes)} shards"
        if not self.follows:
            return
        wanted = self._after(commit)
        if isinstance(wanted, str):
            yield wanted
            return
        expected: dict[str, tuple[Any, Any]] = {
            "version": (commit.version, self.version + 1),
            "parent": (commit.parent, self.digest),
            "first row": (commit.row_base, self.span),
            "rows": (commit.totals["rows"], wanted["rows"]),
            "row indices": (commit.span, wanted["span"]),
            "shards": (commit.totals["shards"], wanted["shards"]),
            "elements": (commit.totals["elements"], wanted["elements"]),
            "content digest": (commit.totals["digest"], wanted["digest"]),
        }
        if commit.operation != "retire":
            expected["collected"] = (commit.collected, self.collected)
        if self.schema is not None:
            expected["schema"] = (commit.schema.digest, self.schema.digest)
        for name, (found, wanted) in expected.items():
            if found != wanted:
                yield f"says {name} {found}, expected {wanted}"
        if (commit.operation == "create") != (commit.version == 0):
            yield f"has operation {commit.operation!r} as commit {commit.version}"
        names = self.names.difference(commit.removed)
        again = [name for name, count in Counter(entries.shard).items()
                 if count > 1 or name in names]  # fmt: skip
        if again:
            shards = counted(len(again), "shard")
            yield f"holds {shards} that the cache has already, first {again[0]}"
        named = self.retired.intersection(zip(entries.shard, entries.attempt, strict=True))
        if named:
            yield f"names attempts that were given up before, as {min(named)}"
        if commit.retired is not None and commit.retired not in (commit.collected or {}).get(
            "attempts", ()
        ):
            yield f"retires {commit.retired}, which it does not count as collected"

    def _after(self, commit: Commit) -> dict[str, Any] | str:
        """The totals after a commit, or why there are none."""
        entries = commit.entries
        if commit.removed:
            try:
                whole = Entries.concatenate(self.parts).replaced(commit.replacements)
            except CorruptData as error:
                return str(error)
            return {
                "rows": whole.rows_left,
                "span": int(whole.row_spans.sum()),
                "shards": len(whole),
                "elements": {name: whole.elements_left(name) for name in self.elements},
                "digest": str(fold(map(Digest.parse, whole.digests))),
            }
        return {
            "rows": self.rows + entries.rows_left,
            "span": self.span + int(entries.row_spans.sum()),
            "shards": self.shards + len(entries),
            "elements": {
                name: self.elements.get(name, 0) + entries.elements_left(name)
                for name in (entries.elements if len(entries) else self.elements)
            },
            "digest": str(fold([self.content, *map(Digest.parse, entries.digests)])),
        }

    def add(self, commit: Commit, ledger: Ledger) -> int:
        """Take in a commit; returns the rows in the arrays that it put others in the place of."""
        self.follows = True
        self.version, self.digest = commit.version, commit.digest
        self.schema, self.identity = commit.schema, commit.identity
        self.rows, self.elements = commit.totals["rows"], commit.totals["elements"]
        self.content = Digest.parse(commit.totals["digest"])
        self.shards, self.base = commit.totals["shards"], commit.base
        self.span, self.collected = commit.span, commit.collected
        with suppress(CorruptData):  # whoever needs it will say so
            self.retired = ledger.retired_attempts(commit.collected)
        replaced_rows = 0
        if commit.removed:
            with suppress(CorruptData):  # `check` has said so
                before = Entries.concatenate(self.parts)
                self.parts = [before.replaced(commit.replacements)]
                after = int(self.parts[0].rows.sum()) - int(commit.entries.rows.sum())
                replaced_rows = int(before.rows.sum()) - after
        else:
            self.parts.append(commit.entries)
        self.names.difference_update(commit.removed)
        self.names.update(commit.entries.shard)
        if commit.coverage is not None:
            self.coverage.append(commit.coverage)
        return replaced_rows


def _sizes(entries: Entries) -> set[int]:
    """The lengths of the columns of entries; sound ones have but one."""
    columns = (entries.shard, entries.attempt, entries.rows, entries.digests)
    return {len(column) for column in (*columns, *entries.elements.values())}


@dataclass(frozen=True)
class _Shard:
    """A shard of a commit, to be read.

    Attributes:
        digest: of the rows that are left.
        left: which rows those are, bool (rows,); None for all.
        collected: whether a gc gave it up, so that it is not read.
    """

    scan: Scan
    digest: str
    left: np.ndarray | None
    collected: bool

    @classmethod
    def of(
        cls,
        storage: Storage,
        commit: Commit,
        index: int,
        collected: Container[tuple[str, str]],
    ) -> _Shard:
        """That of one of a commit's entries."""
        entries = commit.entries
        return cls(
            Scan.of(storage, commit.schema, entries, index),
            entries.digests[index],
            entries.kept(index),
            (entries.shard[index], entries.attempt[index]) in collected,
        )


@dataclass(frozen=True)
class _End:
    """All shards of a commit have been handed out."""

    commit: Commit


@dataclass(frozen=True)
class _Replaced:
    """Shards that a commit puts others in the place of, and the rows in their arrays: these were to
    be read as well as those of the version that is checked."""

    shards: int
    rows: int


@dataclass(frozen=True)
class _Read:
    """A shard that was read."""

    scan: Scan
    manifest: Manifest | None
    problems: tuple[Problem, ...]
    collected: bool = False


def _walk(
    events: Iterator[Problem | _Shard | _Replaced | _End],
    storage: Storage,
    done: Progress,
    progress: Callable[[Progress], None] | None,
) -> Iterator[Problem]:
    covered: dict[str, _Covered] = {}
    manifests: list[Manifest | None] = []
    for event in in_order(_work, events):
        if isinstance(event, Problem):
            yield event
        elif isinstance(event, _End):
            yield from _check_commit(storage, event.commit, manifests, covered)
            manifests = []
        elif isinstance(event, _Replaced):
            done = replace(
                done,
                all_shards=done.all_shards + event.shards,
                all_rows=done.all_rows + event.rows,
            )
        elif isinstance(event, _Read):
            yield from event.problems
            manifests.append(event.manifest)
            if event.collected:
                done = replace(
                    done,
                    collected=done.collected + 1,
                    all_shards=done.all_shards - 1,
                    all_rows=done.all_rows - event.scan.rows,
                )
            else:
                done = replace(done, shards=done.shards + 1, rows=done.rows + event.scan.rows)
            if progress is not None:
                progress(done)


def _work(event: Problem | _Shard | _Replaced | _End) -> Problem | _Read | _Replaced | _End:
    return _read(event) if isinstance(event, _Shard) else event


def _events(
    storage: Storage, ledger: Ledger, last: int, collected: Container[tuple[str, str]]
) -> Iterator[Problem | _Shard | _Replaced | _End]:
    """The commits one after another: what is wrong with each, its shards, and its end."""
    chain = _Chain()
    for version, found in _commits(storage, last):
        place = storage.where(commit_key(version))
        if isinstance(found, Problem):
            yield found
            chain.follows = chain.complete = False
            continue
        for what in chain.check(found):
            yield Problem(place, what)
        if found.base is not None and found.base != chain.base and chain.complete:
            yield from _check_base(ledger, place, found.base, chain)
        yield _Replaced(len(found.removed), chain.add(found, ledger))
        for index in range(len(found.entries) if len(_sizes(found.entries)) == 1 else 0):
            yield _Shard.of(storage, found, index, collected)
        yield _End(found)
    if chain.identity is not None:
        yield from _check_files(storage, chain.identity)


def _commits(storage: Storage, last: int) -> Iterator[tuple[int, Commit | Problem]]:
    for first in range(0, last + 1, COMMITS_AT_ONCE):
        versions = range(first, min(last + 1, first + COMMITS_AT_ONCE))
        objects = storage.read_many([commit_key(version) for version in versions])
        for version, data in zip(versions, objects, strict=True):
            where = storage.where(commit_key(version))
            if data is None:
                yield version, Problem(where, "is missing, though later commits are there")
                continue
            try:
                yield version, Commit.from_json(unseal(data, where), where)
            except CorruptData as error:
                yield version, Problem("", str(error))


def _check_hint(storage: Storage, newest: int) -> Iterator[Problem]:
    """Whether the hint, which is written after its commit, names one that is not there."""
    hint = storage.read("_ledger/head") or b""
    if hint.isdigit() and len(hint) < 20 and int(hint) > newest:
        yield Problem(
            storage.where("_ledger/head"),
            f"names version {int(hint)}, but the newest commit is {newest}: commits were lost, or "
            "left out of a copy",
        )


def _check_base(
    ledger: Ledger, place: str, base: Mapping[str, Any], chain: _Chain
) -> Iterator[Problem]:
    """Whether a checkpoint stands for the commits that it claims to stand for."""
    try:
        found = Entries.concatenate(ledger.segments(base["segments"]))
    except CorruptData as error:
        yield Problem("", str(error))
        return
    if base["version"] != chain.version:
        yield Problem(place, f"has a checkpoint of version {base['version']}, not {chain.version}")
    elif found.to_json() != Entries.concatenate(chain.parts).to_json():
        yield Problem(place, "has a checkpoint that does not hold the shards of the commits before")
        return
    try:
        taken = coverage.merge(ledger.checkpointed(base["coverage"]))
        expected = coverage.merge(ledger.checkpointed(chain.coverage))
    except CorruptData as error:
        yield Problem("", str(error))
        return
    if taken != expected:
        yield Problem(place, "has a checkpoint with another coverage than the commits before")


def _check_files(storage: Storage, identity: Mapping[str, Any]) -> Iterator[Problem]:
    """Whether the files that an identity names, such as the tokenizer's, are what was stored."""
    files = identity.get("files") or {}
    for key, data in zip(files, storage.read_many(files), strict=True):
        if data is None:
            yield Problem(storage.where(key), "is missing")
        elif digest(data) != files[key]:
            yield Problem(storage.where(key), f"has digest {digest(data)}, not {files[key]}")


@dataclass
class _Covered:
    """What was taken in of one source so far: sorted ranges, joined where they touch."""

    version: str
    ranges: list[tuple[int, int]]


def _check_commit(
    storage: Storage,
    commit: Commit,
    found: Sequence[Manifest | None],
    covered: dict[str, _Covered],
) -> Iterator[Problem]:
    """Whether a commit's counts and coverage are those of its manifests."""
    place = storage.where(commit_key(commit.version))
    manifests = [manifest for manifest in found if manifest is not None]
    complete = len(manifests) == len(found) and not commit.removed
    if complete:
        expected = {
            "records": (commit.records, sum(m.records for m in manifests)),
            "rejects": (commit.rejects, add_counts(m.rejects for m in manifests)),
            "counts": (commit.counts, add_counts(m.counts for m in manifests)),
        }
        for name, (said, wanted) in expected.items():
            if said != wanted:
                yield Problem(place, f"says {name} {said}, its manifests have {wanted}")
    covers = [cover for manifest in manifests for cover in manifest.covers]
    ranges, overlaps = _ranges(covers)
    yield from (Problem(place, f"took in twice: {overlap}") for overlap in overlaps)
    if commit.coverage is None:
        if ranges and complete:
            yield Problem(place, "has shards that cover sources, but no coverage")
        return
    key = f"_ledger/checkpoint/{commit.coverage}.json"
    try:
        value = storage.read_json(key)
    except CorruptData as error:
        yield Problem("", str(error))
        return
    if value is None or digest_of(value) != commit.coverage:
        what = "is missing" if value is None else "holds something else than its name says"
        yield Problem(storage.where(key), what)
        return
    if complete:
        yield from _check_coverage(storage.where(key), value, ranges, covers)
    if not complete:
        said = zip(value["source"], value["ranges"], strict=True)
        ranges = {name: [(low, high) for low, high in pairs] for name, pairs in said}
    for name, version in zip(value["source"], value["version"], strict=True):
        before = covered.setdefault(name, _Covered(version, []))
        if before.version != version:
            yield Problem(place, f"took in {name!r} as {version}, before it was {before.version}")
        joined, overlaps = _union([*before.ranges, *ranges.get(name, [])])
        before.ranges = joined
        yield from (Problem(place, f"took in {name!r} again: {overlap}") for overlap in overlaps)


def _check_coverage(
    place: str,
    value: Mapping[str, Any],
    ranges: Mapping[str, list[tuple[int, int]]],
    covers: Iterable[Cover],
) -> Iterator[Problem]:
    """Whether a coverage object is the union of the covers of a commit's manifests."""
    extents = {cover.source: cover.stop for cover in covers if cover.ends}
    if value["source"] != sorted(ranges):
        wrong = sorted(set(value["source"]) ^ set(ranges))[:3] or "their order"
        yield Problem(place, f"names other sources than the manifests: {wrong}")
        return
    columns = (value["source"], value["ranges"], value["extent"])
    for name, said, extent in zip(*columns, strict=True):
        if [tuple(pair) for pair in said] != ranges[name]:
            yield Problem(place, f"says {said} of {name!r}, the manifests {ranges[name]}")
        if extent != extents.get(name):
            yield Problem(place, f"says {name!r} ends at {extent}, not {extents.get(name)}")


def _ranges(covers: Iterable[Cover]) -> tuple[dict[str, list[tuple[int, int]]], list[str]]:
    """The union of covers by source, and the overlaps in words."""
    given: dict[str, list[tuple[int, int]]] = {}
    for cover in covers:
        given.setdefault(cover.source, []).append((cover.start, cover.stop))
    joined, overlaps = {}, []
    for name, pairs in given.items():
        joined[name], twice = _union(pairs)
        overlaps += [f"{name!r}: {overlap}" for overlap in twice]
    return joined, overlaps


def _union(pairs: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[str]]:
    """Sorted ranges, joined where they touch, and the overlaps in words."""
    joined: list[tuple[int, int]] = []
    overlaps = []
    for start, stop in sorted(pairs):
        if start == stop:
            continue
        if joined and start < joined[-1][1]:
            overlaps.append(f"[{start}, {stop}) beside [{joined[-1][0]}, {joined[-1][1]})")
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined, overlaps


def _read(shard: _Shard) -> _Read:
    """Read one shard in full and compare it with its entry and its manifest."""
    scan = shard.scan
    if shard.collected:
        return _Read(scan, None, (), collected=True)
    storage = scan.storage
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(storage, scan.shard)
    except CorruptData as error:
        found = [Problem("", str(error))]
    else:
        found = [
            Problem(storage.where(manifest_key(scan.shard)), what)
            for what in _manifest_problems(shard, manifest)
        ]
    checks = [_check_rejects(scan, manifest)]
    if scan.rows:
        checks += [_check_metadata(scan), _check_rows(shard, manifest)]
    for check in checks:
        found += _caught(check)
    return _Read(scan, manifest, tuple(found))


def _caught(check: Iterator[Problem]) -> Iterator[Problem]:
    """The problems that a check finds, the one that ends it included."""
    try:
        yield from check
    except ForebayError as error:
        yield Problem("", str(error))


def _manifest_problems(shard: _Shard, manifest: Manifest | None) -> Iterator[str]:
    if manifest is None:
        yield "is missing"
        return
    scan = shard.scan
    expected = {
        "shard": (manifest.shard, scan.shard),
        "attempt": (manifest.attempt, scan.attempt),
        "rows": (manifest.rows, scan.rows),
        "elements": (manifest.elements, scan.elements),
    }
    if shard.left is None:
        expected["digest"] = (manifest.digest, shard.digest)
    for name, (said, wanted) in expected.items():
        if said != wanted:
            yield f"says {name} {said}, the ledger {wanted}"
    records = manifest.rows + sum(manifest.rejects.values())
    if manifest.records != records:
        yield f"says {manifest.records} records, its rows and rejects are {records}"


def _check_metadata(scan: Scan) -> Iterator[Problem]:
    """Whether every zarr.json is what any Zarr reader needs to see."""
    expected: dict[str, dict[str, Any]] = {
        f"{key}/zarr.json": metadata for key, metadata in arrays_of(scan).items()
    }
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    for key in list(expected):
        parts = key.split("/")[:-2]
        for depth in range(len(parts) + 1):
            expected["/".join([*parts[:depth], "zarr.json"])] = group
    keys = sorted(expected)
    objects = scan.storage.read_many([scan.prefix + key for key in keys])
    for key, data in zip(keys, objects, strict=True):
        place = scan.storage.where(scan.prefix + key)
        if data is None:
            yield Problem(place, "is missing")
            continue
        try:
            found = json.loads(data)
        except ValueError as error:
            yield Problem(place, f"is damaged: {error}")
            continue
        if found != expected[key]:
            yield Problem(place, _metadata_difference(found, expected[key]))


def _metadata_difference(found: Any, expected: Mapping[str, Any]) -> str:
    if not isinstance(found, dict):
        return "is no JSON object"
    keys = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
    said = {key: found.get(key) for key in keys}
    return f"says {said}, expected { ({key: expected.get(key) for key in keys}) }"


def _check_rejects(scan: Scan, manifest: Manifest | None) -> Iterator[Problem]:
    """Whether the kept copies of rejects are as many as the manifest counts."""
    if manifest is None:
        return
    key = scan.prefix + "rejects.jsonl"
    rejects = read_rejects(scan.storage, scan.shard, scan.attempt)
    try:
        kept = Counter(reject["reason"] for reject in rejects)
    except (TypeError, KeyError):
        yield Problem(scan.storage.where(key), "has lines that are no rejects")
        return
    wrong = {reason for reason in kept if kept[reason] > manifest.rejects.get(reason, 0)}
    if kept != manifest.rejects:
        size = len(scan.storage.read(key) or b"")
        if size < REJECTS_KEPT_BYTES // 2:  # not cut short on purpose
            wrong |= {r for r in manifest.rejects if kept[r] != manifest.rejects[r]}
    for reason in sorted(wrong):
        yield Problem(
            scan.storage.where(key),
            f"holds {kept[reason]} rejects of {reason!r}, the manifest counts "
            f"{manifest.rejects.get(reason, 0)}",
        )


def _check_rows(shard: _Shard, manifest: Manifest | None) -> Iterator[Problem]:
    """Whether all rows can be read, have sources, and are those that the digest was made of."""
    scan = shard.scan
    where = scan.storage.where(scan.prefix)
    sources: list[str] | None = None
    details: dict[str, Any] = {}
    try:
        details = read_details(scan.storage, scan.shard, scan.attempt)
        sources = details["sources"]
    except CorruptData as error:
        yield Problem("", str(error))
    if sources is not None and len(set(sources)) < len(sources):
        yield Problem(where + "details.json", "names a source twice")
    limits = None if sources is None or manifest is None else _limits(sources, manifest.covers)
    statistics = {name: Statistics() for name in scan.elements}
    digests, digests_left = [], []
    for first, columns in scan.blocks(scan.schema.stored):
        digests.append(digest_rows(scan.schema, columns))
        if shard.left is not None:
            rows = np.flatnonzero(shard.left[first : first + len(columns["_position"])])
            kept = {
                name: column.take(rows) if isinstance(column, Ragged) else column[rows]
                for name, column in columns.items()
            }
            digests_left.append(digest_rows(scan.schema, kept))
        for name, statistic in statistics.items():
            column = columns[name]
            assert isinstance(column, Ragged)
            statistic.add(column)
        index, position = columns["_source"], columns["_position"]
        assert isinstance(index, np.ndarray)
        assert isinstance(position, np.ndarray)
        if sources is None:
            continue
        wrong = np.flatnonzero(index >= len(sources))
        if len(wrong):
            row = int(wrong[0])
            what = f"row {first + row} names source {index[row]} of {len(sources)}"
            yield Problem(where + "_source/data", what)
            continue
        if limits is None:
            continue
        wrong = np.flatnonzero((position < limits[0][index]) | (position >= limits[1][index]))
        if len(wrong):
            row = int(wrong[0])
            yield Problem(
                where + "_position/data",
                f"row {first + row} lies at {position[row]} of {sources[index[row]]!r}, "
                "which the manifest does not cover",
            )
    found = fold(digests if shard.left is None else digests_left)
    if str(found) != shard.digest:
        yield Problem(where, f"its rows have digest {found}, expected {shard.digest}")
    if shard.left is not None and manifest is not None and str(fold(digests)) != manifest.digest:
        what = f"all of its rows have digest {fold(digests)}, the manifest says {manifest.digest}"
        yield Problem(where, what)
    computed = {name: statistic.to_json() for name, statistic in statistics.items()}
    if sources is not None and details["fields"] != computed:
        yield Problem(where + "details.json", "has statistics of other rows")


def _limits(
    sources: Sequence[str], covers: Sequence[Cover]
) -> tuple[np.ndarray, np.ndarray] | None:
    """First and last position that covers allow for each source; None where nothing is covered."""
    if not covers:
        return None
    low = np.full(len(sources), np.iinfo(np.int64).max)
    high = np.zeros(len(sources), np.int64)
    places = {name: place for place, name in enumerate(sources)}
    for cover in covers:
        place = places.get(cover.source)
        if place is not None:
            low[place] = min(low[place], cover.start)
            high[place] = max(high[place], cover.stop)
    return low, high


def difference(one: Cache, other: Cache) -> str | None:
    """How the rows of two caches differ, in words; None where they are the same rows.

    Digests of prefixes, from the ledger and from at most one shard of each cache at a time, lead to
    the shard in which the first difference lies; its rows are then compared.
    """
    if one.schema.digest != other.schema.digest:
        return f"the schemas differ: {_fields(one.schema)} and {_fields(other.schema)}"
    if one.snapshot.digest == other.snapshot.digest:
        return None
    bases = [_bases(cache) for cache in (one, other)]
    totals = [int(each[-1]) for each in bases]
    rows = min(totals)
    if _prefix(one, rows) == _prefix(other, rows):
        more = one if totals[0] > rows else other
        return (
            f"the first {counted(rows, 'row')} are the same; "
            f"{more.storage.url} has {counted(max(totals), 'row')}"
        )
    low, high = 0, rows  # equal up to low, not up to high
    borders = np.union1d(*bases)
    while len(borders := borders[(borders > low) & (borders < high)]):
        middle = int(borders[len(borders) // 2])
        if _prefix(one, middle) == _prefix(other, middle):
            low = middle
        else:
            high = middle
    while high - low > 1:
        middle = min((low + high) // 2, low + ROWS_AT_ONCE)
        if _rows(one, low, middle) == _rows(other, low, middle):
            low = middle
        else:
            high = middle
    places = [cache.provenance(_indices(cache, low, low + 1))[0] for cache in (one, other)]
    first, second = (f"{place.source}:{place.position}" for place in places)
    return f"they begin to differ at row {low} ({first} and {second})"


def _fields(schema: Schema) -> str:
    return ", ".join(f"{f.name} {f.dtype}{list(f.shape) or ''}" for f in schema.fields)


def _bases(cache: Cache) -> np.ndarray:
    """Rows left before each shard, and in all: int64 (shards + 1,)."""
    left, shards = cache.snapshot.entries.left, len(cache.snapshot.entries)
    return offsets_of(np.bincount(left.entry, left.rows, shards).astype(np.int64))


def _indices(cache: Cache, start: int, stop: int) -> np.ndarray:
    """The indices of the rows [start, stop) of those that are left."""
    ranks = np.arange(start, stop)
    return ranks if cache.live is None else cache.live.rows(ranks)


def _rows(cache: Cache, start: int, stop: int) -> Digest:
    return digest_rows(cache.schema, cache.take(_indices(cache, start, stop)))


def _prefix(cache: Cache, rows: int) -> Digest:
    """The digest of the first rows of a cache that are left."""
    bases = _bases(cache)
    whole = int(np.searchsorted(bases, rows, side="right")) - 1
    digest = fold(map(Digest.parse, cache.snapshot.entries.digests[:whole]))
    starts = range(int(bases[whole]), rows, ROWS_AT_ONCE)
    return fold([digest, *(_rows(cache, s, min(rows, s + ROWS_AT_ONCE)) for s in starts)])
