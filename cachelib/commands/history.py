"""History: what each version of a cache changed, what differs between two, what one needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib.cache import Cache
from cachelib.format import coverage
from cachelib.format.commit import Commit
from cachelib.format.entries import Entries
from cachelib.format.ledger import Ledger
from cachelib.format.pins import all_pins
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.order.live import Live
from cachelib.reading.scan import Scan, arrays_of, in_order

COMMITS_AT_ONCE = 64

Range = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """What one version changed.

    Attributes:
        commit: that made it.
        shards, rows, elements: how many more there are than before, of what is left; less than 0
            where there are fewer.
        pins: names of the pins that keep this version.
        expired_by: the retire commit that let it expire, or None.
    """

    commit: Commit
    shards: int
    rows: int
    elements: dict[str, int]
    pins: tuple[str, ...]
    expired_by: int | None

    def to_json(self) -> dict[str, Any]:
        commit = self.commit
        return {
            "version": commit.version,
            "digest": commit.digest,
            "operation": commit.operation,
            "task": commit.task,
            "shards": self.shards,
            "rows": self.rows,
            "elements": self.elements,
            "records": commit.records,
            "rejects": commit.rejects,
            "counts": commit.counts,
            "seals": commit.span if commit.seals else None,
            "finished": commit.finished,
            "pins": list(self.pins),
            "expired_by": self.expired_by,
        }


def steps(storage: Storage, version: int | None = None) -> list[Step]:
    """All versions of a cache up to one, oldest first.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        CorruptData: a commit is missing or damaged.
    """
    ledger = Ledger(storage)
    last = ledger.commit(ledger.resolve(version)).version
    newest = ledger.commit(last if version is None else max(last, ledger.head() or 0))
    pins: dict[int, list[str]] = {}
    for pin in all_pins(storage):
        pins.setdefault(pin.version, []).append(pin.name)
    found: list[Step] = []
    before: Mapping[str, Any] = {"shards": 0, "rows": 0, "elements": {}}
    for commit in commits_of(ledger, 0, last + 1):
        now = commit.totals
        found.append(
            Step(
                commit,
                now["shards"] - before["shards"],
                now["rows"] - before["rows"],
                {f: n - before["elements"].get(f, 0) for f, n in now["elements"].items()},
                tuple(pins.get(commit.version, ())),
                newest.expired_by(commit.version),
            )
        )
        before = now
    return found


def commits_of(ledger: Ledger, start: int, stop: int) -> Iterator[Commit]:
    """The commits [start, stop), some at a time."""
    for first in range(start, stop, COMMITS_AT_ONCE):
        yield from ledger.commits(first, min(stop, first + COMMITS_AT_ONCE))


@dataclass(frozen=True)
class Difference:
    """What changed from one version to a later one.

    Attributes:
        url: of the cache.
        versions: the two.
        operations: how many commits of each kind lie between them, the later one included.
        totals: of the two.
        added: row indices [start, stop) that were given out.
        deleted: ranges of row indices that the first has and the second has not.
        passing: rows that were added and deleted again.
        new_shards, dropped_shards: attempts that only the second, or only the first, needs.
        sources: for each source that was taken in, its name, its version, the ranges of positions,
            and whether it is new.
        changes: keys of schema and identity that differ, with both values.
    """

    url: str
    versions: tuple[int, int]
    operations: dict[str, int]
    totals: tuple[dict[str, Any], dict[str, Any]]
    added: Range
    deleted: list[Range]
    passing: int
    new_shards: int
    dropped_shards: int
    sources: list[dict[str, Any]]
    changes: dict[str, list[Any]]


def between(storage: Storage, first: int, second: int) -> Difference:
    """What changed from one version to a later one, as the ledger tells: nothing else is read.

    Raises:
        ValueError: the second is not later than the first.
        CacheNotFound: there is no cache, or no such version.
    """
    if second < first:
        raise ValueError(f"version {second} comes before version {first}: name the older one first")
    ledger = Ledger(storage)
    old, new = ledger.snapshot(first), ledger.snapshot(second)
    commits = list(commits_of(ledger, first + 1, second + 1))
    gaps = _gaps(new)
    attempts = [set(_attempts(each.entries)) for each in (old, new)]
    values = [_flat({"schema": c.schema.to_json(), "identity": c.identity})
              for c in (old.commit, new.commit)]  # fmt: skip
    return Difference(
        url=storage.url,
        versions=(first, second),
        operations=dict(Counter(commit.operation for commit in commits)),
        totals=(old.commit.totals, new.commit.totals),
        added=(old.rows, new.rows),
        deleted=minus([(a, min(b, old.rows)) for a, b in gaps if a < old.rows], _gaps(old)),
        passing=sum(b - max(a, old.rows) for a, b in gaps if b > old.rows),
        new_shards=len(attempts[1] - attempts[0]),
        dropped_shards=len(attempts[0] - attempts[1]),
        sources=_taken_in(ledger, old, commits),
        changes={
            key: [value.get(key) for value in values]
            for key in sorted(values[0].keys() | values[1].keys())
            if values[0].get(key) != values[1].get(key)
        },
    )


def _gaps(snapshot: Snapshot) -> list[Range]:
    live = Live.of(snapshot.entries, snapshot.commit.schema)
    return [] if live is None else [(start, stop) for start, stop in live.gaps()]


def _attempts(entries: Entries) -> Iterator[tuple[str, str]]:
    return zip(entries.shard, entries.attempt, strict=True)


def minus(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """What of ranges lies in none of others; both are sorted and apart."""
    found = []
    rest = list(others)
    at = 0
    for start, stop in ranges:
        while at < len(rest) and rest[at][1] <= start:
            at += 1
        place, low = at, start
        while place < len(rest) and rest[place][0] < stop:
            if rest[place][0] > low:
                found.append((low, rest[place][0]))
            low = max(low, rest[place][1])
            place += 1
        if low < stop:
            found.append((low, stop))
    return found


def _taken_in(ledger: Ledger, old: Snapshot, commits: Iterable[Commit]) -> list[dict[str, Any]]:
    names = [commit.coverage for commit in commits if commit.coverage is not None]
    if not names:
        return []
    before = coverage.merge(ledger.coverage_deltas(old))
    taken = coverage.merge(ledger.checkpointed(names))
    return [
        {
            "source": name,
            "version": each.version,
            "ranges": [list(pair) for pair in each.ranges],
            "new": name not in before,
        }
        for name, each in sorted(taken.items())
    ]


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """The leaves of JSON by their path, with dots."""
    if isinstance(value, dict) and value:
        parts = [_flat(each, f"{key}.{name}" if key else name) for name, each in value.items()]
        return {name: leaf for part in parts for name, leaf in part.items()}
    return {key: value}


def missing_objects(cache: Cache) -> tuple[int, list[str]]:
    """How many objects the rows of a version need, and the keys of those that are not there."""
    entries = cache.snapshot.entries
    scans = [
        Scan.of(cache.storage, cache.schema, entries, number)
        for number in np.flatnonzero(entries.rows).tolist()
    ]
    needed = 0
    missing: list[str] = []
    for keys, there in in_order(_look, scans):
        needed += len(keys)
        missing += sorted(keys - there)
    return needed, missing


def _look(scan: Scan) -> tuple[set[str], set[str]]:
    keys = {scan.prefix + key for key in needed_keys(scan)}
    return keys, set(scan.storage.list(scan.prefix))


def needed_keys(scan: Scan) -> Iterator[str]:
    """The keys, below its attempt, of all that the rows of a shard are read from."""
    yield "details.json"
    for key, metadata in arrays_of(scan).items():
        outer = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
        length, *trailing = metadata["shape"]
        for number in range(-(-length // outer)):
            yield f"{key}/c/{number}" + "/0" * len(trailing)
