"""Runs: the parts of a plan whose rows are stored in another order, sorted one by one.

They lie in a cache of their own below that of the plan, `_runs/<plan>/`, with a plan and a ledger
like any other, until they are merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cachelib.format.schema import Schema
from cachelib.format.shard import Cover, Manifest, ShardWriter, has_offsets
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from pipelines.order.keys import Columns, Keys, Names, Sampler, keys_of, row_sizes
from pipelines.order.orders import TOKENS, Order
from pipelines.plan import Plan, make_waves

RUNS = "_runs/"

BLOCK_ROWS = 4096
"""Rows that are put in order and written at once."""


def runs_storage(storage: Storage, name: str) -> Storage:
    """Where the runs of the plan of that name lie, given where its cache does."""
    return Storage(f"{storage.url}{RUNS}{name}/")


def runs_plan(plan: Plan) -> Plan:
    """The plan by which the runs of a plan are written: the same splits, in waves of its own."""
    waves = make_waves(plan.splits, plan.split_bytes)
    return replace(plan, parent="", parent_version=-1, waves=waves)


def parts_of(storage: Storage, plan: Plan, name: str) -> tuple[Storage, Plan, str]:
    """Where the parts of a plan are written, by which plan, and its name."""
    if not plan.order.sorts:
        return storage, plan, name
    own = runs_plan(plan)
    return runs_storage(storage, name), own, own.name


def order_value(order: Order, columns: Mapping[str, np.ndarray | Ragged]) -> Any:
    """The column that an order is by, lengths for `by(tokens)`; None for a shuffle."""
    if order.kind != "by":
        return None
    column = columns[order.field]
    return column.lengths if order.field == TOKENS and isinstance(column, Ragged) else column


def taken(column: np.ndarray | Ragged, rows: np.ndarray) -> np.ndarray | Ragged:
    """The rows of a column, in the order asked."""
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def joined(columns: Sequence[np.ndarray | Ragged]) -> np.ndarray | Ragged:
    """Columns one after another."""
    if isinstance(columns[0], Ragged):
        return Ragged.concatenate(columns)  # type: ignore[arg-type]
    return np.concatenate(columns) if len(columns) > 1 else columns[0]  # type: ignore[arg-type]


def lengths_of(schema: Schema, columns: Mapping[str, np.ndarray | Ragged]) -> dict[str, np.ndarray]:
    """The lengths of rows in each field that has offsets."""
    found = {f.name: columns[f.name] for f in schema.fields if has_offsets(f)}
    return {name: column.lengths for name, column in found.items()}  # type: ignore[union-attr]


@dataclass
class RunWriter:
    """Takes in the rows of one part in any order and writes them sorted, when it is finished.

    It holds them until then, so that memory grows with the part; used as `ShardWriter` is.
    """

    storage: Storage
    schema: Schema
    shard: str
    order: Order
    _sources: list[np.ndarray] = field(default_factory=list)
    _positions: list[np.ndarray] = field(default_factory=list)
    _columns: list[Mapping[str, np.ndarray | Ragged]] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._writer = ShardWriter(self.storage, self.schema, self.shard)
        self.reject = self._writer.reject

    def source(self, name: str) -> int:
        """As `ShardWriter.source`."""
        return self._names.setdefault(name, len(self._names))

    def append(
        self,
        columns: Mapping[str, np.ndarray | Ragged],
        sources: np.ndarray,
        positions: np.ndarray,
    ) -> None:
        """As `ShardWriter.append`."""
        self._columns.append(columns)
        self._sources.append(sources)
        self._positions.append(positions)

    def finish(
        self, *, covers: Sequence[Cover], counts: Mapping[str, int], task: Mapping[str, Any]
    ) -> Manifest:
        """As `ShardWriter.finish`; the manifest's task holds samples of the keys as well."""
        samples, size = Sampler(0, 0), 0
        if self._columns:
            columns: Columns = {
                name: joined([part[name] for part in self._columns]) for name in self.schema.names
            }
            self._columns.clear()
            names = Names(list(self._names))
            ranks = names.ranks(list(self._names))[np.concatenate(self._sources)]
            positions = np.concatenate(self._positions)
            keys = keys_of(self.order, order_value(self.order, columns), ranks, positions, names)
            sizes = row_sizes(self.schema, lengths_of(self.schema, columns), len(positions))
            size = int(sizes.sum())
            samples = Sampler(len(positions), size)
            order = keys.argsort()
            samples.add(Keys(tuple(c[order] for c in keys.columns)), sizes[order], names)
            for first in range(0, len(order), BLOCK_ROWS):
                rows = order[first : first + BLOCK_ROWS]
                block = {name: taken(column, rows) for name, column in columns.items()}
                write_rows(self._writer, block, ranks[rows], positions[rows], names)
        task = {**task, "samples": samples.to_json(), "size": size}
        return self._writer.finish(covers=covers, counts=counts, task=task)


def write_rows(
    writer: ShardWriter, columns: Columns, ranks: np.ndarray, positions: np.ndarray, names: Names
) -> None:
    """Append rows whose sources are given by the ranks of their names."""
    used, places = np.unique(ranks, return_inverse=True)
    sources = np.array([writer.source(names.sorted[rank]) for rank in used.tolist()], np.uint32)
    writer.append(columns, sources[places], positions)
