"""Chosen rows of a node, in its order: one side of a split, or those that a condition holds for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from cachelib.nodes.base import Columns, Node, Origin, Slices, Stream, Version
from cachelib.nodes.left import Left
from cachelib.nodes.stored import Stored
from cachelib.order.bitmap import Bitmap
from cachelib.order.holdout import Side
from cachelib.ragged import offsets_of, ranges

RUN = 128
"""Rows below of which it is held how many chosen values come before them, for each field."""

READ_ROWS = 1 << 18
"""Rows below that are looked at together."""


class Selection(Protocol):
    """Which of ``total`` rows are chosen. Ranks count the chosen rows, from 0 on."""

    @property
    def total(self) -> int: ...
    @property
    def count(self) -> int: ...
    def rows(self, ranks: np.ndarray) -> np.ndarray: ...
    def ranks(self, rows: np.ndarray) -> np.ndarray: ...
    def contains(self, rows: np.ndarray) -> np.ndarray: ...


class Kept:
    """Arrays made once and kept, by name. Thread-safe; pickled, they go along."""

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self._arrays = dict(arrays or {})
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, (dict(self._arrays),)

    def get(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        with self._lock:
            if name not in self._arrays:
                self._arrays[name] = make()
            return self._arrays[name]


@dataclass(frozen=True, eq=False)
class _Values:
    """Where the values of some chosen rows lie.

    Attributes:
        ranks: int64 (n,), the rows, ascending.
        first: int64 (n,), of the first value of each, in the stream of all chosen rows.
        places, lengths: int64 (n,), where they lie, and how many there are.
    """

    ranks: np.ndarray
    first: np.ndarray
    places: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class Selected:
    """Chosen rows of a stream, in its order; a stream itself.

    When a field is first read across rows, the lengths of all chosen rows are read and summed up,
    and what is kept is a number for each `RUN` rows below. From there on, the rows of a run are
    looked up when they are needed.

    Attributes:
        child: the rows.
        selection: which of them.
        facts: what the selection depends on, as JSON, ``kind`` among it.
    """

    child: Stream
    selection: Selection
    facts: Mapping[str, Any]
    sums: Kept = field(default_factory=Kept, compare=False, repr=False)

    @property
    def size(self) -> int:
        return self.selection.count

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
        return self.child.take(self.selection.rows(indices))

    def origins(self, index: int) -> list[Origin]:
        return self.child.origins(int(self.selection.rows(np.array([index], np.int64))[0]))

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        return self.child.trace(self.selection.rows(indices), epoch)

    def in_epoch(self, epoch: int) -> Selected:
        return self

    def describe(self) -> dict[str, Any]:
        return {**self.facts, "of": self.child.describe()}

    # As a stream: places are those of the node below, of which the chosen rows have some.

    def alike(self, field: str) -> tuple[str, ...]:
        return self.child.alike(field)

    def elements(self, field: str) -> int:
        return int(self._sums(field)[-1])

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        found = self.slices(field, starts, np.full(len(starts), length, np.int64))
        values = self.read_spans(field, found.starts, found.lengths)
        return values.reshape(len(starts), length, *values.shape[1:])

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        flat = positions.reshape(-1)
        values = self._values(field, np.unique(self._runs(field, flat)))
        at = np.searchsorted(values.first, flat, side="right") - 1
        return values.ranks[at].reshape(positions.shape)

    def value_bytes(self, field: str) -> float:
        return self.child.value_bytes(field)

    def slices(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> Slices:
        stops = starts + lengths
        first, last = self._runs(field, starts), self._runs(field, np.maximum(stops - 1, starts))
        values = self._values(field, np.unique(ranges(first, last - first + 1)))
        # Of rows that begin at one value the last one is not empty.
        low = np.searchsorted(values.first, starts, side="right") - 1
        counts = np.searchsorted(values.first, stops, side="left") - low
        rows = ranges(low, counts)
        begin = np.maximum(values.first[rows], np.repeat(starts, counts))
        end = np.minimum(values.first[rows] + values.lengths[rows], np.repeat(stops, counts))
        places = values.places[rows] + (begin - values.first[rows])
        return Slices(places, np.maximum(end - begin, 0), counts)

    def places(self, field: str) -> int:
        return self.child.places(field)

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.child.spans(field, self.selection.rows(rows))

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self.child.read_spans(field, starts, lengths)

    def pick(self, fields: Sequence[str], rows: np.ndarray) -> Columns:
        return self.child.pick(fields, self.selection.rows(rows))

    def _runs(self, field: str, positions: np.ndarray) -> np.ndarray:
        """The run of rows below that each value of the stream belongs to, int64."""
        return np.searchsorted(self._sums(field), positions, side="right") - 1

    def _values(self, field: str, runs: np.ndarray) -> _Values:
        """Where the values of the chosen rows of some runs lie; runs ascending, each once."""
        edges = np.minimum(np.stack([runs, runs + 1]) * np.int64(RUN), self.selection.total)
        first, after = self.selection.ranks(edges.reshape(-1)).reshape(2, -1)
        ranks = ranges(first, after - first)
        places, lengths = self.spans(field, ranks)
        # Runs are back to back here, but have others between them in the stream.
        begin, rows = offsets_of(lengths), offsets_of(after - first)
        shifts = self._sums(field)[runs] - begin[rows[:-1]]
        return _Values(ranks, begin[:-1] + np.repeat(shifts, after - first), places, lengths)

    def _sums(self, field: str) -> np.ndarray:
        """Values of chosen rows before each run of rows below, and in all; int64 (runs + 1,)."""
        return self.sums.get(field, lambda: self._summed(field))

    def _summed(self, field: str) -> np.ndarray:
        total, parts = self.selection.total, [np.zeros(1, np.int64)]
        for start in range(0, total, READ_ROWS):
            stop = min(start + READ_ROWS, total)
            edges = np.append(np.arange(start, stop, RUN), stop)
            ranks = self.selection.ranks(edges)
            lengths = self.spans(field, np.arange(ranks[0], ranks[-1]))[1]
            parts.append(parts[-1][-1] + offsets_of(lengths)[ranks[1:] - ranks[0]])
        return np.concatenate(parts)


def split(node: Node, fraction: float, seed: int) -> tuple[Selected, Selected]:
    """The rest, and what is held out, of rows of a cache in stored order or a part of them.

    Sides are a function of the seed and the number of a row below all conditions, so that they do
    not depend on what else is chosen.

    Raises:
        ValueError: the node is something else, or the fraction is not above 0 and below 1.
    """
    (rest, _), (held, _) = _sides(node, fraction, seed)
    return rest, held


Rows = Callable[[np.ndarray], np.ndarray]
"""The rows of a node that some of its rows are, int64 (n,)."""


def _sides(node: Node, fraction: float, seed: int) -> list[tuple[Selected, Rows]]:
    """The rest and what is held out, each with the rows of the node that its own rows are."""
    if isinstance(node, Left) or (
        isinstance(node, Selected) and not isinstance(node.selection, Side)
    ):
        return [_chosen(node, *side) for side in _sides(node.child, fraction, seed)]
    if not isinstance(node, Stored | Selected):
        kind = type(node).__name__.lower()
        raise ValueError(
            f"only rows of a cache in stored order, or a where() of them, can be split, not its "
            f"{kind}: parts of one document, or rows that change places, could come to both "
            "sides. Split first, as in train, held = cache.split(0.01), and go on from each side"
        )
    rest = Side(node.size, fraction, seed, held=False)
    facts = {"kind": "split", "fraction": fraction, "seed": seed}
    return [
        (Selected(node, side, {**facts, "held": side.held}), side.rows)
        for side in (rest, rest.other)
    ]


def _chosen(node: Selected | Left, below: Selected, rows: Rows) -> tuple[Selected, Rows]:
    """What ``node`` has of ``below``, whose rows are those ``rows`` of the child of ``node``."""
    starts = range(0, below.size, READ_ROWS)
    blocks = (np.arange(start, min(start + READ_ROWS, below.size)) for start in starts)
    chosen = Bitmap.of((node.selection.contains(rows(block)) for block in blocks), below.size)
    found = Selected(below, chosen, {**node.facts, "rows": chosen.count})
    return found, lambda own: node.selection.ranks(rows(chosen.rows(own)))
