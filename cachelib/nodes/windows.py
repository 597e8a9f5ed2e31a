"""Windows over one ragged field of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib import segments
from cachelib.nodes.base import Columns, Origin, Stream, Version, traced
from cachelib.order.windows import WindowGrid
from cachelib.ragged import Ragged


@dataclass(frozen=True)
class Windows:
    """Windows over one field of a stream.

    Attributes:
        documents: tell the documents of a window apart: columns ``segment_ids`` and ``positions``.
        targets: how the column ``labels`` is made, None for none.
    """

    stream: Stream
    field: str
    grid: WindowGrid
    documents: bool = False
    targets: segments.Targets | None = None

    @property
    def size(self) -> int:
        return self.grid.count

    @property
    def version(self) -> Version:
        return self.stream.version

    @property
    def row_bytes(self) -> float:
        told = 2 * self.documents + (self.targets is not None)  # columns of int32
        return self.grid.length * (self.stream.value_bytes(self.field) + 4 * told)

    def take(self, indices: np.ndarray) -> Columns:
        starts = self.grid.starts(indices)
        if self.grid.tail == "short":
            return {self.field: self._short(indices, starts)}
        if not self.documents and self.targets is None:
            return {self.field: self.stream.read_elements(self.field, starts, self.grid.length)}
        return self._told(starts)

    def origins(self, index: int) -> list[Origin]:
        at = np.array([index], np.int64)
        start, length = int(self.grid.starts(at)[0]), int(self.grid.lengths(at)[0])
        owners = self.stream.rows_at(self.field, np.arange(start, start + length))
        return [origin for row in np.unique(owners) for origin in self.stream.origins(int(row))]

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        return traced(indices, epoch)

    def in_epoch(self, epoch: int) -> Windows:
        return self

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "windows",
            "field": self.field,
            "elements": self.grid.elements,
            "length": self.grid.length,
            "stride": self.grid.stride,
            "tail": self.grid.tail,
            "of": self.stream.describe(),
        }

    def _short(self, indices: np.ndarray, starts: np.ndarray) -> Ragged:
        lengths = self.grid.lengths(indices)
        whole = lengths == self.grid.length
        block = self.stream.read_elements(self.field, starts[whole], self.grid.length)
        values = np.empty((int(lengths.sum()), *block.shape[2:]), block.dtype)
        from_block = np.repeat(whole, lengths)
        values[from_block] = block.reshape(-1, *block.shape[2:])
        if not whole.all():
            length = int(lengths[~whole][0])
            tail = self.stream.read_elements(self.field, starts[~whole], length)
            values[~from_block] = tail.reshape(-1, *block.shape[2:])
        return Ragged.from_lengths(values, lengths)

    def _told(self, starts: np.ndarray) -> Columns:
        """Tokens with segments and labels. Shifted labels take one token more than the window."""
        length = self.grid.length
        more = 1 if self.targets == "shifted" else 0
        fits = starts + length + more <= self.grid.elements  # all but the last window, perhaps
        ids = np.zeros((len(starts), length + more), np.int32)
        none = self.stream.read_elements(self.field, starts[:0], length + more)
        tokens = np.zeros((len(starts), *none.shape[1:]), none.dtype)
        for chosen, width in ((fits, length + more), (~fits, length)):
            if chosen.any():
                part = starts[chosen]
                tokens[chosen, :width] = self.stream.read_elements(self.field, part, width)
                ids[chosen, :width] = self._segments(part, width) if self.documents else 1
        columns: Columns = {self.field: tokens[:, :length]}
        if self.documents:
            columns["segment_ids"] = ids[:, :length]
            columns["positions"] = segments.positions(ids[:, :length])
        if self.targets is not None:
            columns["labels"] = segments.labels(tokens, ids, self.targets)[:, :length]
        return columns

    def _segments(self, starts: np.ndarray, length: int) -> np.ndarray:
        ids = np.ones((len(starts), length), np.int32)
        edges = np.stack([starts, starts + (length - 1)], axis=1)
        first, last = self.stream.rows_at(self.field, edges).T
        several = np.flatnonzero(first != last)
        places = starts[several, None] + np.arange(length)
        ids[several] = segments.segment_ids(self.stream.rows_at(self.field, places))
        return ids


def windows(
    stream: Stream,
    field: str,
    grid: WindowGrid,
    documents: bool = False,
    targets: segments.Targets | None = None,
) -> Windows:
    """Windows over one field of a stream, as `Windows` has them.

    Raises:
        ValueError: documents or targets of windows that are not all of one length, targets of a
            field that holds no token ids, or a field of the name of a column that is added.
    """
    if grid.tail == "short" and (documents or targets):
        raise ValueError("documents and targets need windows of one length: use tail='drop'")
    added = ["segment_ids", "positions"] if documents else []
    added += ["labels"] if targets is not None else []
    if field in added:
        raise ValueError(f"there would be two columns {field!r}: documents and targets add {added}")
    if targets is not None:
        segments.check_targets(targets)
        one = stream.read_elements(field, np.empty(0, np.int64), 1)
        segments.check_ids(field, one.reshape(-1, *one.shape[2:]), targets)
    return Windows(stream, field, grid, documents, targets)
