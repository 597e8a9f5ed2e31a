"""Statistics of a cache: rows, tokens, lengths, rejects; by source and in all.

Exact ones read the offsets and the source of every row, quick ones one small object a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cachelib.cache import Cache
from cachelib.errors import CorruptData
from cachelib.format.commit import Commit
from cachelib.format.ledger import Ledger
from cachelib.format.schema import SOURCE, Field, Schema
from cachelib.format.shard import Statistics as FieldStatistics
from cachelib.format.shard import has_offsets, read_details, read_manifest, read_rejects
from cachelib.format.storage import Storage
from cachelib.format.succession import add_counts
from cachelib.ragged import Ragged
from cachelib.reading.scan import Scan, in_order

ROWS_AT_ONCE = 1 << 20
"""Rows whose lengths are held at once."""

COMMITS_AT_ONCE = 64

QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, eq=False)
class Lengths:
    """How many rows have which length, exactly.

    There are at most sqrt(2 n) different lengths of rows that have n values together, so this is
    small for any cache.

    Attributes:
        lengths: int64 of shape (k,), increasing.
        rows: int64 of shape (k,), each above 0.
    """

    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, lengths: np.ndarray) -> Lengths:
        """Of rows with the given lengths."""
        return cls(*np.unique(lengths, return_counts=True))

    def plus(self, other: Lengths) -> Lengths:
        """Of these rows and others."""
        lengths, places = np.unique(
            np.concatenate([self.lengths, other.lengths]), return_inverse=True
        )
        rows = np.zeros(len(lengths), np.int64)
        np.add.at(rows, places, np.concatenate([self.rows, other.rows]))
        return Lengths(lengths, rows)

    def quantile(self, share: float) -> int:
        """The smallest length that at least this share of the rows does not exceed."""
        reached = np.cumsum(self.rows)
        place = np.searchsorted(reached, share * reached[-1], side="left")
        return int(self.lengths[place])

    def to_json(self) -> dict[str, Any] | None:
        """Least, greatest and mean length and quantiles; None without rows."""
        if len(self.rows) == 0:
            return None
        quantiles = {name: self.quantile(share) for name, share in QUANTILES.items()}
        mean = float(np.dot(self.lengths, self.rows) / self.rows.sum())
        return {
            "min": int(self.lengths[0]),
            "mean": mean,
            **quantiles,
            "max": int(self.lengths[-1]),
        }


@dataclass(frozen=True, eq=False)
class Sources:
    """Sums by source.

    Attributes:
        names: of the sources, in the order in which their first rows come.
        rows, tokens, empty: int64 of shape (sources,): rows, their values, rows without values.
    """

    names: list[str]
    rows: np.ndarray
    tokens: np.ndarray
    empty: np.ndarray

    def groups(self) -> Sources:
        """Sums by the first component of the sources' names."""
        places: dict[str, int] = {}
        index = [places.setdefault(group_of(name), len(places)) for name in self.names]
        sums = [np.zeros(len(places), np.int64) for _ in range(3)]
        for total, column in zip(sums, (self.rows, self.tokens, self.empty), strict=True):
            np.add.at(total, np.array(index, np.int64), column)
        return Sources(list(places), *sums)

    def to_json(self) -> list[dict[str, Any]]:
        columns = (self.rows.tolist(), self.tokens.tolist(), self.empty.tolist())
        return [
            {"name": name, "rows": rows, "tokens": tokens, "empty": empty}
            for name, rows, tokens, empty in zip(self.names, *columns, strict=True)
        ]


def group_of(source: str) -> str:
    """The first component of a source's name, with "/", or "." where it has but one."""
    head, separator, _ = source.partition("/")
    return head + "/" if separator else "."


