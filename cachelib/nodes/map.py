"""Rows changed one by one by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cachelib.nodes.base import (
    Columns,
    Node,
    Origin,
    Version,
    components,
    described,
    grows,
    layout,
    ready,
    wait,
)
from cachelib.order import seeds
from cachelib.ragged import Ragged, offsets_of

Function = Callable[[dict[str, Any], int], Mapping[str, Any]]
"""Takes a row, a value for each column, and its key; gives a row of any columns."""


class Column(NamedTuple):
    """What each value of a column must be; shape is without the first dimension if ragged."""

    dtype: np.dtype
    shape: tuple[int, ...]
    ragged: bool


@dataclass(frozen=True)
class Map:
    """The rows of a node, each changed by a function: as many rows, in the same order.

    The key of a row is a hash of the seed, of its pass, of its component and of its number below
    all orders. So a map under an order gives the rows that a map over it gives.

    Attributes:
        child: the rows, at least one.
        function: of a module.
        identity: what tells it from other functions, as `cachelib.nodes.functions.identity` does.
        seed: any integer.
        columns: what the values of each column that it gives are.
        epoch: number of the pass.
    """

    child: Node
    function: Function
    identity: tuple[tuple[str, str], ...]
    seed: int
    columns: Mapping[str, Column]
    epoch: int = 0

    @property
    def size(self) -> int | None:
        return self.child.size

    @property
    def version(self) -> Version:
        return self.child.version

    @property
    def grows(self) -> bool:
        return grows(self.child)

    def ready(self, stop: int) -> bool:
        return ready(self.child, stop)

    def wait(self, stop: int, through: str, given_up: Callable[[], bool]) -> None:
        wait(self.child, stop, through, given_up)

    def take(self, indices: np.ndarray) -> Columns:
        rows = self.made(indices) if len(indices) else []
        for index, row in zip(indices.tolist(), rows, strict=True):
            self._check(index, row)
        columns: Columns = {}
        for name, column in self.columns.items():
            values = [row[name] for row in rows]
            if column.ragged:
                none = np.empty((0, *column.shape), column.dtype)
                lengths = np.array([len(value) for value in values], np.int64)
                columns[name] = Ragged(np.concatenate([none, *values]), offsets_of(lengths))
            else:
                columns[name] = np.empty((len(values), *column.shape), column.dtype)
                for at, value in enumerate(values):
                    columns[name][at] = value
        return columns

    def origins(self, index: int) -> list[Origin]:
        return self.child.origins(index)

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        return self.child.trace(indices, epoch)

    def in_epoch(self, epoch: int) -> Map:
        return replace(self, child=self.child.in_epoch(epoch), epoch=epoch)

    def describe(self) -> dict[str, Any]:
        return self.describe_until(None)

    def describe_until(self, position: int | None) -> dict[str, Any]:
        return {
            "kind": "map",
            **dict(self.identity),
            "seed": self.seed,
            "of": described(self.child, position),
        }

    def made(self, indices: np.ndarray) -> list[dict[str, np.ndarray]]:
        """What the function gives for the rows at int64 indices, as arrays."""
        columns = self.child.take(indices)
        keys = self._keys(indices)
        rows = []
        for at, index in enumerate(indices.tolist()):
            given = {name: column[at] for name, column in columns.items()}
            try:
                made = self.function(given, keys[at])
            except Exception as error:
                error.add_note(f"in {self.name}, for row {index}")
                raise
            if not isinstance(made, Mapping) or not made:
                raise TypeError(
                    f"{self.name} must give columns by name, gave {made!r} for row {index}"
                )
            rows.append({name: self._array(index, name, value) for name, value in made.items()})
        return rows

    def _keys(self, indices: np.ndarray) -> list[int]:
        names = [*components(self.child), ""]
        traced = self.child.trace(indices, self.epoch)
        numbers = zip(
            *(traced[name].tolist() for name in ("epoch", "component", "row")), strict=True
        )
        return [
            int.from_bytes(seeds.derive("map", self.seed, epoch, names[part], row)[:8], "little")
            for epoch, part, row in numbers
        ]

    def _array(self, index: int, name: Any, value: Any) -> np.ndarray:
        if not isinstance(name, str):
            raise TypeError(f"columns are named by strings, {self.name} gave {name!r}")
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(
                f"{self.name} gave column {name!r} of row {index} as {array.dtype}: give numbers "
                "or truth values; text as uint8, np.frombuffer(text.encode(), np.uint8)"
            )
        return array

    def _check(self, index: int, row: Mapping[str, np.ndarray]) -> None:
        if row.keys() != self.columns.keys():
            raise ValueError(
                f"{self.name} gave columns {sorted(row)} for row {index}, but "
                f"{sorted(self.columns)} for the first one"
            )
        for name, value in row.items():
            column = self.columns[name]
            if value.dtype != column.dtype:
                raise ValueError(
                    f"{self.name} gave column {name!r} of row {index} as {value.dtype}, but of "
                    f"the first one as {column.dtype}: convert it to one dtype"
                )
            if value.ndim < column.ragged or value.shape[column.ragged :] != column.shape:
                shown = ("n", *column.shape) if column.ragged else column.shape
                raise ValueError(
                    f"{self.name} gave column {name!r} of row {index} in shape {value.shape}, "
                    f"expected {shown} as of the first one; name columns whose first dimension "
                    "varies in ragged=[...]"
                )

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


def mapped(
    child: Node,
    function: Function,
    identity: Mapping[str, str],
    seed: int,
    ragged: Sequence[str] | None,
) -> Map:
    """Rows changed by a function, whose first row is made here to see what columns there are.

    Args:
        child, function, identity, seed: as of `Map`.
        ragged: columns that the function gives whose values vary in their first dimension; None
            for those that are ragged in the child.
    """
    node = Map(child, function, tuple(identity.items()), seed, {})
    (row,) = node.made(np.zeros(1, np.int64))
    if ragged is None:
        ragged = [name for name, (kind, _, _) in layout(child).items() if kind == "ragged"]
        ragged = [name for name in ragged if name in row]
    columns = {}
    for name, value in row.items():
        varies = name in ragged
        if varies and not value.ndim:
            raise ValueError(
                f"column {name!r} is ragged, but {node.name} gives one value: name the ragged "
                "columns that it gives in ragged=[...]"
            )
        columns[name] = Column(value.dtype, value.shape[varies:], varies)
    missing = [name for name in ragged if name not in row]
    if missing:
        raise ValueError(
            f"ragged names {missing[0]!r}, which {node.name} does not give: it gives {list(row)}"
        )
    return replace(node, columns=columns)
