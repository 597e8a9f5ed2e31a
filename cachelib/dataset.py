"""Dataset: a length and ``take``, and the combinators that make one dataset of another.

A dataset is a chain of small frozen nodes. Each answers ``take`` by asking the node it stands on
for other indices, so an order costs no memory and no start-up time, and any position of it is
reached at once:

    web = cachelib.open("web").windows(2048).shuffle(seed=0).repeat()
    web.take([10**12])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np

from cachelib.loader import Loader
from cachelib.order import seeds
from cachelib.order.batches import Last
from cachelib.order.indices import LARGEST, as_indices, as_integer
from cachelib.order.permutation import Permutation
from cachelib.order.windows import Tail, WindowGrid
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


@runtime_checkable
class Stream(Protocol):
    """A node whose ragged fields can be read across rows."""

    def elements(self, field: str) -> int: ...
    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Dataset:
    """Rows in a defined order. Thread-safe and picklable where what it stands on is.

    The order is a pure function of what ``describe`` tells: no state, no start-up scan, and the
    same on every host.
    """

    node: Node

    @property
    def size(self) -> int | None:
        """Number of rows; None for an endless dataset."""
        return self.node.size

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError("an endless dataset has no length: its size is None")
        return self.size

    def take(self, indices: Iterable[SupportsIndex] | np.ndarray) -> Columns:
        """The rows at ``indices``, in that order, repeats allowed.

        Args:
            indices: a one-dimensional array of any integer type, or an iterable of integers, each
                in [-size, size); an endless dataset has none below 0.

        Returns:
            A column for each field: an array of shape (n, *shape), or a `Ragged` of n rows.

        Raises:
            IndexError: an index is outside; names it and the size.
            TypeError: bools, floats, or anything else that is no integer.
        """
        return self.node.take(as_indices(indices, self.size))

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """One row, a value for each field: shape ``shape``, or (elements, *shape) if ragged."""
        return {name: column[0] for name, column in self.take([index]).items()}

    def windows(
        self,
        length: SupportsIndex,
        *,
        stride: SupportsIndex | None = None,
        tail: Tail = "drop",
        field: str = "tokens",
    ) -> Dataset:
        """Windows over a ragged field, crossing rows and shards: row i begins at i * stride.

        Args:
            length: elements of a window.
            stride: distance of two starts, from 1 to ``length``; None means ``length``.
            tail: "drop" leaves out the elements after the last full window; "short" makes them
                a last, shorter one.
            field: the ragged field that is read.

        Returns:
            A dataset of one column, named as the field and of its dtype: an array of shape
            (n, length, *shape) for tail "drop", always a `Ragged` for tail "short".

        Raises:
            ValueError: on anything but the rows of a cache in stored order. Shuffle the windows
                instead of windowing what is shuffled.
        """
        if not isinstance(self.node, Stream):
            kind = type(self.node).__name__.lower()
            raise ValueError(
                f"windows run over the rows of a cache in stored order, not over its {kind}: "
                "call windows() first, as in cache.windows(length).shuffle(seed)"
            )
        length = as_integer("length", length)
        stride = length if stride is None else as_integer("stride", stride)
        grid = WindowGrid(self.node.elements(field), length, stride, tail)
        return Dataset(Windows(self.node, field, grid))

    def shuffle(self, seed: SupportsIndex) -> Dataset:
        """All rows in a pseudo-random order, by a permutation that depends on seed and size only.

        Args:
            seed: any integer; nearby seeds give unrelated orders.

        Raises:
            ValueError: the dataset is endless; shuffle before repeat().
        """
        if self.size is None:
            raise ValueError("an endless dataset cannot be shuffled: call shuffle() first")
        return Dataset(Shuffle(self.node, as_integer("seed", seed)))

    def repeat(self, times: SupportsIndex | None = None) -> Dataset:
        """The rows again and again: row i is row i % size of pass i // size.

        Every pass has an order of its own, by a hash of the seed and its number; the first one is
        the order of the dataset itself.

        Args:
            times: number of passes, at least 1; None never ends.

        Raises:
            ValueError: the dataset is empty or endless already.
        """
        if not self.size:
            what = "endless" if self.size is None else "empty"
            raise ValueError(f"an {what} dataset cannot be repeated")
        if times is not None:
            times = as_integer("times", times)
            if times < 1 or times * self.size > LARGEST:
                raise ValueError(
                    f"times must be from 1 to {LARGEST // self.size} for {self.size} rows, "
                    f"got {times}"
                )
        return Dataset(Repeat(self.node, times))

    def loader(
        self,
        batch_size: SupportsIndex,
        *,
        dp_rank: SupportsIndex = 0,
        dp_world: SupportsIndex = 1,
        start: Mapping[str, Any] | SupportsIndex | None = None,
        last: Last = "drop",
        prefetch: SupportsIndex = 4,
    ) -> Loader:
        """Batches for one data-parallel rank; see `Loader`."""
        return Loader(
            self,
            batch_size,
            dp_rank=dp_rank,
            dp_world=dp_world,
            start=start,
            last=last,
            prefetch=prefetch,
        )

    @property
    def version(self) -> int:
        """The version of the cache that is read."""
        return self.node.version

    def describe(self) -> dict[str, Any]:
        """What the order depends on, as JSON: nested descriptions, outermost first."""
        return self.node.describe()

    def epoch_of(self, position: int) -> int:
        """Which pass a position belongs to: 0 unless the dataset is repeated."""
        return self.node.epoch_of(position) if isinstance(self.node, Repeat) else 0


def of(rows: Rows, fields: Sequence[str] | None = None) -> Dataset:
    """The rows of a cache in stored order, all fields or just those named."""
    return Dataset(Stored(rows, None if fields is None else tuple(fields)))


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
