"""Groups: which shards that lie side by side become one. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def groups(
    sizes: np.ndarray, waste: np.ndarray, borders: np.ndarray, target: int
) -> Iterator[range]:
    """Runs of shards that are packed into one, in order; those left out are well as they are.

    A run holds at most ``target`` bytes, unless it is one shard, and does not cross a border. It is
    worth packing if it is several shards, or one with deleted rows: what was deleted is to go.

    Args:
        sizes: int64 (shards,), bytes of the rows that are left of each.
        waste: int64 (shards,), bytes of its deleted rows.
        borders: int64, ascending, numbers of shards with which an era begins.
        target: bytes of a shard.
    """
    first, size = 0, 0
    starts = set(borders.tolist())
    for number in range(len(sizes) + 1):
        ends = number == len(sizes) or number in starts or size + sizes[number] > target
        if ends and number > first:
            run = range(first, number)
            if len(run) > 1 or waste[first]:
                yield run
            first, size = number, 0
        if number < len(sizes):
            size += int(sizes[number])
