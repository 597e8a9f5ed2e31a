"""Two-level shuffle: blocks of rows in a random order, then rows within a few blocks of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from cachelib.order import seeds
from cachelib.order.indices import as_integer
from cachelib.order.permutation import Permutation

BUDGET = 256 << 20
"""Bytes of decoded rows that a block shuffle may hold unless told otherwise."""

WINDOW = 64
"""Blocks whose rows are mixed with one another unless told otherwise."""

HELD = 2
"""Groups held at once: the one that is delivered and the one that is read ahead."""


@dataclass(frozen=True)
class Blocks:
    """Rows cut into blocks, and blocks into groups: how a two-level shuffle reads.

    Attributes:
        rows: number of rows, at least 0.
        block: rows that lie side by side and are read together, at least 1; the last block of all
            has those that are left.
        window: blocks whose rows are mixed with one another, at least 1. Such blocks are a group.
        row_bytes: mean bytes of a decoded row.
    """

    rows: int
    block: int
    window: int
    row_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ValueError(f"there are 0 or more rows, got {self.rows}")
        if self.block < 1:
            raise ValueError(f"a block has 1 or more rows, got block={self.block}")
        if self.window < 1:
            raise ValueError(f"a window has 1 or more blocks, got window={self.window}")

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.rows // self.block)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return -(-self.count // self.window)

    @property
    def missing(self) -> int:
        """Rows that the last block lacks."""
        return self.count * self.block - self.rows

    @property
    def block_bytes(self) -> int:
        """Bytes of a decoded block."""
        return round(min(self.block, self.rows) * self.row_bytes)

    @property
    def working_set(self) -> int:
        """Bytes of decoded rows that are held: those of `HELD` groups, or of all there are."""
        held = min(HELD * self.window * self.block, self.rows)
        return round(held * self.row_bytes)

    def reads(self, batch_size: int) -> float:
        """Blocks read for a batch of rows, on average over a pass.

        Raises:
            ValueError: the batch has less than one row.
        """
        if as_integer("batch_size", batch_size) < 1:
            raise ValueError(f"a batch has 1 or more rows, got batch_size={batch_size}")
        return batch_size * self.count / self.rows if self.rows else 0.0

    def check(self, budget: int) -> None:
        """ValueError if the working set is above a budget in bytes; says what would fit."""
        if self.working_set <= budget:
            return
        fitting = int(budget // (HELD * self.block * self.row_bytes))
        advice = (
            f"window={fitting} would fit"
            if fitting
            else "not even window=1 fits: choose smaller blocks"
        )
        raise ValueError(
            f"a block shuffle holds {HELD} groups of window={self.window} blocks of "
            f"block={self.block} rows of {self.row_bytes:,.0f} bytes: {self.working_set:,} bytes, "
            f"more than budget={budget:,}; {advice}"
        )


@dataclass(frozen=True)
class BlockOrder:
    """Which row stands where: an exact permutation of [0, rows) in constant memory.

    All blocks are permuted; each ``window`` of them that follow one another make a group; the rows
    of a group are permuted. The short last block takes its place among the others, so that its
    group is shorter and the groups after it begin earlier.

    Attributes:
        blocks: the sizes.
        seed: any integer.
    """

    blocks: Blocks
    seed: int

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The group of each int64 position in [0, rows), and its place there; int64 both."""
        whole = np.int64(self.blocks.window * self.blocks.block)
        # Positions after the short block stand where they would if it were a full one.
        filled = positions + np.where(positions >= self._short_end, self.blocks.missing, 0)
        groups = filled // whole
        return groups, positions - self._starts(groups)

    def group(self, number: int) -> Group:
        """The group of a number in [0, groups)."""
        first = number * self.blocks.window
        slots = np.arange(first, min(first + self.blocks.window, self.blocks.count))
        numbers = np.sort(self._order.apply(slots))
        size = len(numbers) * self.blocks.block
        if len(numbers) and numbers[-1] == self.blocks.count - 1:
            size -= self.blocks.missing
        key = seeds.derive("rows of a group", self.seed, number)
        return Group(numbers, self.blocks.block, Permutation(size, key))

    def apply(self, positions: np.ndarray) -> np.ndarray:
        """The rows at int64 positions in [0, rows), int64."""
        groups, places = self.locate(positions)
        rows = np.empty_like(positions)
        for number in np.unique(groups):
            chosen = groups == number
            group = self.group(int(number))
            rows[chosen] = group.rows(group.order.apply(places[chosen]))
        return rows

    def invert(self, rows: np.ndarray) -> np.ndarray:
        """The positions of int64 rows in [0, rows), int64."""
        numbers, within = np.divmod(rows, np.int64(self.blocks.block))
        groups = self._order.invert(numbers) // np.int64(self.blocks.window)
        positions = np.empty_like(rows)
        starts = self._starts(groups)
        for number in np.unique(groups):
            chosen = groups == number
            group = self.group(int(number))
            slots = np.searchsorted(group.blocks, numbers[chosen])
            places = group.order.invert(slots * self.blocks.block + within[chosen])
            positions[chosen] = starts[chosen] + places
        return positions

    def _starts(self, groups: np.ndarray) -> np.ndarray:
        """The first positions of groups."""
        first = groups * np.int64(self.blocks.window)
        shift = np.where(first > self._short_slot, self.blocks.missing, 0)
        return first * np.int64(self.blocks.block) - shift

    @cached_property
    def _order(self) -> Permutation:
        return Permutation(self.blocks.count, seeds.derive("blocks", self.seed))

    @cached_property
    def _short_slot(self) -> int:
        """Where the last block stands in the order of blocks; 0 where there is none."""
        if not self.blocks.count:
            return 0
        last = np.array([self.blocks.count - 1], np.int64)
        return int(self._order.invert(last)[0])

    @cached_property
    def _short_end(self) -> int:
        """The position after the group that holds the last block."""
        group = self._short_slot // self.blocks.window
        slots = min((group + 1) * self.blocks.window, self.blocks.count)
        return slots * self.blocks.block - self.blocks.missing


@dataclass(frozen=True, eq=False)
class Group:
    """Blocks that are mixed with one another.

    Attributes:
        blocks: their numbers, int64, ascending, so that only the last one can be short.
        block: rows of a block.
        order: of the rows of these blocks back to back: place in the group -> place among them.
    """

    blocks: np.ndarray
    block: int
    order: Permutation

    def rows(self, places: np.ndarray) -> np.ndarray:
        """The rows at int64 places among those of the blocks back to back, int64."""
        slots, within = np.divmod(places, np.int64(self.block))
        return self.blocks[slots] * np.int64(self.block) + within


@lru_cache(maxsize=8)
def block_order(blocks: Blocks, seed: int) -> BlockOrder:
    """The order of sizes and a seed; the tables of those used last are kept."""
    return BlockOrder(blocks, seed)