@dataclass(frozen=True)
class Reject:
    """Rejected records of one reason.

    Attributes:
        count: how many there are.
        example: one as it was stored, or None if no copy was kept.
    """

    reason: str
    count: int
    example: dict[str, Any] | None


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a cache holds.

    Attributes:
        field: the ragged field whose values are counted, the tokens; None if there is none.
        rows, tokens, empty: that are left, in all; empty rows have no value in that field.
        deleted: rows that were deleted.
        deletions: commits that deleted rows or rejects.
        smallest, largest: of the values, None where there are none.
        records: read in all: rows and rejects, also those that were deleted since.
        counts: other things counted while building (replaced, audited, redone, ...), likewise.
        rejects: by reason, the most frequent first, likewise.
        lengths: of the field in all rows; None if only looked at quickly.
        histogram: rows by power of two: [k] counts lengths in [2^(k-1), 2^k), [0] the empty rows.
        sources: None if only looked at quickly.
    """

    url: str
    version: int
    field: str | None
    rows: int
    tokens: int
    empty: int
    deleted: int
    deletions: int
    smallest: int | None
    largest: int | None
    records: int
    counts: dict[str, int]
    rejects: tuple[Reject, ...]
    lengths: Lengths | None
    histogram: list[int]
    sources: Sources | None

    def to_json(self) -> dict[str, Any]:
        exact = self.lengths is not None and self.sources is not None
        return {
            **vars(self),
            "rejects": [vars(reject) for reject in self.rejects],
            "lengths": self.lengths.to_json() if self.lengths is not None else None,
            "groups": self.sources.groups().to_json() if exact and self.sources else None,
            "sources": self.sources.to_json() if self.sources is not None else None,
        }


def token_field(schema: Schema) -> Field | None:
    """The field whose values are counted: "tokens", else the first that has offsets."""
    candidates = [f for f in schema.fields if has_offsets(f)]
    return next((f for f in candidates if f.name == "tokens"), next(iter(candidates), None))


def statistics(
    storage: Storage,
    version: int | None = None,
    *,
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Statistics:
    """Statistics of a cache at a version, None for the newest.

    Args:
        quick: leave out sources and exact lengths, which need all offsets to be read.
        progress: called with shards done and shards in all.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        SnapshotExpired: rows of that version are gone.
        CorruptData: what is needed is missing or damaged.
    """
    cache = Cache(storage, version)
    entries = cache.snapshot.entries
    chosen = token_field(cache.schema)
    scans = [
        (Scan.of(storage, cache.schema, entries, index), entries.kept(index))
        for index in np.flatnonzero(entries.rows).tolist()
    ]
    total = _Total(chosen)
    for done, part in enumerate(in_order(lambda each: _shard(*each, chosen, quick), scans), 1):
        total.add(part)
        if progress is not None:
            progress(done, len(scans))
    records = deletions = 0
    reasons: dict[str, int] = {}
    counts: dict[str, int] = {}
    examples: dict[str, dict[str, Any]] = {}
    attempts = set(zip(entries.shard, entries.attempt, strict=True))
    for commit in _commits(storage, cache.version):
        records += commit.records
        deletions += commit.operation == "delete"
        reasons = add_counts([reasons, commit.rejects])
        counts = add_counts([counts, commit.counts])
        # Shards that stand for others have the copies of what these had rejected.
        missing = set(reasons if commit.removed else commit.rejects) - set(examples)
        _find_examples(storage, commit, attempts, missing, examples)
    totals = cache.snapshot.commit.totals
    return Statistics(
        url=storage.url,
        version=cache.version,
        field=None if chosen is None else chosen.name,
        rows=totals["rows"],
        tokens=0 if chosen is None else totals["elements"][chosen.name],
        empty=int(total.histogram[0]),
        deleted=len(cache) - totals["rows"],
        deletions=deletions,
        smallest=total.smallest,
        largest=total.largest,
        records=records,
        counts=counts,
        rejects=tuple(
            Reject(reason, count, examples.get(reason))
            for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        ),
        lengths=None if quick else total.lengths,
        histogram=np.trim_zeros(total.histogram, "b").tolist(),
        sources=None if quick else total.sources(),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """What one shard adds: its sources and its details, and by source of the shard three sums."""

    details: Mapping[str, Any]
    lengths: Lengths
    sums: np.ndarray


def _shard(scan: Scan, kept: np.ndarray | None, chosen: Field | None, quick: bool) -> _Part:
    """Args: kept: which rows are left; None for all."""
    details = read_details(scan.storage, scan.shard, scan.attempt)
    if kept is not None and chosen is not None:
        details = {**details, "fields": {chosen.name: _counted(scan, kept, chosen)}}
    names = details["sources"]
    sums = np.zeros((3, len(names)), np.int64)
    lengths = Lengths()
    if quick:
        return _Part(details, lengths, sums)
    for low in range(0, scan.rows, ROWS_AT_ONCE):
        high = min(scan.rows, low + ROWS_AT_ONCE)
        left = slice(None) if kept is None else kept[low:high]
        source = scan.column(SOURCE, low, high)
        if source.max() >= len(names):
            where = scan.storage.where(scan.prefix + "_source/data")
            raise CorruptData(f"{where}: names source {source.max()} of {len(names)}")
        source = source[left]
        sums[0] += np.bincount(source, minlength=len(names))
        if chosen is None:
            continue
        each = scan.lengths(chosen, low, high)[left]
        lengths = lengths.plus(Lengths.of(each))
        np.add.at(sums[1], source, each)
        sums[2] += np.bincount(source[each == 0], minlength=len(names))
    return _Part(details, lengths, sums)


def _counted(scan: Scan, kept: np.ndarray, chosen: Field) -> dict[str, Any]:
    """What details tell of a field, of the rows that are left."""
    found = FieldStatistics()
    for first, columns in scan.blocks([chosen]):
        column = columns[chosen.name]
        assert isinstance(column, Ragged)
        found.add(column.take(np.flatnonzero(kept[first : first + len(column)])))
    return found.to_json()


class _Total:
    """Adds up parts."""

    def __init__(self, chosen: Field | None) -> None:
        self.lengths = Lengths()
        self.histogram = np.zeros(64, np.int64)
        self.smallest: int | None = None
        self.largest: int | None = None
        self._chosen = chosen
        self._places: dict[str, int] = {}
        self._sums = np.zeros((3, 0), np.int64)

    def add(self, part: _Part) -> None:
        names = part.details["sources"]
        index = [self._places.setdefault(name, len(self._places)) for name in names]
        if len(self._places) > self._sums.shape[1]:
            grown = np.zeros((3, 2 * len(self._places)), np.int64)
            grown[:, : self._sums.shape[1]] = self._sums
            self._sums = grown
        self._sums[:, np.array(index, np.int64)] += part.sums  # a shard names each source once
        self.lengths = self.lengths.plus(part.lengths)
        if self._chosen is None:
            return
        found = part.details["fields"][self._chosen.name]
        self.histogram[: len(found["lengths"])] += np.array(found["lengths"], np.int64)
        lows = [value for value in (self.smallest, found["min"]) if value is not None]
        highs = [value for value in (self.largest, found["max"]) if value is not None]
        self.smallest, self.largest = min(lows, default=None), max(highs, default=None)

    def sources(self) -> Sources:
        sums = self._sums[:, : len(self._places)]
        return Sources(list(self._places), *sums)


def _commits(storage: Storage, last: int) -> Iterator[Commit]:
    ledger = Ledger(storage)
    for first in range(0, last + 1, COMMITS_AT_ONCE):
        yield from ledger.commits(first, min(last + 1, first + COMMITS_AT_ONCE))


def _find_examples(
    storage: Storage,
    commit: Commit,
    attempts: Container[tuple[str, str]],
    missing: set[str],
    examples: dict[str, dict[str, Any]],
) -> None:
    """Add a stored reject for every missing reason of which one of the attempts has a copy."""
    for shard, attempt in zip(commit.entries.shard, commit.entries.attempt, strict=True):
        if not missing:
            return
        if (shard, attempt) not in attempts:
            continue
        manifest = read_manifest(storage, shard)
        if manifest is None or missing.isdisjoint(manifest.rejects):
            continue
        for reject in read_rejects(storage, shard, attempt):
            if reject["reason"] in missing:
                examples[reject["reason"]] = reject
                missing.discard(reject["reason"])


def histogram_range(histogram: list[int], share: float) -> tuple[int, int]:
    """The least and greatest length that a quantile can have, from rows by power of two."""
    reached = np.cumsum(histogram)
    bucket = int(np.searchsorted(reached, max(1, share * reached[-1]), side="left"))
    return (0, 0) if bucket == 0 else (1 << (bucket - 1), (1 << bucket) - 1)
