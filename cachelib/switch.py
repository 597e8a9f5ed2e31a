"""What becomes of the rows of a run that goes on in another order.

A run that was served the first s samples of one order and goes on at sample s of another one serves
some rows once more than the new order alone would have, and others once less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cachelib.errors import ForebayError
from cachelib.format.canonical import canonical
from cachelib.nodes.base import Node, Rows, chain, described
from cachelib.nodes.blocks import BlockShuffle
from cachelib.nodes.concat import Concat
from cachelib.nodes.leaves import leaves
from cachelib.nodes.left import Left
from cachelib.nodes.map import Map
from cachelib.nodes.mix import Mix
from cachelib.nodes.pack import Pack
from cachelib.nodes.repeat import Repeat
from cachelib.nodes.selected import Selected
from cachelib.nodes.shuffle import Shuffle
from cachelib.nodes.slices import Slice
from cachelib.nodes.stored import Stored
from cachelib.nodes.windows import Windows
from cachelib.order.fingerprint import differences, fingerprint
from cachelib.recipe import made

COUNTED = 1 << 22
"""Rows of an order that are counted one by one, at most: that takes some seconds."""


def switched(state: Mapping[str, Any], description: Mapping[str, Any] | None, new: Node) -> str:
    """What going on from a loader's state in a new order does, in words.

    Args:
        state: of the loader that served the samples so far.
        description: of that loader, None where there is none.
        new: what goes on.
    """
    samples: int = state["samples"]
    old = None if description is None else _former(state, description, new)
    if old is None or (sources := _shared_sources(old, new)) is None:
        why = "there is no description of the old order"
        if description is not None:
            why = "the old order cannot be made again, from its description, over the same rows"
        return (
            f"what the {samples:,} samples served so far hold may come again, and what the first "
            f"{samples:,} of this order hold may be left out (not counted: {why})"
        )
    # What whole passes serve is the same in any order of the same rows.
    rows = _shared_pass(old, new, samples)
    begun = 0 if rows is None else samples - samples % rows
    if samples - begun > COUNTED:
        most = samples if rows is None else min(samples - begun, begun + rows - samples)
        return (
            f"against a run in this order alone, at most {most:,} rows are served once more and at "
            f"most {most:,} once less (not counted: there are more than {COUNTED:,})"
        )
    count = 1 + max(int(numbers.max()) for numbers in sources)
    before, now = (
        _served(node, begun, samples, numbers, count)
        for node, numbers in zip((old, new), sources, strict=True)
    )
    _, places = np.unique(np.concatenate([before, now]), return_inverse=True)
    surplus = np.zeros(len(places), np.int64)
    np.add.at(surplus, places, np.repeat([1, -1], [len(before), len(now)]))
    again, missed = surplus[surplus > 0].sum(), -surplus[surplus < 0].sum()
    return (
        f"against a run in this order alone, {again:,} rows are served once more and {missed:,} "
        "once less"
    )


def _former(state: Mapping[str, Any], description: Mapping[str, Any], new: Node) -> Node | None:
    """The node that a state is of, by a description, over the caches of another node.

    None where it cannot be made, or where the state is not of the node that is described.
    """
    caches = {leaf.rows.url: leaf.rows for leaf in leaves(new)}

    def opened(url: str, version: int | None) -> Rows:
        rows = caches[url]
        if version is None or rows.identity()["version"] == version:
            return rows
        return rows.at(version)

    try:
        old = made(description["dataset"], opened)
    except (LookupError, TypeError, ValueError, ForebayError):
        return None
    there = fingerprint(described(old, state["samples"]))
    return None if differences(state["order"], there) else old


def _shared_sources(*nodes: Node) -> list[np.ndarray] | None:
    """For each node the numbers of what its components are rows of, int64 (components,).

    Equal numbers mean that equal row numbers are the same rows. None where that cannot be told.
    """
    known: dict[bytes, int] = {}
    kept: dict[str, bytes] = {}
    found = []
    for node in nodes:
        below = _below_orders(node)
        parts = below.children if isinstance(below, Mix | Concat) else (below,)
        numbers = []
        for part in map(_below_orders, parts):
            key = _source(part)
            # Of one cache, rows that are cut otherwise are other rows and yet hold the same values.
            if key is None or any(
                kept.setdefault(leaf.rows.url, key) != key for leaf in leaves(part)
            ):
                return None
            numbers.append(known.setdefault(key, len(known)))
        found.append(np.array(numbers, np.int64))
    return found


def _below_orders(node: Node) -> Node:
    """What a node orders."""
    while isinstance(node, Shuffle | BlockShuffle | Repeat | Slice | Map):
        node = node.child
    return node


def _source(node: Node) -> bytes | None:
    """What decides which row has which number in a node; None where it is not known."""
    match node:
        # A cache only grows, so that its version changes nothing.
        case Stored():
            return canonical(["cache", node.rows.url])
        case Left():
            return _source(node.child)
        case Windows(stream=Stored() as stored):
            grid = [node.field, node.grid.length, node.grid.stride]
            return canonical(["windows", stored.rows.url, *grid])
        case Windows() | Pack() | Selected():
            return canonical(node.describe())
    return None


def _served(node: Node, start: int, stop: int, numbers: np.ndarray, sources: int) -> np.ndarray:
    """The rows at positions [start, stop), int64: equal where they are the same row.

    Args:
        numbers: of the source of each component.
        sources: how many there are.
    """
    stop = stop if node.size is None else min(stop, node.size)
    traced = node.trace(np.arange(start, stop, dtype=np.int64), 0)
    rows: np.ndarray = traced["row"] * sources + numbers[traced["component"]]
    return rows


def _shared_pass(old: Node, new: Node, samples: int) -> int | None:
    """Rows of the passes that both orders make over all rows of one source; None if they do not."""
    passes = set()
    for node in (old, new):
        ended = node.size is not None and node.size < samples
        if ended or any(isinstance(each, Slice | Mix | Concat) for each in chain(node)):
            return None
        child = node.child if isinstance(node, Repeat) else node
        passes.add((child.size, _below_orders(node).size))
    return passes.pop()[0] if len(passes) == 1 else None
