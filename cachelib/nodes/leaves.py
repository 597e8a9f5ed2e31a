"""What can be told of a node from those below it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, cast

from cachelib.nodes.base import Node, Stream, can, chain, grows
from cachelib.nodes.blocks import BlockShuffle
from cachelib.nodes.eras import Eras
from cachelib.nodes.map import Map
from cachelib.nodes.mix import Mix
from cachelib.nodes.repeat import Repeat
from cachelib.nodes.shuffle import Shuffle
from cachelib.nodes.stored import Stored
from cachelib.nodes.windows import Windows


def leaves(node: Any) -> Iterator[Stored]:
    """The rows of caches that a node stands on."""
    return (each for each in chain(node) if isinstance(each, Stored))


def why_empty(node: Node) -> str:
    """Why a node has no rows, to be put after what that leads to; "" where it is not known."""
    for each in chain(node):
        if isinstance(each, Windows) and not each.size:
            return (
                f": the window length {each.grid.length} exceeds the {each.grid.elements} values "
                f"of {each.field!r} that there are"
            )
    return ""


def endless(node: Node) -> bool:
    """Whether there will never be a last row, whatever becomes of followed caches below."""
    if not grows(node):
        return node.size is None
    if isinstance(node, Map):
        return endless(node.child)
    return isinstance(node, Mix) or (isinstance(node, Repeat) and node.times is None)


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
    if can(node, Stream):
        stream = cast(Stream, node)
        return Fraction(stream.elements(field), stream.size or 1)
    if any(isinstance(each, Eras) for each in chain(node)):
        raise ValueError(
            "the mean length of rows of a followed cache is not known: give weights by samples, "
            "make windows or packs of one length, or open it at a version"
        )
    kind = type(node).__name__.lower()
    raise ValueError(f"the mean length of rows of a {kind} is not known: give weights by samples")
