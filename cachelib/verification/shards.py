"""Shards: each is read in full and compared with its entry and its manifest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.commit import Commit
from cachelib.format.digest import digest_rows, fold
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
from cachelib.ragged import Ragged
from cachelib.reading.scan import Scan, arrays_of
from cachelib.verification.problems import Problem, caught


@dataclass(frozen=True)
class Shard:
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
    ) -> Shard:
        """That of one of a commit's entries."""
        entries = commit.entries
        return cls(
            Scan.of(storage, commit.schema, entries, index),
            entries.digests[index],
            entries.kept(index),
            (entries.shard[index], entries.attempt[index]) in collected,
        )


@dataclass(frozen=True)
class Read:
    """A shard that was read."""

    scan: Scan
    manifest: Manifest | None
    problems: tuple[Problem, ...]
    collected: bool = False


def read_shard(shard: Shard) -> Read:
    """Read one shard in full and compare it with its entry and its manifest."""
    scan = shard.scan
    if shard.collected:
        return Read(scan, None, (), collected=True)
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
        found += caught(check)
    return Read(scan, manifest, tuple(found))


def _manifest_problems(shard: Shard, manifest: Manifest | None) -> Iterator[str]:
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


def _check_rows(shard: Shard, manifest: Manifest | None) -> Iterator[Problem]:
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
