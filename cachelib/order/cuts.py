"""Cuts: ranges of what lies back to back over all shards, as ranges of one shard each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cachelib.ragged import ranges


@dataclass(frozen=True, eq=False)
class Cuts:
    """Ranges cut at shard borders: positions [starts, stops) of one shard's array each."""

    shards: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        return self.stops - self.starts

    def bounds(self) -> Iterator[tuple[int, int, int]]:
        """Shard, start and stop of each."""
        return zip(self.shards.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)

    def where(self, chosen: np.ndarray) -> Cuts:
        """Those that a mask chooses."""
        return Cuts(self.shards[chosen], self.starts[chosen], self.stops[chosen])


def join(starts: np.ndarray, lengths: np.ndarray, gap: int) -> tuple[np.ndarray, np.ndarray]:
    """Disjoint, sorted ranges that cover all given ones; those closer than `gap` become one.

    Returns:
        (starts, stops), int64 each. Empty ranges are covered only by chance.
    """
    filled = lengths > 0
    order = np.argsort(starts[filled], kind="stable")
    low = starts[filled][order]
    high = (starts[filled] + lengths[filled])[order]
    if len(low) == 0:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    reach = np.maximum.accumulate(high)
    opens = np.flatnonzero(np.concatenate([[True], low[1:] > reach[:-1] + gap]))
    return low[opens], reach[np.concatenate([opens[1:] - 1, [len(low) - 1]])]


def coalesce(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same positions in the same order, as (starts, stops) of as few ranges as possible."""
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    stops = starts + lengths
    opens = np.ones(len(starts), bool)
    opens[1:] = starts[1:] != stops[:-1]
    closes = np.roll(opens, -1)  # where the next one opens; the last is next to the first
    return starts[opens], stops[closes]


def cut(starts: np.ndarray, stops: np.ndarray, bases: np.ndarray) -> Cuts:
    """Cut ranges at the borders of shards that begin at `bases`, in the order given.

    Args:
        bases: int64 of shape (shards + 1,), from 0; empty shards get no cut.
    """
    low = np.searchsorted(bases, starts, side="right") - 1
    begins = bases[low]
    # Most often nothing is to be cut.
    if ((stops > starts) & (stops <= bases[np.minimum(low + 1, len(bases) - 1)])).all():
        return Cuts(low, starts - begins, stops - begins)
    starts, stops = starts[stops > starts], stops[stops > starts]
    low = np.searchsorted(bases, starts, side="right") - 1
    high = np.searchsorted(bases, stops, side="left") - 1  # the shard of the last position
    counts = high - low + 1
    shards = ranges(low, counts)
    first = np.maximum(np.repeat(starts, counts), bases[shards])
    last = np.minimum(np.repeat(stops, counts), bases[shards + 1])
    filled = last > first
    shards, first, last = shards[filled], first[filled], last[filled]
    return Cuts(shards, first - bases[shards], last - bases[shards])
