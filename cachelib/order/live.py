"""The rows that are left where some were deleted: extents of row indices, and where they lie.

A row keeps its index for ever; a deleted one leaves a gap. An extent is a run of indices without a
gap whose rows lie side by side in one shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cachelib.format.entries import Entries
from cachelib.format.schema import Schema
from cachelib.order.cuts import cut
from cachelib.ragged import offsets_of


@dataclass(frozen=True, eq=False)
class Live:
    """Which of ``total`` row indices are left, and where their rows and values lie in storage.

    Ranks count the rows that are left, from 0 on. Storage is all shards back to back.

    Attributes:
        total: row indices that were given out.
        first: int64 (extents,), the first row index of each extent, ascending.
        stored: int64 (extents,), the place of its first row among the stored rows, ascending.
        sizes: int64 (extents,), its rows, at least 1.
        begins: for each ragged field, int64 (extents,): the place of its first value.
        elements: for each ragged field, int64 (extents,): its values.
    """

    total: int
    first: np.ndarray
    stored: np.ndarray
    sizes: np.ndarray
    begins: Mapping[str, np.ndarray]
    elements: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, entries: Entries, schema: Schema) -> Live | None:
        """Which rows of all entries of a cache are left; None where all are."""
        e = entries.extents
        if e is None:
            return None
        owners = {f.name: f.like or f.name for f in schema.fields if f.ragged}
        bases = {name: offsets_of(counts)[e.entry] for name, counts in entries.elements.items()}
        return cls(
            total=int(entries.row_spans.sum()),
            first=e.first + offsets_of(entries.row_spans)[e.entry],
            stored=e.stored + offsets_of(entries.rows)[e.entry],
            sizes=e.rows,
            begins={f: e.begins[owner] + bases[owner] for f, owner in owners.items()},
            elements={f: e.elements[owner] for f, owner in owners.items()},
        )

    @property
    def count(self) -> int:
        """How many rows are left."""
        return int(self._before[-1])

    def rows(self, ranks: np.ndarray) -> np.ndarray:
        """The row indices, int64, of int64 ranks in [0, count)."""
        extents = np.searchsorted(self._before, ranks, side="right") - 1
        return self.first[extents] + ranks - self._before[extents]

    def ranks(self, rows: np.ndarray) -> np.ndarray:
        """How many rows are left before each int64 row index in [0, total]; int64."""
        extents = self._extents(rows)
        inside = np.minimum(rows - self._firsts[extents], self._sizes[extents])
        return np.append(0, self._before)[extents + 1] + inside

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Whether the row of each int64 index in [0, total) is left; bool."""
        extents = self._extents(rows)
        return rows - self._firsts[extents] < self._sizes[extents]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """The place among the stored rows, int64, of int64 row indices that are left."""
        extents = np.searchsorted(self.first, rows, side="right") - 1
        return self.stored[extents] + rows - self.first[extents]

    def rows_stored(self, places: np.ndarray) -> np.ndarray:
        """The row index of each int64 place among the stored rows, int64; -1 if it is deleted."""
        extents = np.searchsorted(self.stored, places, side="right") - 1
        inside = places - np.append(self.stored, 0)[extents]
        found = (extents >= 0) & (inside < np.append(self.sizes, 0)[extents])
        return np.where(found, np.append(self.first, 0)[extents] + inside, -1)

    def gaps(self) -> list[list[int]]:
        """The runs of indices without a row, as [start, stop], ascending."""
        starts = np.append(0, self.first + self.sizes)
        stops = np.append(self.first, self.total)
        found = np.stack([starts, stops], axis=1)
        return found[stops > starts].tolist()

    def values(self, field: str) -> int:
        """The values of a ragged field in the rows that are left."""
        return int(self._values_before[field][-1])

    def slices(
        self, field: str, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where slices of the values of the rows that are left lie.

        Args:
            field: a ragged one.
            starts, lengths: int64 (n,); each start..start+length lies inside [0, values).

        Returns:
            Places and lengths of pieces, int64 (pieces,): back to back they are the slices.
        """
        cuts = cut(starts, starts + lengths, self._values_before[field])
        return self.begins[field][cuts.shards] + cuts.starts, cuts.sizes

    def value_places(self, field: str, positions: np.ndarray) -> np.ndarray:
        """The place of each int64 position among the values of the rows that are left; int64."""
        before = self._values_before[field]
        extents = np.searchsorted(before, positions, side="right") - 1
        return self.begins[field][extents] + positions - before[extents]

    def positions(self, field: str, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Where values of rows that are left, stored at int64 places (n,), come among the values of
        all rows that are left; int64 (n,)."""
        extents = np.searchsorted(self.first, rows, side="right") - 1
        return self._values_before[field][extents] + places - self.begins[field][extents]

    def values_before(self, field: str, rows: np.ndarray) -> np.ndarray:
        """The values of a field in the rows left before each row index where an extent begins or
        after which none is left; int64 of the shape of rows."""
        extents = np.searchsorted(self.first, rows, side="left")
        return self._values_before[field][extents]

    @cached_property
    def _before(self) -> np.ndarray:
        return offsets_of(self.sizes)

    @cached_property
    def _values_before(self) -> dict[str, np.ndarray]:
        return {name: offsets_of(counts) for name, counts in self.elements.items()}

    # An empty extent below all others stands for the indices before the first one; `_extents`
    # gives it number -1, which is also that of the last place of these.

    @cached_property
    def _firsts(self) -> np.ndarray:
        return np.append(self.first, 0)

    @cached_property
    def _sizes(self) -> np.ndarray:
        return np.append(self.sizes, 0)

    def _extents(self, rows: np.ndarray) -> np.ndarray:
        """The last extent that begins at or before each row index, or -1."""
        return np.searchsorted(self.first, rows, side="right") - 1
