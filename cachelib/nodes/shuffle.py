"""All rows of a node in a pseudo-random order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cachelib.nodes.base import Columns, Node, Origin, Version
from cachelib.order import seeds
from cachelib.order.permutation import Permutation


@dataclass(frozen=True)
class Shuffle:
    """All rows of a node in a pseudo-random order."""

    child: Node
    seed: int

    @property
    def size(self) -> int:
        return self._permutation.size

    @property
    def version(self) -> Version:
        return self.child.version

    def order(self, indices: np.ndarray) -> np.ndarray:
        """Which rows of the child stand at int64 indices in [0, size); int64."""
        return self._permutation.apply(indices)

    def take(self, indices: np.ndarray) -> Columns:
        return self.child.take(self.order(indices))

    def origins(self, index: int) -> list[Origin]:
        return self.child.origins(int(self.order(np.array([index], np.int64))[0]))

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        return self.child.trace(self.order(indices), epoch)

    def in_epoch(self, epoch: int) -> Shuffle:
        return Shuffle(self.child.in_epoch(epoch), seeds.of_epoch(self.seed, epoch))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "shuffle",
            "seed": self.seed,
            "rows": self.size,
            "of": self.child.describe(),
        }

    @cached_property
    def _permutation(self) -> Permutation:
        size = self.child.size
        assert size is not None
        return Permutation(size, seeds.derive("shuffle", self.seed))
