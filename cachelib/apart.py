"""Whether two datasets share rows of a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib.nodes.base import Digested, Node, chain
from cachelib.nodes.blocks import BlockShuffle
from cachelib.nodes.left import Left
from cachelib.nodes.repeat import Repeat
from cachelib.nodes.selected import Selected, Selection
from cachelib.nodes.shuffle import Shuffle
from cachelib.nodes.slices import Slice
from cachelib.nodes.stored import Stored
from cachelib.nodes.then import Then
from cachelib.order.bitmap import Bitmap
from cachelib.order.holdout import Side

_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Part:
    """Rows of a cache that a node stands on.

    Attributes:
        stored: the rows of the cache.
        selections: of them, of what they choose, and so on.
        name: what they are, in words.
    """

    stored: Stored
    selections: tuple[Selection, ...]
    name: str

    @property
    def count(self) -> int:
        return self.selections[-1].count if self.selections else self.stored.size

    def rows(self, ranks: np.ndarray) -> np.ndarray:
        """The rows of the cache, int64, that have int64 ranks in [0, count)."""
        for selection in reversed(self.selections):
            ranks = selection.rows(ranks)
        return ranks

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Whether each row of the cache, int64, is among them; bool."""
        found = rows < self.stored.size
        for selection in self.selections:
            at = np.flatnonzero(found)
            inside = selection.contains(rows[at])
            found[at[~inside]] = False
            rows = rows.copy()
            rows[at[inside]] = selection.ranks(rows[at[inside]])
        return found


def check_apart(training: Node, evaluation: Node) -> None:
    """ValueError if a row of a cache is in both; names it, and what each has of its cache."""
    parts = list(_parts(evaluation))
    for mine in _parts(training):
        for theirs in parts:
            row = _shared(mine, theirs)
            if row is not None:
                urls = dict.fromkeys((mine.stored.rows.url, theirs.stored.rows.url))
                raise ValueError(
                    f"training and evaluation share rows of {' and '.join(urls)}, row {row} for "
                    f"one: training has {mine.name}, evaluation {theirs.name}. Take both from one "
                    "split, as in train, held = cache.split(0.01)"
                )


def _parts(node: Any) -> Iterator[_Part]:
    """What a node stands on, cache by cache."""
    match node:
        case Stored():
            yield _Part(node, (), "all rows")
        case Left():
            yield _Part(node.child, (node.selection,), "all rows that are left")
        case Selected():
            for part in _parts(node.child):
                of = f" of {part.name}" if part.selections else ""
                name = f"{_named(node.facts)}{of}"
                yield _Part(part.stored, (*part.selections, node.selection), name)
        case Slice() if (sliced := _rows_below(node)) is not None:
            yield sliced
        case Then():
            for child, samples in zip(node.children, node.samples, strict=True):
                yield from _parts(child if samples is None else Slice(child, 0, samples))
        case _:
            for child in _below(node):
                yield from _parts(child)


def _below(node: Any) -> Iterator[Any]:
    """The nodes that a node stands on directly."""
    for name in ("child", "stream"):
        if hasattr(node, name):
            yield getattr(node, name)
    yield from getattr(node, "children", ())


def _rows_below(node: Slice) -> _Part | None:
    """The rows that a slice has, if it is one of rows of a cache in some order, of a pass at most.

    None stands for all that lies below.
    """
    below: Any = node
    while isinstance(below, Slice | Shuffle | BlockShuffle | Repeat):
        below = below.child
    if not isinstance(below, Stored | Left | Selected) or node.size > below.size:
        return None
    stored = next(each for each in chain(below) if isinstance(each, Stored))
    chosen = np.zeros(stored.size, np.bool_)
    for start in range(0, node.size, _BLOCK):
        indices = np.arange(start, min(start + _BLOCK, node.size))
        chosen[node.trace(indices, 0)["row"]] = True
    return _Part(stored, (Bitmap.of([chosen], stored.size),), f"a slice of {node.size} rows")


def _named(facts: Any) -> str:
    """A selection in words."""
    shown = ", ".join(f"{name}={value!r}" for name, value in facts.items() if name != "kind")
    return f"{facts['kind']}({shown})"


def _shared(mine: _Part, theirs: _Part) -> int | None:
    """A row of a cache that is in both parts, the first one found; None if there is none."""
    if _opposite(mine.selections, theirs.selections):
        return None
    alike = _alike(mine.stored, theirs.stored)
    few, many = sorted((mine, theirs), key=lambda part: part.count)
    for start in range(0, few.count, _BLOCK):
        rows = few.rows(np.arange(start, min(start + _BLOCK, few.count)))
        inside = rows[rows < alike]
        both = inside[many.contains(inside)]
        if len(both):
            return int(both[0])
        if len(inside) < len(rows):
            break
    return None


def _alike(mine: Stored, theirs: Stored) -> int:
    """How many rows, from row 0 on, are the same in both: there, equal numbers are equal rows.

    Those of one cache at any version are, those of equal content, and of copies that have grown
    since the beginning that they share.
    """
    one, other = mine.rows, theirs.rows
    digest = one.identity().get("digest")
    if one.url == other.url or (digest is not None and digest == other.identity().get("digest")):
        return min(mine.size, theirs.size)
    if not (isinstance(one, Digested) and isinstance(other, Digested)):
        return 0
    shared = set(one.beginnings()).intersection(other.beginnings())
    return max((beginning.rows for beginning in shared), default=0)


def _opposite(mine: tuple[Selection, ...], theirs: tuple[Selection, ...]) -> bool:
    """Whether the cache was split alike, perhaps again and again, and these end on two sides."""
    for one, two in zip(mine, theirs, strict=False):
        if not (isinstance(one, Side) and isinstance(two, Side)):
            return False
        if (one.fraction, one.seed) != (two.fraction, two.seed):
            return False
        if one.held != two.held:
            return True
    return False
