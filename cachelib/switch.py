"""What becomes of the rows of a run that goes on in another order.

A run that was served the first s samples of one order and goes on at sample s of another one serves
some rows once more than the new order alone would have, and others once less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cachelib.canonical import canonical
from cachelib.errors import ForebayError
from cachelib.nodes.base import Node, Rows, chain, described
from cachelib.nodes.blocks import BlockShuffle
from cachelib.nodes.leaves import leaves
from cachelib.nodes.mix import Mix
from cachelib.nodes.pack import Pack
from cachelib.nodes.repeat import Repeat
from cachelib.nodes.shuffle import Shuffle
from cachelib.nodes.slices import Slice
from cachelib.nodes.stored import Stored
from cachelib.nodes.windows import Windows
from cachelib.recipe import made

COUNTED = 1 << 23
"""Rows of an order that are counted one by one, at most: that takes some seconds."""


def switched(description: Mapping[str, Any] | None, new: Node, samples: int) -> str:
    """What going on at a sample in a new order does, in words.

    Args:
        description: of the loader that served the samples so far, None where there is none.
        new: what goes on.
        samples: rows served so far, over all ranks.
    """
    old = None if description is None else _former(description, new)
    if old is None or (sources := _shared_sources(old, new)) is None:
        why = "there is no description of the old order"
        if description is not None:
            why = "the old order cannot be made again over the same rows"
        return (
            f"what the {samples:,} samples served so far hold may come again, and what the first "
            f"{samples:,} of this order hold may be left out (not counted: {why})"
        )
    count = 1 + max(int(numbers.max()) for numbers in sources)
    before, now = (
        _served(node, samples, numbers, count)
        for node, numbers in zip((old, new), sources, strict=True)
    )
    if before is None or now is None:
        most = _most(old, new, samples)
        return (
            f"against a run in this order alone, at most {most:,} rows are served once more and at "
            f"most {most:,} once less (not counted: there are more than {COUNTED:,})"
        )
    _, places = np.unique(np.concatenate([before[0], now[0]]), return_inverse=True)
    surplus = np.zeros(len(places), np.int64)
    np.add.at(surplus, places, np.concatenate([before[1], -now[1]]))
    again, missed = surplus[surplus > 0].sum(), -surplus[surplus < 0].sum()
    return (
        f"against a run in this order alone, {again:,} rows are served once more and {missed:,} "
        "once less"
    )


def _former(description: Mapping[str, Any], new: Node) -> Node | None:
    """The node of a description over the caches of another one; None where that cannot be."""
    caches = {leaf.rows.url: leaf.rows for leaf in leaves(new)}

    def opened(url: str, version: int) -> Rows:
        rows = caches[url]
        return rows if rows.identity()["version"] == version else rows.at(version)

    try:
        old = made(description["dataset"], opened)
    except (LookupError, TypeError, ValueError, ForebayError):
        return None
    return old if canonical(described(old, None)) == canonical(description["order"]) else None


def _shared_sources(*nodes: Node) -> list[np.ndarray] | None:
    """For each node the numbers of what its components are rows of, int64 (components,).

    Equal numbers mean that equal row numbers are the same rows. None where that cannot be told.
    """
    known: dict[bytes, int] = {}
    found = []
    for node in nodes:
        below = _below_orders(node)
        parts = below.children if isinstance(below, Mix) else (below,)
        keys = [_source(_below_orders(part)) for part in parts]
        if None in keys:
            return None
        numbers = [known.setdefault(canonical(key), len(known)) for key in keys]
        found.append(np.array(numbers, np.int64))
    # Of one cache, rows that are cut otherwise are other rows and yet hold the same values.
    caches = [leaf.rows.url for node in nodes for leaf in leaves(node)]
    return found if len(known) == len(set(caches)) else None


def _below_orders(node: Node) -> Node:
    """What a node orders."""
    while isinstance(node, Shuffle | BlockShuffle | Repeat | Slice):
        node = node.child
    return node


def _source(node: Node) -> Any | None:
    """What decides which row has which number in a node, as JSON; None where it is not known.

    A cache only grows, so its version does not; but it changes all packs.
    """
    match node:
        case Stored():
            return ["cache", node.rows.url]
        case Windows():
            url = next(leaves(node)).rows.url
            return ["windows", url, node.field, node.grid.length, node.grid.stride]
        case Pack():
            return node.describe()
    return None


def _served(
    node: Node, samples: int, numbers: np.ndarray, sources: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Which rows of which sources come in the first samples and how often; None if too many.

    Args:
        numbers: of the source of each component.
        sources: how many there are.

    Returns:
        int64 (n,) twice: rows, which may come more than once, and how often each is served.
    """
    samples = samples if node.size is None else min(samples, node.size)
    passes, size = 0, 0
    if isinstance(node, Repeat) and not isinstance(_below_orders(node), Mix):
        size = node.child.size or 0
        passes = samples // size
    rest = samples - passes * size
    whole = size if passes else 0  # every pass has the rows of the first
    if whole + rest > COUNTED:
        return None
    indices = np.concatenate([np.arange(whole), np.arange(samples - rest, samples)])
    traced = node.trace(indices.astype(np.int64), 0)
    rows = traced["row"] * sources + numbers[traced["component"]]
    return rows, np.repeat([passes, 1], [whole, rest])


def _most(old: Node, new: Node, samples: int) -> int:
    """How many rows can be served once more, or once less, if both orders have the same sources."""
    orders = {_pass_over_all(node) for node in (old, new)}
    rows, _ = orders.pop()
    ended = any(node.size is not None and node.size < samples for node in (old, new))
    if orders or rows is None or ended:
        return samples
    # After whole passes both have served the same rows, and in one no more than there are left.
    return min(samples % rows, rows - samples % rows)


def _pass_over_all(node: Node) -> tuple[int | None, int | None]:
    """Rows of a pass over all rows of a source, and of the source; None where there is no such."""
    if any(isinstance(each, Slice | Mix) for each in chain(node)):
        return None, None
    child = node.child if isinstance(node, Repeat) else node
    return child.size, _below_orders(node).size
