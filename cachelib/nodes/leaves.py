"""What can be told of a node from those below it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from cachelib.nodes.base import Node
from cachelib.nodes.blocks import BlockShuffle
from cachelib.nodes.repeat import Repeat
from cachelib.nodes.shuffle import Shuffle
from cachelib.nodes.stored import Stored
from cachelib.nodes.windows import Windows


def leaves(node: Any) -> Iterator[Stored]:
    """The rows of caches that a node stands on."""
    if isinstance(node, Stored):
        yield node
    elif isinstance(node, tuple):
        for each in node:
            yield from leaves(each)
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            yield from leaves(getattr(node, field.name))


def mean_length(node: Node, field: str) -> Fraction:
    """Elements of a ragged column in a row of a node, on average over a pass: exact.

    Raises:
        ValueError: it is not known, since a pass need not give all rows below equally often.
    """
    if isinstance(node, Shuffle | Repeat | BlockShuffle):
        return mean_length(node.child, field)
    if isinstance(node, Windows):
        grid = node.grid
        short = grid.elements - grid.full * grid.stride if grid.count > grid.full else 0
        return Fraction(grid.full * grid.length + short, grid.count)
    if isinstance(node, Stored):
        return Fraction(node.elements(field), node.size)
    kind = type(node).__name__.lower()
    raise ValueError(f"the mean length of rows of a {kind} is not known: give weights by samples")
