"""Pass after pass over a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cachelib.nodes.base import Columns, Node, Origin, Version, grouped


@dataclass(frozen=True)
class Repeat:
    """Pass after pass over a finite node, numbered from ``first``; ``times`` None never ends."""

    child: Node
    times: int | None
    first: int = 0

    @property
    def size(self) -> int | None:
        return None if self.times is None else self.times * self._rows

    @property
    def version(self) -> Version:
        return self.child.version

    def epoch_of(self, position: int) -> int:
        return self.first + position // self._rows

    def take(self, indices: np.ndarray) -> Columns:
        def of(number: int, positions: np.ndarray) -> Columns:
            return self.child.in_epoch(number).take(positions)

        return self._by_epoch(indices, of)

    def origins(self, index: int) -> list[Origin]:
        epoch, position = divmod(index, self._rows)
        return self.child.in_epoch(self.first + epoch).origins(position)

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        def of(number: int, positions: np.ndarray) -> Columns:
            return self.child.in_epoch(number).trace(positions, number)

        return self._by_epoch(indices, of)

    def in_epoch(self, epoch: int) -> Repeat:
        # Passes are numbered through, so that no two passes of nested repeats share an order.
        if self.times is None:
            return self
        return replace(self, first=epoch * self.times)

    def describe(self) -> dict[str, Any]:
        # How often changes nothing about what stands at a position, so a run may be prolonged.
        return self.child.describe()

    def _by_epoch(self, indices: np.ndarray, of: Callable[[int, np.ndarray], Columns]) -> Columns:
        """What ``of`` gives for each pass and the positions in it, in the order of indices."""
        epochs, positions = np.divmod(indices, np.int64(self._rows))
        return grouped(epochs, positions, lambda epoch, at: of(self.first + epoch, at))

    @property
    def _rows(self) -> int:
        rows = self.child.size
        assert rows is not None
        return rows
