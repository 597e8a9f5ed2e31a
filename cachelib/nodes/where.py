"""The rows of caches that a condition on their columns holds for."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np

from cachelib.nodes import plans
from cachelib.nodes.base import Columns, Digested, Node, Stream
from cachelib.nodes.concat import Concat
from cachelib.nodes.left import Left
from cachelib.nodes.selected import Selected
from cachelib.nodes.stored import Stored
from cachelib.order.bitmap import Bitmap
from cachelib.order.packing import Progress
from cachelib.ragged import Ragged

READ_ROWS = 1 << 16
"""Rows whose columns are read at once."""

_ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_EQUAL = {"==": False, "!=": True}
_AMONG = {"in": False, "not in": True}
OPERATORS = (*_EQUAL, *_ORDERED, *_AMONG)


class Condition(Protocol):
    """What is asked of rows, by some of their columns."""

    @property
    def columns(self) -> tuple[str, ...]: ...
    def facts(self) -> dict[str, Any]:
        """What tells it from other conditions, as JSON."""

    def __call__(self, columns: Columns) -> np.ndarray:
        """Whether it holds for each row, bool (n,)."""


@dataclass(frozen=True)
class Comparisons:
    """Comparisons that must all hold: (column, operator, value) each.

    A column is one number, truth value or text a row, and is compared with numbers, `bool` or `str`
    alone. "in" and "not in" take a list of values, the others one; text has no order.
    """

    comparisons: tuple[tuple[str, str, Any], ...]

    @classmethod
    def of(cls, values: Any) -> Comparisons:
        """From a list of (column, operator, value), as users give it.

        Raises:
            ValueError, TypeError: it is no such list; names what is wrong.
        """
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
            raise TypeError(
                'where() takes a list of comparisons such as ("score", ">=", 0.5), or a function, '
                f"got {values!r}"
            )
        return cls(tuple(_comparison(value) for value in values))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column for column, _, _ in self.comparisons))

    def facts(self) -> dict[str, Any]:
        return {"comparisons": [[name, op, _listed(v)] for name, op, v in self.comparisons]}

    def __call__(self, columns: Columns) -> np.ndarray:
        each = [_compared(name, columns[name], op, v) for name, op, v in self.comparisons]
        return reduce(np.logical_and, each)


@dataclass(frozen=True)
class Predicate:
    """A function of columns that gives a truth value for each row.

    Attributes:
        function: of a module; takes columns by name, and gives bools of shape (n,).
        columns: that it is given.
        identity: what tells it from other functions, as `cachelib.nodes.functions.identity` does.
    """

    function: Callable[[Columns], Any]
    columns: tuple[str, ...]
    identity: tuple[tuple[str, str], ...]

    def facts(self) -> dict[str, Any]:
        return {"columns": list(self.columns), **dict(self.identity)}

    def __call__(self, columns: Columns) -> np.ndarray:
        return np.asarray(self.function(columns))


def where(
    stream: Stream,
    condition: Condition,
    progress: Progress | None = None,
    kept: str | os.PathLike[str] | None = None,
) -> Node:
    """The rows of a stream that a condition holds for, in its order.

    All are asked here, but those of which it is kept already.

    Args:
        stream: rows of caches in stored order.
        condition: what is asked of each.
        progress: is told of how many rows it is known, and how many there are.
        kept: the path or URL of the folder where it is kept which rows are chosen.

    Raises:
        KeyError: there is no such column.
        TypeError, ValueError: a column and the condition do not go together, or rows of which it
            cannot be kept.
        StateMismatch, CorruptData: what is kept does not fit, or is damaged.
    """
    total, done = stream.size or 0, 0

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    # Once without rows, so that what does not fit is told at once and also of an empty cache.
    _asked(stream, condition, np.empty(0, np.int64))
    return _where(stream, condition, tell, kept)


def _where(
    node: Any,
    condition: Condition,
    tell: Callable[[int], None],
    kept: str | os.PathLike[str] | None,
) -> Node:
    if kept is not None and isinstance(node, Left):
        raise ValueError(
            "plan= cannot keep which rows of a cache are chosen that has deleted ones: leave it out"
        )
    if kept is not None and not isinstance(node, Stored):
        raise ValueError(
            "plan= keeps which rows of one cache are chosen: give it to the first where(), "
            "straight on the cache, and go on from there"
        )
    if isinstance(node, Concat):  # so that each part is still the rows of one cache
        parts = tuple(_where(child, condition, tell, None) for child in node.children)
        return Concat(node.names, parts)

    def asked(first: int) -> Iterator[np.ndarray]:
        if first:
            tell(first)
        for start in range(first, node.size, READ_ROWS):
            rows = np.arange(start, min(start + READ_ROWS, node.size))
            yield _asked(node, condition, rows)
            tell(len(rows))

    facts = {"kind": "where", **condition.facts()}
    chosen = Bitmap.of(asked(0), node.size) if kept is None else _kept(node, facts, asked, kept)
    return Selected(node, chosen, {**facts, "rows": chosen.count})


def _kept(
    node: Stored,
    facts: dict[str, Any],
    asked: Callable[[int], Iterator[np.ndarray]],
    place: str | os.PathLike[str],
) -> Bitmap:
    """Which rows of a cache are chosen, as kept in a folder; ``asked`` tells of those from one."""

    def beginnings() -> list[str]:
        return [*map(str, node.rows.beginnings())] if isinstance(node.rows, Digested) else []

    order = {**facts, "of": node.describe()}
    return plans.kept_choice(place, order, node.version, beginnings, asked)


def _asked(stream: Stream, condition: Condition, rows: np.ndarray) -> np.ndarray:
    found = condition(stream.pick(condition.columns, rows))
    if found.dtype != np.bool_ or found.shape != rows.shape:
        raise TypeError(
            f"a condition must give one truth value a row, bool {rows.shape}, but gave "
            f"{found.dtype} {found.shape} for {len(rows)} rows"
        )
    return found


def _comparison(value: Any) -> tuple[str, str, Any]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 3:
        raise TypeError(f"a comparison is (column, operator, value), got {value!r}")
    column, operator, wanted = value
    if not isinstance(column, str):
        raise TypeError(f"a column is named by a string, got {column!r}")
    if operator not in OPERATORS:
        raise ValueError(f"the operator in {value!r} must be one of {OPERATORS}")
    if operator in _AMONG:
        if isinstance(wanted, (str, bytes)) or not isinstance(wanted, Sequence):
            raise TypeError(f"{operator!r} takes a list of values, got {wanted!r}")
        return column, operator, tuple(_plain(each) for each in wanted)
    return column, operator, _plain(wanted)


def _plain(value: Any) -> bool | int | float | str:
    """A value as JSON has it."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"a column is compared with a number, a truth value or text, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a column is compared with a finite number, got {value!r}")
    return value


