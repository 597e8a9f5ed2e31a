"""What a node is, and what it reads and gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple, Protocol, SupportsIndex, runtime_checkable

import numpy as np

from cachelib.format.digest import Digest
from cachelib.ragged import Ragged

Columns = dict[str, Any]
"""Rows by column: arrays of shape (n, *shape), or `Ragged` of n rows where the lengths vary."""

Version = int | list[Any] | dict[str, Any] | None
"""The ledger version that is read; where there are several caches one for each, by component of a
mixture (a dict) or by stage (a list). None for a cache that is followed. JSON."""


REACH = 1 << 60
"""Rows that can be read from which on a node is taken for an endless one that lacks nothing."""

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


@runtime_checkable
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


@runtime_checkable
class Digested(Protocol):
    """Rows of a cache of which it is known what is in their beginnings."""

    def beginnings(self) -> Sequence[Digest]:
        """The content digests of some beginnings of the rows: equal ones mean equal rows."""


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


class Slices(NamedTuple):
    """Where slices of a stream lie in storage: in one piece each, or in several.

    Attributes:
        starts, lengths: of the pieces, int64 (pieces,), those of a slice side by side; `read_spans`
            reads them.
        counts: pieces of each slice, int64 (slices,).
    """

    starts: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray


@runtime_checkable
class Stream(Node, Protocol):
    """A node of whole rows in stored order, whose ragged fields can be read across rows.

    The stream of a field is the values of its rows back to back. Where they lie in storage is told
    by places, which may have gaps: those of rows that are not among the node's.
    """

    def alike(self, field: str) -> tuple[str, ...]:
        """The fields whose rows are as long as those of a ragged field by declaration, and it."""

    def elements(self, field: str) -> int:
        """Values of a ragged field in all rows."""

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        """Slices of the stream of a field, shape (n, length, *shape)."""

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        """The row that owns each value of the stream, int64 of the shape of positions."""

    def value_bytes(self, field: str) -> float:
        """Bytes of a decoded value of a ragged field."""

    def slices(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> Slices:
        """Where slices of the stream lie; int64 (n,) each."""

    def places(self, field: str) -> int:
        """The number of places, at least as many as elements."""

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place where the values of each row begin, and how many there are; int64 (n,)."""

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The values at places, back to back, shape (sum of lengths, *shape)."""

    def pick(self, fields: Sequence[str], rows: np.ndarray) -> Columns:
        """Rows as ``take`` gives them, but of any fields that are stored."""


@runtime_checkable
class Adjacent(Protocol):
    """A node whose rows lie beside one another in storage as they do in its order."""

    @property
    def row_bytes(self) -> float:
        """Mean bytes of a decoded row."""


@runtime_checkable
class Relay(Protocol):
    """A node that passes on rows of others as they are."""

    @property
    def relayed(self) -> tuple[Node, ...]: ...


def _never() -> bool:
    return False


@runtime_checkable
class Growing(Protocol):
    """A node that may get more rows, as a cache that is followed does. Those there are never move.

    Its ``size`` is None until it is known.
    """

    @property
    def grows(self) -> bool:
        """Whether it stands on a followed cache at all, complete or not."""

    def ready(self, stop: int) -> bool:
        """Whether rows before ``stop`` can be read without waiting, or the size is known."""

    def wait(self, stop: int, through: str, given_up: Callable[[], bool]) -> None:
        """Wait until that is so; see `cachelib.following.Followed.until`."""


def grows(node: Any) -> bool:
    """Whether a node may get more rows."""
    return isinstance(node, Growing) and node.grows


def ready(node: Any, stop: int) -> bool:
    """Whether rows of any node before ``stop`` can be read without waiting, or there are less."""
    return not grows(node) or bool(node.ready(stop))


def wait(node: Any, stop: int, through: str = "", given_up: Callable[[], bool] = _never) -> None:
    """Wait until rows of any node before ``stop`` can be read, or it is known that there are less.

    Raises:
        NotYetBuilt, BuilderGone: they did not come.
        ForebayError: given up.
    """
    if grows(node):
        node.wait(stop, through, given_up)


def reach(node: Node) -> int | None:
    """How many rows can be read without waiting; None where that is all of an endless node."""
    if node.size is not None or not grows(node):
        return node.size
    low, step = 0, 1
    while ready(node, low + step):
        if low + step > REACH:
            return None
        low += step
        step *= 2
    while step > 1:
        step //= 2
        if ready(node, low + step):
            low += step
    return low


def can(node: Any, kind: type) -> bool:
    """Whether a node is a `Stream`, or is `Adjacent`: if it passes on rows, theirs must be, too."""
    return isinstance(node, kind) and (
        not isinstance(node, Relay) or all(can(below, kind) for below in node.relayed)
    )


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


def grouped(
    groups: np.ndarray, values: np.ndarray, of: Callable[[int, np.ndarray], Columns]
) -> Columns:
    """What ``of`` gives for each group and the values in it, in the order of values; (n,) each."""
    parts, places = [], []
    for group in np.unique(groups).tolist():
        place = np.flatnonzero(groups == group)
        parts.append(of(group, values[place]))
        places.append(place)
    return woven(parts, places) if parts else of(0, values)


def chain(node: Any) -> Iterator[Any]:
    """A node and all that it stands on, from the top down."""
    if isinstance(node, tuple):
        for each in node:
            yield from chain(each)
    elif is_dataclass(node):
        yield node
        for field in fields(node):
            yield from chain(getattr(node, field.name))
