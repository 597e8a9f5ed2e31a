"""The rows of a cache that are left where some were deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cachelib.nodes.base import Columns, Node, Origin, Rows, Slices
from cachelib.nodes.stored import Stored
from cachelib.order.live import Live


@runtime_checkable
class Thinned(Protocol):
    """Rows of a cache of which some may be deleted."""

    @property
    def live(self) -> Live | None:
        """Which rows are left; None where all are."""


@dataclass(frozen=True)
class Left:
    """The rows of a cache that are left, counted over the gaps; a stream.

    Attributes:
        child: all rows of the cache, by index.
        selection: which of them are left.
    """

    child: Stored
    selection: Live = field(compare=False, repr=False)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What tells this selection from others: the cache's identity does."""
        return {"kind": "left"}

    @property
    def size(self) -> int:
        return self.selection.count

    @property
    def version(self) -> int:
        return self.child.version

    @property
    def relayed(self) -> tuple[Node, ...]:
        return (self.child,)

    @property
    def row_bytes(self) -> float:
        return self.child.row_bytes

    def take(self, indices: np.ndarray) -> Columns:
        return self.child.take(self.selection.rows(indices))

    def origins(self, index: int) -> list[Origin]:
        return self.child.origins(int(self.selection.rows(np.array([index], np.int64))[0]))

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        return self.child.trace(self.selection.rows(indices), epoch)

    def in_epoch(self, epoch: int) -> Left:
        return self

    def describe(self) -> dict[str, Any]:
        return self.child.describe()

    # As a stream: that of the cache, which has no values of deleted rows.

    def alike(self, field: str) -> tuple[str, ...]:
        return self.child.alike(field)

    def elements(self, field: str) -> int:
        return self.child.elements(field)

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        return self.child.read_elements(field, starts, length)

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        return self.selection.ranks(self.child.rows_at(field, positions))

    def value_bytes(self, field: str) -> float:
        return self.child.value_bytes(field)

    def slices(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> Slices:
        return self.child.slices(field, starts, lengths)

    def places(self, field: str) -> int:
        return self.child.places(field)

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.child.spans(field, self.selection.rows(rows))

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self.child.read_spans(field, starts, lengths)

    def pick(self, fields: Sequence[str], rows: np.ndarray) -> Columns:
        return self.child.pick(fields, self.selection.rows(rows))


def stored(rows: Rows, fields: tuple[str, ...] | None) -> Stored | Left:
    """The rows of a cache that there are, in stored order."""
    node = Stored(rows, fields)
    live = rows.live if isinstance(rows, Thinned) else None
    return node if live is None else Left(node, live)
