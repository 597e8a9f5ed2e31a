"""Nodes: the links of which a dataset is a chain.

Each node is small and frozen, and answers ``take`` by asking the node it stands on for other
indices, so an order costs no memory and no start-up time, and any position of it is reached at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cachelib.order import seeds
from cachelib.order.permutation import Permutation
from cachelib.order.windows import WindowGrid
from cachelib.ragged import Ragged

Columns = dict[str, Any]
"""Rows by column: arrays of shape (n, *shape), or `Ragged` of n rows where the lengths vary."""


class Rows(Protocol):
    """What a dataset stands on; a `cachelib.cache.Cache` is one."""

    def __len__(self) -> int: ...
    def take(self, indices: np.ndarray, fields: Sequence[str] | None = None) -> Columns: ...
    def elements(self, field: str) -> int: ...
    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray: ...
    def identity(self) -> dict[str, Any]: ...


class Node(Protocol):
    """One link of the chain: frozen, thread-safe, picklable."""

    @property
    def size(self) -> int | None:
        """Number of rows; None where they never end."""

    @property
    def version(self) -> int:
        """The ledger version that is read: no part of the order, but where to find it again."""

    def take(self, indices: np.ndarray) -> Columns:
        """The rows at int64 indices in [0, size), in that order, repeats allowed."""

    def in_epoch(self, epoch: int) -> Node:
        """The same rows as a pass number ``epoch`` over them has them; pass 0 is the node."""

    def describe(self) -> dict[str, Any]:
        """What the order depends on, as JSON: ``kind``, facts, and the node below as ``of``."""


class Ordered(Protocol):
    """What a loader reads: a dataset."""

    @property
    def size(self) -> int | None: ...
    @property
    def version(self) -> int: ...
    def take(self, indices: np.ndarray) -> Columns: ...
    def describe(self) -> dict[str, Any]: ...
    def epoch_of(self, position: int) -> int: ...


@runtime_checkable
class Stream(Protocol):
    """A node whose ragged fields can be read across rows."""

    def elements(self, field: str) -> int: ...
    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Stored:
    """The rows of a cache, in stored order."""

    rows: Rows
    fields: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def version(self) -> int:
        return int(self.rows.identity()["version"])

    def take(self, indices: np.ndarray) -> Columns:
        return self.rows.take(indices, self.fields)

    def elements(self, field: str) -> int:
        return self.rows.elements(field)

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        return self.rows.read_elements(field, starts, length)

    def in_epoch(self, epoch: int) -> Stored:
        return self

    def describe(self) -> dict[str, Any]:
        identity = self.rows.identity()
        return {"kind": "cache", **{k: v for k, v in identity.items() if k != "version"}}


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


@dataclass(frozen=True)
class Shuffle:
    """All rows of a node in a pseudo-random order."""

    child: Node
    seed: int

    @property
    def size(self) -> int:
        return self._permutation.size

    @property
    def version(self) -> int:
        return self.child.version

    def order(self, indices: np.ndarray) -> np.ndarray:
        """Which rows of the child stand at int64 indices in [0, size); int64."""
        return self._permutation.apply(indices)

    def take(self, indices: np.ndarray) -> Columns:
        return self.child.take(self.order(indices))

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
    def version(self) -> int:
        return self.child.version

    def epoch_of(self, position: int) -> int:
        return self.first + position // self._rows

    def take(self, indices: np.ndarray) -> Columns:
        epochs, positions = np.divmod(indices, np.int64(self._rows))
        parts, places = [], []
        for epoch in np.unique(epochs):
            place = np.flatnonzero(epochs == epoch)
            parts.append(self.child.in_epoch(self.first + int(epoch)).take(positions[place]))
            places.append(place)
        return _woven(parts, places) if parts else self.child.take(positions)

    def in_epoch(self, epoch: int) -> Repeat:
        # Passes are numbered through, so that no two passes of nested repeats share an order.
        if self.times is None:
            return self
        return replace(self, first=epoch * self.times)

    def describe(self) -> dict[str, Any]:
        # How often changes nothing about what stands at a position, so a run may be prolonged.
        return self.child.describe()

    @property
    def _rows(self) -> int:
        rows = self.child.size
        assert rows is not None
        return rows


def _woven(parts: Sequence[Columns], places: Sequence[np.ndarray]) -> Columns:
    """One set of columns whose row places[k][i] is row i of part k; at least one part."""
    if len(parts) == 1:
        return parts[0]
    back = np.argsort(np.concatenate(places))
    columns: Columns = {}
    for name, first in parts[0].items():
        column = [part[name] for part in parts]
        if isinstance(first, Ragged):
            columns[name] = Ragged.concatenate(column).take(back)
        else:
            columns[name] = np.concatenate(column)[back]
    return columns
