"""Difference: where the rows of two caches begin to differ."""

from __future__ import annotations

import numpy as np

from cachelib.cache import Cache
from cachelib.format.digest import Digest, digest_rows, fold
from cachelib.format.schema import Schema
from cachelib.ragged import offsets_of
from cachelib.words import counted

ROWS_AT_ONCE = 4096
"""Rows that are compared at once."""


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
