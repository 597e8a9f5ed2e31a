"""The rows of several nodes, one node after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cachelib.nodes.base import Columns, Node, Origin, Slices, Version, grouped
from cachelib.ragged import offsets_of


@dataclass(frozen=True)
class Concat:
    """The rows of several finite nodes with the same columns, one node after another.

    It is a `Stream`, or `Adjacent`, if all of them are.

    Attributes:
        names: of the parts, in the order of their rows.
        children: the parts.
    """

    names: tuple[str, ...]
    children: tuple[Node, ...]

    @property
    def size(self) -> int:
        return int(self._starts[-1])

    @property
    def version(self) -> Version:
        return {name: child.version for name, child in zip(self.names, self.children, strict=True)}

    @property
    def components(self) -> tuple[str, ...]:
        return self.names

    @property
    def relayed(self) -> tuple[Node, ...]:
        return self.children

    @property
    def row_bytes(self) -> float:
        children: Any = self.children
        each = [child.row_bytes for child in children]
        return float(np.average(each, weights=np.diff(self._starts)))

    def take(self, indices: np.ndarray) -> Columns:
        return self._by_part(indices, lambda part, rows: self.children[part].take(rows))

    def origins(self, index: int) -> list[Origin]:
        part = int(_parts(self._starts, np.array([index], np.int64))[0])
        found = self.children[part].origins(index - int(self._starts[part]))
        return [replace(o, through=(self.names[part], *o.through)) for o in found]

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        def of(part: int, rows: np.ndarray) -> Columns:
            found = self.children[part].trace(rows, epoch)
            return {**found, "component": np.full(len(rows), part, np.int32)}

        return self._by_part(indices, of)

    def in_epoch(self, epoch: int) -> Concat:
        return replace(self, children=tuple(child.in_epoch(epoch) for child in self.children))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "concat",
            "names": list(self.names),
            "parts": {
                name: child.describe()
                for name, child in zip(self.names, self.children, strict=True)
            },
        }

    # As a stream: places are those of the parts, one part after another.

    def alike(self, field: str) -> tuple[str, ...]:
        # Parts have the same columns, but not each must say so of the same ones.
        told = [child.alike(field) for child in self._streams]
        return tuple(name for name in told[0] if all(name in each for each in told))

    def elements(self, field: str) -> int:
        return int(self._element_starts(field)[-1])

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        found = self.slices(field, starts, np.full(len(starts), length, np.int64))
        values = self.read_spans(field, found.starts, found.lengths)
        return values.reshape(len(starts), length, *values.shape[1:])

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        edges = self._element_starts(field)
        parts = _parts(edges, positions)
        rows = np.empty_like(positions)
        for part in np.unique(parts).tolist():
            here = parts == part
            inside = self._streams[part].rows_at(field, positions[here] - edges[part])
            rows[here] = inside + self._starts[part]
        return rows

    def value_bytes(self, field: str) -> float:
        return self._streams[0].value_bytes(field)

    def slices(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> Slices:
        edges, places = self._element_starts(field), self._place_starts(field)
        owners, found = [], []
        for part, child in enumerate(self._streams):
            low = np.maximum(starts, edges[part])
            high = np.minimum(starts + lengths, edges[part + 1])
            some = np.flatnonzero(low < high)
            if len(some):
                inside = child.slices(field, low[some] - edges[part], (high - low)[some])
                found.append((inside.starts + places[part], inside.lengths))
                owners.append(np.repeat(some, inside.counts))
        return _in_order(len(starts), owners, found)

    def places(self, field: str) -> int:
        return int(self._place_starts(field)[-1])

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = self._place_starts(field)

        def of(part: int, inside: np.ndarray) -> Columns:
            starts, lengths = self._streams[part].spans(field, inside)
            return {"starts": starts + places[part], "lengths": lengths}

        found = self._by_part(rows, of)
        return found["starts"], found["lengths"]

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        edges = self._place_starts(field)
        # An empty span may stand at the very end.
        parts = np.minimum(_parts(edges, starts), len(self.children) - 1)
        first = int(parts[0]) if len(parts) else 0
        if np.all(parts == first):
            return self._streams[first].read_spans(field, starts - edges[first], lengths)
        values, at = None, offsets_of(lengths)
        owners = np.repeat(parts, lengths)
        for part in np.unique(parts).tolist():
            here = parts == part
            read = self._streams[part].read_spans(field, starts[here] - edges[part], lengths[here])
            if values is None:
                values = np.empty((int(at[-1]), *read.shape[1:]), read.dtype)
            values[owners == part] = read
        assert values is not None
        return values

    def pick(self, fields: Sequence[str], rows: np.ndarray) -> Columns:
        return self._by_part(rows, lambda part, at: self._streams[part].pick(fields, at))

    def _by_part(self, indices: np.ndarray, of: Any) -> Columns:
        """What ``of`` gives for each part and its rows, in the order of indices."""
        parts = _parts(self._starts, indices)
        return grouped(parts, indices, lambda part, at: of(part, at - self._starts[part]))

    @cached_property
    def _starts(self) -> np.ndarray:
        """The first row of each part, and how many there are in all; int64 (parts + 1,)."""
        return offsets_of(np.array([child.size for child in self.children], np.int64))

    @property
    def _streams(self) -> Sequence[Any]:
        """The parts, of a concat that is a stream."""
        return self.children

    def _element_starts(self, field: str) -> np.ndarray:
        return offsets_of(np.array([child.elements(field) for child in self._streams], np.int64))

    def _place_starts(self, field: str) -> np.ndarray:
        return offsets_of(np.array([child.places(field) for child in self._streams], np.int64))


def _parts(edges: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The part that holds each position, by where parts begin; int64 of the same shape."""
    return np.searchsorted(edges, positions, side="right") - 1


def _in_order(
    count: int, owners: Sequence[np.ndarray], found: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Slices:
    """Pieces found part by part, put together for each of ``count`` slices that own them."""
    none = np.empty(0, np.int64)
    owner = np.concatenate([none, *owners])
    order = np.argsort(owner, kind="stable")
    return Slices(
        np.concatenate([none, *(starts for starts, _ in found)])[order],
        np.concatenate([none, *(lengths for _, lengths in found)])[order],
        np.bincount(owner, minlength=count),
    )
