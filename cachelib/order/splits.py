"""Exact splits: a sequence shared out among components by weight, with random access.

A two-way split gives the left side floor(n * p + 1/2) of the first n positions and the right side
the others, so neither is ever more than 1/2 from its share. p is a fraction of 2**64 and products
have 128 bits: nothing is rounded up to position 2**63, where a float would be hundreds off.

Many components are leaves of a Huffman tree of such splits. An error of a node reaches a leaf
below it scaled by the ratio of their weights, so a leaf of weight a0 with ancestors a1, a2, ... up
to the child of the root is off by at most 1/2 * (1 + a0/a1 + a0/a2 + ...). In a Huffman tree the
sibling of a node is no lighter than that node's children, since lighter nodes are joined first, so
a(k+2) >= a(k+1) + ak: ancestors grow at least as Fibonacci numbers do, and the sum of their
reciprocals is below 3.36. Every count is therefore within 1.68 of its share. Rounding p to 64 bits
adds less than 1/2 up to position 2**63 (at most 1.85 together, for a leaf of depth five), so the
bound that is promised is 2.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Positions worked on at a time: the scratch arrays of a block stay in the processor's cache.
BLOCK = 1 << 13

_WHOLE = 1 << 64
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TOP = np.uint64(63)
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, eq=False)
class SplitTree:
    """A Huffman tree of two-way splits. A node is a number from 0 on, a component c is ``~c``.

    Attributes:
        fractions: uint64 of shape (nodes,): what the left side gets, in parts of 2**64.
        children: int64 of shape (nodes, 2): left and right, each a later joined node's elder.
        root: the node, or the only component, that stands for the whole sequence.
    """

    fractions: np.ndarray
    children: np.ndarray
    root: int

    @classmethod
    def of(cls, weights: Sequence[int]) -> SplitTree:
        """The tree of integer weights, one a component; those of weight 0 have no part in it.

        Ties are decided by the order of the components, so components of weight 0 change nothing.
        """
        heap = [(weight, i, ~i) for i, weight in enumerate(weights) if weight]
        heapq.heapify(heap)
        fractions: list[int] = []
        children: list[tuple[int, int]] = []
        while len(heap) > 1:
            left, _, left_node = heapq.heappop(heap)
            right, _, right_node = heap[0]
            both = left + right
            # Rounded to the nearest; a share below 2**-64 is never served, but is no error.
            nearest = (2 * left * _WHOLE + both) // (2 * both)
            fractions.append(min(max(nearest, 1), _WHOLE - 1))
            children.append((left_node, right_node))
            node = len(children) - 1
            heapq.heapreplace(heap, (both, len(weights) + node, node))
        return cls(
            np.array(fractions, np.uint64),
            np.array(children, np.int64).reshape(-1, 2),
            heap[0][2],
        )

    def counts(self, length: int) -> dict[int, int]:
        """How many of the first ``length`` positions belong to each component of the tree."""
        found = {self.root: length}
        # Children were joined before their parents, so they have lower numbers.
        for node in range(len(self.fractions) - 1, -1, -1):
            whole = found.pop(node)
            left, right = self._sides[node]
            found[left] = (whole * self._exact[node] + _WHOLE // 2) // _WHOLE
            found[right] = whole - found[left]
        return {~leaf: count for leaf, count in found.items()}

    def position(self, component: int, index: int) -> int:
        """The position of a component's row ``index``, from 0: the inverse of `descend`."""
        node, at = ~component, index
        while node in self._parents:
            parent, is_left = self._parents[node]
            fraction = self._exact[parent]
            odd = (2 * at + 1) * (_WHOLE // 2)
            # The least n of which this side gets index + 1 rows, less one.
            at = -(-odd // fraction) - 1 if is_left else odd // (_WHOLE - fraction)
            node = parent
        return at

    @cached_property
    def _exact(self) -> list[int]:
        return [int(fraction) for fraction in self.fractions.tolist()]

    @cached_property
    def _sides(self) -> list[list[int]]:
        sides: list[list[int]] = self.children.tolist()
        return sides

    @cached_property
    def _parents(self) -> dict[int, tuple[int, bool]]:
        return {
            child: (parent, side == 0)
            for parent, pair in enumerate(self._sides)
            for side, child in enumerate(pair)
        }


def descend(
    fractions: np.ndarray, children: np.ndarray, nodes: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which component each position belongs to, and which of its rows it is.

    Args:
        fractions, children: of one tree, or of several put back to back.
        nodes: int64 of shape (n,): the root that each position begins at.
        positions: int64 of shape (n,), at least 0.

    Returns:
        (components, indices): int64 of shape (n,) each.
    """
    components, indices = np.empty_like(nodes), np.empty_like(positions)
    flat = children.reshape(-1)
    for start in range(0, len(nodes), BLOCK):
        block = slice(start, start + BLOCK)
        components[block], indices[block] = _descend(
            fractions, flat, nodes[block], positions[block]
        )
    return components, indices


def _descend(
    fractions: np.ndarray, children: np.ndarray, nodes: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    leaves, indices = nodes.copy(), positions.copy()
    active = np.flatnonzero(nodes >= 0)
    here, at = nodes[active], positions[active].view(np.uint64)
    while len(active):
        lefts, goes_left = split(at, fractions[here])
        at = np.where(goes_left, lefts, at - lefts)
        here = children[2 * here + ~goes_left]
        arrived = here < 0
        if arrived.any():
            leaves[active[arrived]] = here[arrived]
            indices[active[arrived]] = at[arrived].view(np.int64)
            on = ~arrived
            active, here, at = active[on], here[on], at[on]
    return ~leaves, indices


def split(positions: np.ndarray, fractions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One two-way split.

    Args:
        positions: uint64 of shape (n,), below 2**63.
        fractions: uint64 of shape (n,): the share of the left side in parts of 2**64.

    Returns:
        (lefts, goes_left): how many positions before each one go left (uint64), and whether it
        does itself (bool).
    """
    a1, a0 = positions >> _HALF, positions & _LOW
    b1, b0 = fractions >> _HALF, fractions & _LOW
    cross_1, cross_2 = a1 * b0, a0 * b1
    middle = ((a0 * b0) >> _HALF) + (cross_1 & _LOW) + (cross_2 & _LOW)
    high = a1 * b1 + (cross_1 >> _HALF) + (cross_2 >> _HALF) + (middle >> _HALF)
    low = positions * fractions
    # Adding 1/2 flips the top bit of the low half and carries if it was set.
    lefts = high + (low >> _TOP)
    return lefts, (low ^ _SIGN) > ~fractions
