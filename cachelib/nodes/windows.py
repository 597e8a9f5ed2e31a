"""Windows over one ragged field of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib.nodes.base import Columns
from cachelib.order.windows import WindowGrid
from cachelib.ragged import Ragged


@dataclass(frozen=True)
class Windows:
    """Windows over one field of a stream."""

    stream: Any
    field: str
    grid: WindowGrid

    @property
    def size(self) -> int:
        return self.grid.count

    @property
    def version(self) -> int:
        return self.stream.version

    @property
    def row_bytes(self) -> float:
        elements = max(self.grid.elements, 1)
        return self.grid.length * self.stream.nbytes([self.field]) / elements

    def take(self, indices: np.ndarray) -> Columns:
        starts = self.grid.starts(indices)
        if self.grid.tail == "drop":
            return {self.field: self.stream.read_elements(self.field, starts, self.grid.length)}
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
        return {self.field: Ragged.from_lengths(values, lengths)}

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
