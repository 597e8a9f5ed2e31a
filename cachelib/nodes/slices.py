"""Some rows of a node that follow one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib.nodes.base import Columns, Node, Origin, Version, described


@dataclass(frozen=True)
class Slice:
    """Rows [start, stop) of a node, as its first pass has them."""

    child: Node
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def version(self) -> Version:
        return self.child.version

    @property
    def relayed(self) -> tuple[Node, ...]:
        return (self.child,)

    @property
    def row_bytes(self) -> float:
        child: Any = self.child
        return float(child.row_bytes)

    def take(self, indices: np.ndarray) -> Columns:
        return self.child.take(indices + np.int64(self.start))

    def origins(self, index: int) -> list[Origin]:
        return self.child.origins(self.start + index)

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        return self.child.trace(indices + np.int64(self.start), epoch)

    def in_epoch(self, epoch: int) -> Slice:
        # Rows set apart stay apart: another pass of a shuffle below would have other rows here.
        return self

    def describe(self) -> dict[str, Any]:
        below = described(self.child, self.stop)
        return {"kind": "slice", "start": self.start, "stop": self.stop, "of": below}
