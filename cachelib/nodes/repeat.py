"""Pass after pass over a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cachelib.nodes.base import (
    Columns,
    Node,
    Origin,
    Version,
    described,
    grouped,
    grows,
    ready,
    wait,
)


@dataclass(frozen=True)
class Repeat:
    """Pass after pass over a finite node, numbered from ``first``; ``times`` None never ends.

    Where the node may get more rows, the first pass lasts until it is known that it does not.
    """

    child: Node
    times: int | None
    first: int = 0

    @property
    def size(self) -> int | None:
        rows = self.child.size
        return None if self.times is None or rows is None else self.times * rows

    @property
    def grows(self) -> bool:
        return grows(self.child)

    def ready(self, stop: int) -> bool:
        return self.child.size is not None or ready(self.child, stop)

    def wait(self, stop: int, through: str, given_up: Callable[[], bool]) -> None:
        if self.child.size is None:
            wait(self.child, stop, through, given_up)

    @property
    def version(self) -> Version:
        return self.child.version

    def epoch_of(self, position: int) -> int:
        rows = self.child.size
        return self.first if rows is None else self.first + position // max(rows, 1)

    def take(self, indices: np.ndarray) -> Columns:
        def of(number: int, positions: np.ndarray) -> Columns:
            return self.child.in_epoch(number).take(positions)

        return self._by_epoch(indices, of)

    def origins(self, index: int) -> list[Origin]:
        epochs, positions = self._passes(np.array([index], np.int64))
        return self.child.in_epoch(self.first + int(epochs[0])).origins(int(positions[0]))

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
        return self.describe_until(None)

    def describe_until(self, position: int | None) -> dict[str, Any]:
        # How often changes nothing about what stands at a position, so a run may be prolonged.
        if position is None or not self.grows:
            return self.child.describe()
        wait(self.child, position)
        rows = self.child.size
        if rows is None or position <= rows:
            return described(self.child, position)
        return {"kind": "repeat", "rows": rows, "of": described(self.child, rows)}

    def _by_epoch(self, indices: np.ndarray, of: Callable[[int, np.ndarray], Columns]) -> Columns:
        """What ``of`` gives for each pass and the positions in it, in the order of indices."""
        epochs, positions = self._passes(indices)
        return grouped(epochs, positions, lambda epoch, at: of(self.first + epoch, at))

    def _passes(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The passes that indices lie in, from 0 on, and the rows of them; int64 (n,) each."""
        if len(indices) and self.child.size is None:
            wait(self.child, int(indices.max()) + 1)
        rows = self.child.size
        if rows is None or not len(indices):
            return np.zeros_like(indices), indices
        if rows == 0:
            raise IndexError("what is repeated was completed without a single row")
        return np.divmod(indices, np.int64(rows))