def _kind(value: Any) -> str:
    """What a value is: only like is compared with like, though numpy takes True for 1."""
    if isinstance(value, str):
        return "text"
    return "truth values" if isinstance(value, (bool, np.bool_)) else "numbers"


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _compared(name: str, column: Any, operator: str, value: Any) -> np.ndarray:
    is_text = isinstance(column, Ragged) and column.values.dtype == np.uint8
    if (is_text and column.values.ndim > 1) or (not is_text and getattr(column, "ndim", 2) > 1):
        raise TypeError(
            f"column {name!r} has no one value a row that could be compared: give a function"
        )
    values = value if operator in _AMONG else (value,)
    holds = "text" if is_text else _kind(column.dtype.type(0))
    for each in values:
        if _kind(each) != holds:
            kind = "text" if is_text else f"{column.dtype}"
            quoted = f'; text stands in quotes, as in "{json.dumps(each)}"'
            why = quoted if is_text else f": it holds {holds}"
            raise TypeError(f"column {name!r} of {kind} cannot be compared with {each!r}{why}")
    if operator in _ORDERED:
        if is_text:
            raise ValueError(f"column {name!r} is text, which has no order: {operator!r} is none")
        return np.asarray(_ORDERED[operator](column, value))
    equal = np.zeros(len(column), np.bool_)
    for each in values:
        equal |= _is_text(column, each) if is_text else column == each
    return ~equal if _AMONG.get(operator, _EQUAL.get(operator)) else equal


def _is_text(column: Ragged, text: str) -> np.ndarray:
    """Which rows of a column of UTF-8 are a text, bool (n,)."""
    wanted = np.frombuffer(text.encode(), np.uint8)
    equal = column.lengths == len(wanted)
    rows = np.flatnonzero(equal)
    places = column.offsets[:-1][rows, None] + np.arange(len(wanted))
    equal[rows] = np.all(column.values[places] == wanted, axis=1)
    return equal
