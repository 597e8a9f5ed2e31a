"""Merging: the rows of sorted runs in the order of their keys, in bounded memory.

Each run has a buffer of its next rows. What no run can precede any more, the rows up to the least
of the buffers' last keys, is put in order at once; buffers that are half empty are filled again,
all of them by one read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.ledger import Ledger
from cachelib.format.schema import POSITION, SOURCE, Field, Schema
from cachelib.format.shard import Manifest, has_offsets, read_details
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import follow
from cachelib.ragged import Ragged, offsets_of
from cachelib.reading.arrays import Arrays
from cachelib.reading.scan import in_order
from pipelines.order.keys import Columns, Keys, Names, keys_of, row_sizes, run_size, words_of
from pipelines.order.orders import TOKENS, Order
from pipelines.order.passes import Share, bracket
from pipelines.runs import joined, order_value, taken

MERGE_BYTES = 32 << 20
"""Bytes of rows that a merge holds in buffers, about; some four times this are held in all."""

BLOCK_BYTES = 64 << 10
"""Bytes of a run that are read at once, at least, unless it has no more."""


DETAILS_AT_ONCE = 32
"""Runs whose names of sources are read at the same time."""


@dataclass(frozen=True, eq=False)
class Block:
    """Rows in the order of their keys.

    Attributes:
        keys: of the rows.
        columns: one for each field of the schema.
        sizes: bytes of each row, int64 (rows,).
    """

    keys: Keys
    columns: Columns
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def ranks(self) -> np.ndarray:
        """Ranks of the sources' names."""
        return self.keys.columns[-2]

    @property
    def positions(self) -> np.ndarray:
        return self.keys.columns[-1]

    def slice(self, start: int, stop: int) -> Block:
        columns: Columns = {
            name: c.slice(start, stop) if isinstance(c, Ragged) else c[start:stop]
            for name, c in self.columns.items()
        }
        return Block(self.keys.slice(start, stop), columns, self.sizes[start:stop])

    @classmethod
    def concatenate(cls, parts: Sequence[Block]) -> Block:
        return cls(
            Keys.concatenate([part.keys for part in parts]),
            {name: joined([p.columns[name] for p in parts]) for name in parts[0].columns},
            np.concatenate([part.sizes for part in parts]),
        )

    def sorted(self) -> Block:
        rows = self.keys.argsort()
        columns = {name: taken(column, rows) for name, column in self.columns.items()}
        return Block(Keys(tuple(c[rows] for c in self.keys.columns)), columns, self.sizes[rows])


