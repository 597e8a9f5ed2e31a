"""Mixtures: which component each position belongs to, stage by stage, and which row of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from cachelib.order import seeds
from cachelib.order.indices import LARGEST
from cachelib.order.permutation import Permutation
from cachelib.order.splits import SplitTree, descend

Exhausted = Literal["error", "renormalise", "stop"]

BOUND = 2
"""No count is further than this from its share in any beginning of a stage; see ``splits``."""


@dataclass(frozen=True)
class Stage:
    """A stretch of a mixture with the same weights.

    Attributes:
        start: its first position.
        weights: one for each component, integers without a common divisor.
        served: rows of each component before ``start``.
    """

    start: int
    weights: tuple[int, ...]
    served: tuple[int, ...]

    @cached_property
    def tree(self) -> SplitTree:
        return SplitTree.of(self.weights)

    def counts(self, position: int) -> tuple[int, ...]:
        """Rows of each component before a position of the stage, or its end."""
        counts = self.tree.counts(position - self.start)
        return tuple(before + counts.get(c, 0) for c, before in enumerate(self.served))


@dataclass(frozen=True)
class Mixture:
    """Positions shared out among components, exactly, and rows inside each block permuted.

    The splits alone are periodic: at 50/50 components alternate, and of two ranks that take turns
    each would see one component only. So the rows of each block change places, by the seed and
    the number of the block, which leaves counts at the ends of blocks as they are.

    Attributes:
        stages: the first begins at 0.
        size: number of positions; None where they never end.
        block: positions of a block; block k begins at k * block, the last may be shorter.
        seed: of the places inside blocks.
    """

    stages: tuple[Stage, ...]
    size: int | None
    block: int
    seed: int

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which component stands at each position, and which of its rows.

        Args:
            positions: int64 of shape (n,) in [0, size).

        Returns:
            (components, rows): int64 of shape (n,) each. A component's rows are 0, 1, 2, ..., each
            once, in that order but for the places inside blocks.
        """
        return self.share(self.places(positions))

    def share(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `locate`, before rows change places inside blocks."""
        starts, served, roots, fractions, children = self._tables
        stages = np.searchsorted(starts, positions, side="right") - 1
        components, rows = descend(fractions, children, roots[stages], positions - starts[stages])
        return components, rows + served[stages, components]

    def places(self, positions: np.ndarray) -> np.ndarray:
        """The positions that those at int64 ``positions`` change places with; same shape."""
        blocks, offsets = np.divmod(positions, np.int64(self.block))
        by_block = np.argsort(blocks, kind="stable")
        numbers, firsts = np.unique(blocks[by_block], return_index=True)
        found = np.empty_like(positions)
        for number, group in zip(numbers.tolist(), np.split(by_block, firsts[1:]), strict=False):
            start = number * self.block
            size = self.block if self.size is None else min(self.block, self.size - start)
            permutation = Permutation(size, seeds.derive("mix", self.seed, number))
            found[group] = start + permutation.apply(offsets[group])
        return found

    def counts(self, position: int) -> tuple[int, ...]:
        """Rows of each component among the first ``position``, as `locate` has them."""
        whole = position - position % self.block if position != self.size else position
        found = np.array(self.stages[self._stage_of(whole)].counts(whole), np.int64)
        components, _ = self.locate(np.arange(whole, position, dtype=np.int64))
        return tuple((found + np.bincount(components, minlength=len(found))).tolist())

    def reach(self, position: int) -> int:
        """The end of the blocks that the rows before a position were taken from."""
        end = -(-position // self.block) * self.block
        return end if self.size is None else min(end, self.size)

    def _stage_of(self, position: int) -> int:
        return int(np.searchsorted(self._tables[0], position, side="right")) - 1

    @cached_property
    def _tables(self) -> tuple[np.ndarray, ...]:
        """Of all stages: starts, rows served before, roots; and their trees put back to back."""
        trees = [stage.tree for stage in self.stages]
        bases = np.cumsum([0, *(len(tree.fractions) for tree in trees)])
        children = [
            np.where(tree.children >= 0, tree.children + base, tree.children)
            for tree, base in zip(trees, bases.tolist(), strict=False)
        ]
        roots = [
            tree.root + base if tree.root >= 0 else tree.root
            for tree, base in zip(trees, bases.tolist(), strict=False)
        ]
        return (
            np.array([stage.start for stage in self.stages], np.int64),
            np.array([stage.served for stage in self.stages], np.int64),
            np.array(roots, np.int64),
            np.concatenate([tree.fractions for tree in trees]),
            np.concatenate(children),
        )


def schedule(
    wanted: Sequence[tuple[int, Sequence[int]]],
    sizes: Sequence[int | None],
    exhausted: Exhausted,
    names: Sequence[str],
) -> tuple[tuple[Stage, ...], int | None]:
    """The stages of a mixture, with those that begin where a component has no rows left.

    Args:
        wanted: (start, weights) of each stage, the first from 0 on and each later than the one
            before; weights are at least 0, one for each component, not all 0.
        sizes: rows of each component; None where they never end.
        exhausted: what happens where a component with weight has no rows left: "error" is a
            ValueError, "renormalise" shares its weight out among the others, "stop" ends the
            mixture.
        names: of the components, for messages.

    Returns:
        (stages, size): size is None where the mixture never ends.

    Raises:
        ValueError: a component runs out and that is an error; a stage has no rows left at all, and
            another one would follow.
    """
    if exhausted not in get_args(Exhausted):
        raise ValueError(f"exhausted must be one of {get_args(Exhausted)}, got {exhausted!r}")
    stages: list[Stage] = []
    served: tuple[int, ...] = (0,) * len(sizes)
    ends = [start for start, _ in wanted[1:]] + [LARGEST + 1]
    for (start, weights), end in zip(wanted, ends, strict=True):
        position, live = start, tuple(weights)
        while position < end:
            if exhausted == "renormalise":
                live = tuple(
                    weight if size is None or count < size else 0
                    for weight, size, count in zip(live, sizes, served, strict=True)
                )
                if not any(live):
                    if end > LARGEST:
                        return tuple(stages), position
                    raise ValueError(
                        f"the stage from sample {start} to {end} has no rows left from sample "
                        f"{position} on: give it components that last, or begin the next one there"
                    )
            divisor = math.gcd(*live)
            stage = Stage(position, tuple(weight // divisor for weight in live), served)
            last, component = _end(stage, sizes, end)
            if component is not None and exhausted == "error":
                raise ValueError(
                    f"component {names[component]!r} has {sizes[component]} rows and runs out at "
                    f"sample {last}: let it repeat(), give it weight 0 in a stage from there on, "
                    "or say exhausted='renormalise' or 'stop'"
                )
            if component is not None and exhausted == "stop":
                return (*stages, stage) if last > position else tuple(stages), last
            stages.append(stage)
            position, served = last, stage.counts(last)
    return tuple(stages), None


def _end(stage: Stage, sizes: Sequence[int | None], end: int) -> tuple[int, int | None]:
    """Where a stage ends: at ``end``, or where a component is asked for a row that it lacks."""
    whole = sum(stage.weights)
    finite = [
        (c, size - stage.served[c])
        for c, size in enumerate(sizes)
        if size is not None and stage.weights[c]
    ]
    # Positions within the bound of the share, so that few have to be computed.
    latest = min(((left + 1 + BOUND) * whole // stage.weights[c] for c, left in finite), default=0)
    found = [
        (stage.start + stage.tree.position(c, left), c)
        for c, left in finite
        if (left - BOUND) * whole <= latest * stage.weights[c]
    ]
    return min((each for each in found if each[0] < end), default=(end, None))
