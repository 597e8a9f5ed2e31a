"""Changes: what a compaction or a deletion puts in the place of shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from cachelib.format.entries import Entries, Replacement
from cachelib.format.schema import POSITION, SOURCE, Schema
from cachelib.format.shard import has_offsets, read_details
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.nodes.where import Comparisons
from cachelib.reading.scan import Scan
from pipelines.maintenance.groups import groups
from pipelines.maintenance.rewriting import has_rejects, packed, rows_stored, thinned


@dataclass(frozen=True)
class Compaction:
    """Many small shards become few large ones; the bytes of deleted rows are dropped.

    Attributes:
        target: bytes of values in a shard, at most, unless one row has more.
    """

    target: int
    operation: Literal["compact"] = "compact"

    def units(self, snapshot: Snapshot) -> list[range]:
        """The runs of shards that become one each."""
        schema, entries = snapshot.commit.schema, snapshot.entries
        left, number = entries.left, len(entries)
        rows = np.bincount(left.entry, left.rows, number).astype(np.int64)
        elements = {
            name: np.bincount(left.entry, counts, number).astype(np.int64)
            for name, counts in left.elements.items()
        }
        sizes = _bytes(schema, rows, elements)
        waste = _bytes(schema, entries.rows, entries.elements) - sizes
        borders = np.searchsorted(snapshot.row_bases, snapshot.eras)
        return list(groups(sizes, waste, borders, self.target))

    def replacement(
        self, storage: Storage, schema: Schema, entries: Entries, first_row: int
    ) -> Replacement | None:
        """What stands for a run of shards."""
        return Replacement(entries.shard, packed(storage, schema, entries))


@dataclass(frozen=True)
class Deletion:
    """Rows are no longer there, if all that is given here holds for them.

    Attributes:
        sources: names, one of which is that of a row's source; * and ? stand for anything; () any.
        comparisons: what holds for its columns, as of `Dataset.where`; () anything.
        rows: ranges [start, stop) of row indices, one of which holds it; () any.
    """

    sources: tuple[str, ...] = ()
    comparisons: tuple[tuple[str, str, Any], ...] = ()
    rows: tuple[tuple[int, int], ...] = ()
    operation: Literal["delete"] = "delete"

    def units(self, snapshot: Snapshot) -> list[range]:
        """The shards that may hold such rows, one by one."""
        numbers: Sequence[int] = range(len(snapshot.entries))
        if self.rows:
            bases = snapshot.row_bases
            touched = [
                range(
                    int(np.searchsorted(bases, start, side="right")) - 1,
                    int(np.searchsorted(bases, stop, side="left")),
                )
                for start, stop in self.rows
            ]
            numbers = sorted({n for each in touched for n in each if 0 <= n < len(numbers)})
        return [range(number, number + 1) for number in numbers]

    def forgets(self, source: str) -> bool:
        """Whether all of a source is to go, so that its rejects go, too."""
        return bool(self.sources) and not self.comparisons and not self.rows and self._has(source)

    def replacement(
        self, storage: Storage, schema: Schema, entries: Entries, first_row: int
    ) -> Replacement | None:
        """A shard with fewer rows, or None where it holds none of them."""
        wanted = np.zeros(int(entries.rows[0]), np.bool_)
        if len(wanted):
            wanted = self._wanted(storage, schema, entries, first_row)
        if self.sources and has_rejects(storage, entries, self.forgets):
            entry = thinned(storage, schema, entries, ~wanted) if wanted.any() else entries
            return Replacement(entries.shard, packed(storage, schema, entry, self.forgets))
        if not wanted.any():
            return None
        return Replacement(entries.shard, thinned(storage, schema, entries, ~wanted))

    def _has(self, source: str) -> bool:
        # Escaped, since [ in a name would begin a set of characters.
        return any(fnmatchcase(source, name.replace("[", "[[]")) for name in self.sources)

    def _wanted(
        self, storage: Storage, schema: Schema, entry: Entries, first_row: int
    ) -> np.ndarray:
        """Of each row in the arrays of a shard whether it is to go; bool (rows,)."""
        scan = Scan.of(storage, schema, entry, 0)
        index = rows_stored(entry)
        wanted = index >= 0
        if self.rows:
            inside = np.zeros(len(wanted), np.bool_)
            for start, stop in self.rows:
                inside |= (index + first_row >= start) & (index + first_row < stop)
            wanted &= inside
        if self.sources and wanted.any():
            names = read_details(storage, scan.shard, scan.attempt)["sources"]
            matching = np.array([self._has(name) for name in names])
            wanted &= matching[scan.column(SOURCE, 0, scan.rows)]
        if self.comparisons and wanted.any():
            condition = Comparisons(self.comparisons)
            fields = [schema[name] for name in condition.columns]
            asked = [condition(columns) for _, columns in scan.blocks(fields)]
            wanted &= np.concatenate(asked)
        return wanted


Change = Compaction | Deletion


def _bytes(schema: Schema, rows: np.ndarray, elements: dict[str, np.ndarray]) -> np.ndarray:
    """Bytes of the values of shards with these rows and elements; int64 (shards,)."""
    total = rows * sum(np.dtype(f.dtype).itemsize for f in (SOURCE, POSITION))
    for f in schema.fields:
        size = np.dtype(f.dtype).itemsize * int(np.prod(f.shape, dtype=np.int64))
        total = total + size * (elements[f.like or f.name] if f.ragged else rows)
        total = total + (8 * rows if has_offsets(f) else 0)
    return total
