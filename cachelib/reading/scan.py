"""Scan: all rows of a shard from first to last, straight from the store, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.entries import Entries
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import (
    attempt_prefix,
    data_key,
    data_metadata,
    has_offsets,
    offsets_key,
    offsets_metadata,
)
from cachelib.format.storage import Storage, values_of
from cachelib.ragged import Ragged

ROWS_AT_ONCE = 1 << 16
"""Rows in a block, at most."""

BYTES_AT_ONCE = 8 << 20
"""Bytes of values in a block, at most, unless a single row has more."""

THREADS = 4
"""Shards that are read at the same time."""

Columns = dict[str, np.ndarray | Ragged]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class Scan:
    """The arrays of one shard, as its entry in the ledger describes them.

    Attributes:
        storage, schema: of the cache.
        shard, attempt: which arrays.
        rows: of the shard.
        elements: number of values of each field that has offsets.
    """

    storage: Storage
    schema: Schema
    shard: str
    attempt: str
    rows: int
    elements: dict[str, int]

    @classmethod
    def of(cls, storage: Storage, schema: Schema, entries: Entries, index: int) -> Scan:
        """The scan of one of a ledger's entries."""
        return cls(
            storage,
            schema,
            entries.shard[index],
            entries.attempt[index],
            int(entries.rows[index]),
            {name: int(counts[index]) for name, counts in entries.elements.items()},
        )

    @property
    def prefix(self) -> str:
        return attempt_prefix(self.shard, self.attempt)

    def length(self, field: Field) -> int:
        """First dimension of a field's data array."""
        return self.elements[field.like or field.name] if field.ragged else self.rows

    def offsets(self, field: Field, start: int, stop: int) -> np.ndarray:
        """Offsets of rows [start, stop): int64 of shape (stop - start + 1,), checked.

        Raises:
            CorruptData: they do not run from 0 to the number of values without decreasing.
        """
        metadata = offsets_metadata(self.rows)
        found = self._read({offsets_key(field): (metadata, start, stop + 1)}, start, stop)[0]
        where = self.storage.where(self.prefix + offsets_key(field))
        total = self.elements[field.name]
        wrong = np.flatnonzero(found[1:] < found[:-1])
        if len(wrong):
            raise CorruptData(f"{where}: row {start + wrong[0]} has a negative length")
        if (start == 0 and found[0] != 0) or found[0] < 0:
            raise CorruptData(f"{where}: row {start} begins at {found[0]}")
        if found[-1] > total or (stop == self.rows and found[-1] != total):
            raise CorruptData(
                f"{where}: row {stop - 1} ends at {found[-1]}, but the shard has {total} values"
            )
        return found

    def lengths(self, field: Field, start: int, stop: int) -> np.ndarray:
        """Lengths of rows [start, stop) of a ragged field: int64."""
        return np.diff(self.offsets(self.schema[field.like or field.name], start, stop))

    def column(self, field: Field, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of a field that is not ragged."""
        return self._columns([field], {}, start, start, stop)[field.name]  # type: ignore[return-value]

    def blocks(
        self, fields: Sequence[Field], start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, Columns]]:
        """Rows [start, stop) as (number of the first row, columns of the fields).

        Raises:
            CorruptData: stored bytes are missing or damaged, naming array and rows.
        """
        end = self.rows if stop is None else stop
        owners = sorted({field.like or field.name for field in fields if field.ragged})
        for low in range(start, end, ROWS_AT_ONCE):
            high = min(end, low + ROWS_AT_ONCE)
            offsets = {name: self.offsets(self.schema[name], low, high) for name in owners}
            sizes = np.zeros(high - low, np.int64)
            for field in fields:
                size = np.dtype(field.dtype).itemsize * int(np.prod(field.shape, dtype=np.int64))
                owner = field.like or field.name
                sizes += size * (np.diff(offsets[owner]) if field.ragged else 1)
            for first, last in runs(sizes, BYTES_AT_ONCE):
                yield low + first, self._columns(fields, offsets, low, low + first, low + last)

    def _columns(
        self,
        fields: Sequence[Field],
        offsets: dict[str, np.ndarray],
        low: int,
        start: int,
        stop: int,
    ) -> Columns:
        """Columns of rows [start, stop), given the offsets of rows from `low` on."""
        spans = {
            field.name: offsets[field.like or field.name][start - low : stop - low + 1]
            if field.ragged
            else np.array([start, stop])
            for field in fields
        }
        arrays = self._read(
            {
                data_key(field): (
                    data_metadata(field, self.length(field)),
                    int(spans[field.name][0]),
                    int(spans[field.name][-1]),
                )
                for field in fields
            },
            start,
            stop,
        )
        return {
            field.name: Ragged(values, spans[field.name] - spans[field.name][0])
            if field.ragged
            else values
            for field, values in zip(fields, arrays, strict=True)
        }

    def _read(
        self, ranges: dict[str, tuple[dict[str, Any], int, int]], start: int, stop: int
    ) -> list[np.ndarray]:
        """Positions [low, high) of several arrays, each given with its metadata, concurrently."""
        parts: dict[str, tuple[Any, Any]] = {}
        for key, (metadata, low, high) in ranges.items():
            if low < high:
                place = self.prefix + key
                array = self.storage.open_array(place, metadata, write=False, cached=False)
                parts[key] = (array[low:high], array[low:high].read())
        found = []
        for key, (metadata, _, _) in ranges.items():
            if key not in parts:
                found.append(np.empty((0, *metadata["shape"][1:]), metadata["data_type"]))
                continue
            where = self.storage.where(self.prefix + key)
            what = partial("{} (rows {} to {} of the shard)".format, where, start, stop)
            found.append(values_of(*parts[key], where, what))
        return found


def arrays_of(scan: Scan) -> dict[str, dict[str, Any]]:
    """The key of every array of a shard with rows, with the metadata it must have."""
    data = {data_key(f): data_metadata(f, scan.length(f)) for f in scan.schema.stored}
    offsets = {
        offsets_key(f): offsets_metadata(scan.rows) for f in scan.schema.fields if has_offsets(f)
    }
    return data | offsets


def runs(sizes: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Consecutive runs [first, last) of items whose sizes sum to at most `limit`, or of one."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield first, last
        first = last


def in_order(
    function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int = THREADS
) -> Iterator[_Result]:
    """Results of a function for each item, in the order of the items, a few at the same time."""
    waiting: deque[Future[_Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