class Runs:
    """Rows of several runs, read at once.

    Args:
        storage: where the runs lie.
        runs: of the cache of that storage.
        order: by which each is sorted.
    """

    def __init__(
        self, storage: Storage, schema: Schema, runs: Sequence[Manifest], order: Order
    ) -> None:
        self.runs = runs
        self.schema = schema
        self._order = order
        self._where = storage.where("shards/")
        # A snapshot of these shards, of a commit that nobody makes.
        commit = follow(
            Ledger(storage), None, operation="create", task={}, schema=schema, identity={},
            manifests=runs,
        )  # fmt: skip
        self._arrays = Arrays(storage, Snapshot.of(commit, commit.entries))
        details = in_order(
            lambda r: read_details(storage, r.shard, r.attempt), runs, DETAILS_AT_ONCE
        )
        lists = [found["sources"] for found in details]
        self.names = Names([name for names in lists for name in names])
        self._ranks = [self.names.ranks(names) for names in lists]
        self.row_sizes = [
            max(1, run_size(schema, run.rows, run.elements) // run.rows) for run in runs
        ]

    def places(self, key: tuple[object, ...]) -> np.ndarray:
        """The first row of each run that does not come before a key: int64 (runs,)."""
        limits = [bracket(run, key) for run in self.runs]
        found = np.array([low for low, _ in limits], np.int64)
        which = np.array([r for r, (low, high) in enumerate(limits) if low < high], np.int64)
        if len(which):
            starts = np.array([limits[r][0] for r in which], np.int64)
            stops = np.array([limits[r][1] for r in which], np.int64)
            order = self._order
            fields = [self.schema[order.field]] if order.kind == "by" else []
            lengths = self._lengths(fields, which, starts, stops)
            if order.field == TOKENS:
                value: np.ndarray | Ragged | None = lengths[TOKENS][0]
            else:
                columns = self._columns(fields, which, starts, stops, lengths)
                value = order_value(order, columns)
            keys = self._keys(value, which, starts, stops)
            comparable = self.names.comparable(key, words_of(order))
            at = offsets_of(stops - starts)
            for r, first, last in zip(which.tolist(), at[:-1], at[1:], strict=True):
                found[r] += keys.slice(int(first), int(last)).before(comparable)
        return found

    def read(
        self, which: np.ndarray, starts: np.ndarray, stops: np.ndarray, limit: int
    ) -> list[Block]:
        """Rows [start, stop) of some runs, or as many as `limit` bytes hold of each, at least one.

        Raises:
            CorruptData: a run is not sorted; and as `Arrays.read`.
        """
        lengths = self._lengths(self.schema.fields, which, starts, stops)
        at = offsets_of(stops - starts)
        counts = {name: found for name, (found, _) in lengths.items()}
        sizes = row_sizes(self.schema, counts, int(at[-1]))
        kept = np.zeros(len(sizes), bool)
        for i, (first, last) in enumerate(zip(at[:-1].tolist(), at[1:].tolist(), strict=True)):
            fitting = int(np.searchsorted(np.cumsum(sizes[first:last]), limit, "right"))
            stops[i] = starts[i] + max(1, fitting)
            kept[first : first + max(1, fitting)] = True
        lengths = {name: (found[kept], firsts) for name, (found, firsts) in lengths.items()}
        columns = self._columns(self.schema.fields, which, starts, stops, lengths)
        keys = self._keys(order_value(self._order, columns), which, starts, stops)
        whole = Block(keys, columns, sizes[kept])
        at = offsets_of(stops - starts)
        blocks = [whole.slice(int(first), int(last)) for first, last in itertools.pairwise(at)]
        for r, start, block in zip(which.tolist(), starts.tolist(), blocks, strict=True):
            if not block.keys.ascend():
                run = self.runs[r]
                raise CorruptData(
                    f"{self._where}{run.shard}/{run.attempt}: rows {start} to "
                    f"{start + len(block)} are not in the order {self._order}"
                )
        return blocks

    def _lengths(
        self, fields: Sequence[Field], which: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Of each field that has offsets: lengths of rows, and where those of each run begin."""
        counts = stops - starts
        inner = np.ones(int((counts + 1).sum()), bool)
        inner[offsets_of(counts + 1)[1:-1]] = False  # from one run to the next
        found = {}
        for f in fields:
            if has_offsets(f):
                first = self._arrays.bases(f, "offsets")[which] + starts
                offsets = self._arrays.read(f, "offsets", first, counts + 1)
                found[f.name] = (np.diff(offsets)[inner[1:]], offsets[offsets_of(counts + 1)[:-1]])
        return found

    def _columns(
        self,
        fields: Sequence[Field],
        which: np.ndarray,
        starts: np.ndarray,
        stops: np.ndarray,
        lengths: dict[str, tuple[np.ndarray, np.ndarray]],
    ) -> Columns:
        counts = stops - starts
        columns: Columns = {}
        for f in fields:
            bases = self._arrays.bases(f, "data")[which]
            if not f.ragged:
                columns[f.name] = self._arrays.read(f, "data", bases + starts, counts)
                continue
            found, firsts = lengths[f.like or f.name]
            offsets = offsets_of(found)
            elements = np.diff(offsets[offsets_of(counts)])
            values = self._arrays.read(f, "data", bases + firsts, elements)
            columns[f.name] = Ragged(values, offsets)
        return columns

    def _keys(
        self,
        value: np.ndarray | Ragged | None,
        which: np.ndarray,
        starts: np.ndarray,
        stops: np.ndarray,
    ) -> Keys:
        counts = stops - starts
        source, position = (
            self._arrays.read(f, "data", self._arrays.bases(f, "data")[which] + starts, counts)
            for f in (SOURCE, POSITION)
        )
        at = offsets_of(counts)
        ranks = [
            self._ranks[r][source[first:last]]
            for r, first, last in zip(which.tolist(), at[:-1], at[1:], strict=True)
        ]
        return keys_of(self._order, value, np.concatenate(ranks), position, self.names)


def merged(runs: Runs, share: Share, budget: int = MERGE_BYTES) -> Iterator[Block]:
    """The rows of a share of a merge, whose runs these are, in the order of their keys."""
    count = len(runs.runs)
    ends = np.array([run.rows for run in runs.runs], np.int64)
    at = np.zeros(count, np.int64) if share.lower is None else runs.places(share.lower)
    ends = ends if share.upper is None else runs.places(share.upper)
    limit = max(BLOCK_BYTES, budget // count)
    buffers: list[Block | None] = [None] * count
    while True:
        _fill(runs, buffers, at, ends, limit)
        open_ = [b.keys.at(-1) for r, b in enumerate(buffers) if b is not None and at[r] < ends[r]]
        bound = min(open_) if open_ else None
        ready = []
        for r, buffer in enumerate(buffers):
            if buffer is None:
                continue
            rows = len(buffer) if bound is None else buffer.keys.through(bound)
            if rows:
                ready.append(buffer.slice(0, rows))
            buffers[r] = buffer.slice(rows, len(buffer)) if rows < len(buffer) else None
        if ready:
            yield Block.concatenate(ready).sorted()
        if bound is None:
            return


def _fill(
    runs: Runs, buffers: list[Block | None], at: np.ndarray, ends: np.ndarray, limit: int
) -> None:
    """Read the next rows of all runs that have more and of which less than half a block is held."""
    held = np.array([0 if b is None else int(b.sizes.sum()) for b in buffers])
    which = np.flatnonzero((at < ends) & (2 * held < limit))
    if len(which) == 0:
        return
    rows = np.array([max(1, 2 * limit // runs.row_sizes[r]) for r in which.tolist()], np.int64)
    stops = np.minimum(at[which] + rows, ends[which])
    blocks = runs.read(which, at[which], stops, limit)
    for r, block in zip(which.tolist(), blocks, strict=True):
        at[r] += len(block)
        held_before = buffers[r]
        buffers[r] = block if held_before is None else Block.concatenate([held_before, block])
