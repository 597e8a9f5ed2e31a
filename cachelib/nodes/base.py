"""What a node is, and what it reads and gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np

from cachelib.ragged import Ragged

Columns = dict[str, Any]
"""Rows by column: arrays of shape (n, *shape), or `Ragged` of n rows where the lengths vary."""

Version = int | list[Any] | dict[str, Any]
"""The ledger version that is read; where there are several caches one for each, by component of a
mixture (a dict) or by stage (a list). JSON."""


TRACED = ("component", "row", "epoch")
"""What tells which row stands at a position: int32 (n,), the number of its component among
`components`, -1 where it is of none; int64 (n,), its number below all orders (of the window, of the
row of the cache, or of the pack, counted pool by pool); and int64 (n,), its pass."""


@dataclass(frozen=True)
class Origin:
    """A row of a cache that a row of a dataset is made of.

    Attributes:
        source, position: where it came from: the source's name, and the byte or row in it.
        row: its number in the cache.
        through: components of mixtures and stages that lead to it, outermost first.
    """

    source: str
    position: int
    row: int
    through: tuple[str, ...] = ()


class Rows(Protocol):
    """What a dataset stands on; a `cachelib.cache.Cache` is one."""

    @property
    def url(self) -> str: ...
    def at(self, version: int) -> Rows: ...
    def __len__(self) -> int: ...
    def take(self, indices: np.ndarray, fields: Sequence[str] | None = None) -> Columns: ...
    def elements(self, field: str) -> int: ...
    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray: ...
    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray: ...
    def provenance(self, indices: np.ndarray) -> Sequence[Any]: ...
    def nbytes(self, fields: Sequence[str] | None = None) -> int: ...
    def identity(self) -> dict[str, Any]: ...


class Node(Protocol):
    """One link of the chain: frozen, thread-safe, picklable."""

    @property
    def size(self) -> int | None:
        """Number of rows; None where they never end."""

    @property
    def version(self) -> Version:
        """What is read: no part of the order, but where to find it again."""

    def take(self, indices: np.ndarray) -> Columns:
        """The rows at int64 indices in [0, size), in that order, repeats allowed."""

    def origins(self, index: int) -> list[Origin]:
        """What the row at an index in [0, size) is made of, in order."""

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        """Which rows stand at int64 indices in [0, size), by arithmetic alone: `TRACED`.

        ``epoch`` is the number of the pass, unless a ``repeat`` below counts its own.
        """

    def in_epoch(self, epoch: int) -> Node:
        """The same rows as a pass number ``epoch`` over them has them; pass 0 is the node."""

    def describe(self) -> dict[str, Any]:
        """What the order depends on, as JSON: ``kind``, facts, and the node below as ``of``.

        Where there are several nodes below, they are ``parts``, by name.
        """


@runtime_checkable
class Staged(Protocol):
    """A node of stages: what comes later may change without a change to what came before."""

    def describe_until(self, position: int | None) -> dict[str, Any]:
        """What the order of the rows before a position depends on; None is all of it."""


@runtime_checkable
class Composed(Protocol):
    """A node whose rows come from named components."""

    @property
    def components(self) -> tuple[str, ...]: ...


class Ordered(Protocol):
    """What a loader reads: a dataset."""

    @property
    def node(self) -> Node: ...
    @property
    def size(self) -> int | None: ...
    @property
    def version(self) -> Version: ...
    @property
    def borders(self) -> tuple[int, ...]: ...
    def take(self, indices: np.ndarray) -> Columns: ...
    def origins(self, index: SupportsIndex) -> list[Origin]: ...
    def trace(self, indices: np.ndarray) -> Columns: ...
    def describe(self, until: int | None = None) -> dict[str, Any]: ...
    def epoch_of(self, position: int) -> int: ...


@runtime_checkable
class Stream(Protocol):
    """A node whose ragged fields can be read across rows."""

    def elements(self, field: str) -> int: ...
    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray: ...
    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray: ...


@runtime_checkable
class Adjacent(Protocol):
    """A node whose rows lie beside one another in storage as they do in its order."""

    @property
    def row_bytes(self) -> float:
        """Mean bytes of a decoded row."""


def described(node: Node, position: int | None) -> dict[str, Any]:
    """What the order of the rows before a position depends on; None is all of it."""
    return node.describe_until(position) if isinstance(node, Staged) else node.describe()


def traced(rows: np.ndarray, epoch: int) -> Columns:
    """The `TRACED` columns of rows of no component, by their numbers, int64 (n,)."""
    component = np.full(len(rows), -1, np.int32)
    return dict(zip(TRACED, (component, rows, np.full(len(rows), epoch, np.int64)), strict=True))


def components(node: Node) -> tuple[str, ...]:
    """The names of the components that ``trace`` numbers, of the outermost mixtures."""
    return next((each.components for each in chain(node) if isinstance(each, Composed)), ())


def layout(node: Node) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """Kind, dtype and shape of a value of each column that a node gives; nothing is read."""
    found = {}
    for name, column in node.take(np.empty(0, np.int64)).items():
        values = column.values if isinstance(column, Ragged) else column
        kind = "ragged" if isinstance(column, Ragged) else "array"
        found[name] = (kind, str(values.dtype), values.shape[1:])
    return found


def woven(parts: Sequence[Columns], places: Sequence[np.ndarray]) -> Columns:
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


def chain(node: Any) -> Iterator[Any]:
    """A node and all that it stands on, from the top down."""
    if isinstance(node, tuple):
        for each in node:
            yield from chain(each)
    elif is_dataclass(node):
        yield node
        for field in fields(node):
            yield from chain(getattr(node, field.name))
