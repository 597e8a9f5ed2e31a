"""Ordering: how the sorted runs of a plan become shards in order. Pure.

Each run holds rows in the order of their keys, all over the range of keys. A share of a merge is a
range of keys of some runs, or all of their rows: one task, one shard. Where there are so many runs
that the part of one in a range would be too little for a request, runs are first merged by groups
into longer ones.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachelib.format.shard import Manifest
from pipelines.order.keys import Key
from pipelines.order.orders import Order

READ_BYTES = 64 << 10
"""Bytes of a range that one run holds, at least, on average."""

FAN_IN = 1024
"""Runs that one task merges, at most, to make a longer one."""

CARRIED = 16 << 10
"""Covers and rejects that one shard takes over from runs, unless a single run has more."""


@dataclass(frozen=True)
class Share:
    """What one task merges: the rows of runs [first, stop) with keys in [lower, upper).

    Attributes:
        lower, upper: keys, or beginnings of such; None where there is no limit.
    """

    first: int
    stop: int
    lower: Key | None = None
    upper: Key | None = None


@dataclass(frozen=True)
class Merge:
    """A pass over runs.

    Attributes:
        final: whether its shards are those of the cache, else longer runs.
        runs: those merged, that have rows; without what their manifests say of sources.
        shares: what becomes a shard each, in order.
        carried: ranges [first, stop) of the shards as they were first written, empty ones too, of
            which one shard without rows takes over what was read for them.
    """

    final: bool
    runs: tuple[Manifest, ...]
    shares: tuple[Share, ...]
    carried: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        return {
            "final": self.final,
            "runs": [run.to_json() for run in self.runs],
            "shares": [
                [s.first, s.stop, *(None if k is None else list(k) for k in (s.lower, s.upper))]
                for s in self.shares
            ],
            "carried": [list(each) for each in self.carried],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Merge:
        return cls(
            value["final"],
            tuple(Manifest.from_json(run) for run in value["runs"]),
            tuple(
                Share(first, stop, *(None if k is None else tuple(k) for k in (lower, upper)))
                for first, stop, lower, upper in value["shares"]
            ),
            tuple((first, stop) for first, stop in value["carried"]),
        )


def range_count(size: int, split_bytes: int) -> int:
    """Ranges of keys, each of about a split's bytes, given the bytes of all rows."""
    return max(1, math.ceil(size / split_bytes))


def group_size(runs: int, size: int, ranges: int) -> int:
    """Runs to be merged into one before ranges are cut; 1 where reads are large enough.

    Args:
        runs: how many there are.
        size: bytes of all rows.
        ranges: how many will be cut.
    """
    read = size / max(1, runs * ranges)
    if runs < 2 or ranges < 2 or read >= READ_BYTES:
        return 1
    return min(runs, FAN_IN, math.ceil(READ_BYTES / max(1, read)))


def passes(runs: int, size: int, split_bytes: int) -> int:
    """Passes over all rows after the runs are written."""
    return 1 if group_size(runs, size, range_count(size, split_bytes)) == 1 else 2


def plan_groups(runs: Sequence[Manifest], group: int) -> Merge:
    """The pass that merges runs into longer ones, of up to `group` each."""
    count = math.ceil(len(runs) / group)
    limits = [len(runs) * i // count for i in range(count + 1)]
    shares = tuple(Share(first, stop) for first, stop in itertools.pairwise(limits))
    return Merge(False, tuple(map(_stripped, runs)), shares, ())


def plan_ranges(
    order: Order, runs: Sequence[Manifest], ranges: int, written: Sequence[Manifest]
) -> Merge:
    """The pass that cuts ranges of keys out of runs, and carries over what was read for them.

    Args:
        runs: those that have rows.
        ranges: how many to cut, about; 0 rows make none.
        written: the shards as they were first written.
    """
    pivots = even_pivots(ranges) if order.kind == "shuffle" else sampled_pivots(runs, ranges)
    limits = [None, *pivots, None]
    shares = [Share(0, len(runs), *pair) for pair in itertools.pairwise(limits)]
    weights = (len(m.covers) + sum(m.rejects.values()) for m in written)
    return Merge(
        True,
        tuple(map(_stripped, runs)),
        tuple(shares) if runs else (),
        tuple(_runs_of(weights, CARRIED)),
    )


def even_pivots(ranges: int) -> list[Key]:
    """Keys that cut the space of hashes into ranges of one size."""
    return [((number << 64) // ranges,) for number in range(1, ranges)]


def sampled_pivots(runs: Sequence[Manifest], ranges: int) -> list[Key]:
    """Keys that cut rows into ranges of about as many bytes each, by the samples of the runs."""
    weighted: list[tuple[Key, int]] = []
    for run in runs:
        found = run.task["samples"]
        ends = [*found["bytes"][1:], run.task["size"]]
        for key, start, end in zip(found["keys"], found["bytes"], ends, strict=True):
            weighted.append((tuple(key), end - start))
    weighted.sort()
    sums = [0, *itertools.accumulate(weight for _, weight in weighted)]
    pivots: list[Key] = []
    for number in range(1, ranges):
        place = bisect.bisect_left(sums, sums[-1] * number / ranges)
        if place < len(weighted) and (not pivots or weighted[place][0] > pivots[-1]):
            pivots.append(weighted[place][0])
    return pivots


def bracket(run: Manifest, key: Key) -> tuple[int, int]:
    """Between which rows of a run a key lies: that of the first row that does not come before it.

    Returns:
        (low, high): the first such row, or the end, is at least low and at most high.
    """
    found = run.task["samples"]
    place = bisect.bisect_left(found["keys"], list(key))
    low = found["rows"][place - 1] + 1 if place else 0
    return low, found["rows"][place] if place < len(found["rows"]) else run.rows


def _runs_of(weights: Iterable[int], limit: int) -> Iterable[tuple[int, int]]:
    """Neighbours, as [first, stop), that weigh no more than a limit together, or just one."""
    first = stop = total = 0
    for weight in weights:
        if stop > first and total + weight > limit:
            yield first, stop
            first, total = stop, 0
        stop += 1
        total += weight
    if stop > first:
        yield first, stop


def _stripped(run: Manifest) -> Manifest:
    task = {name: run.task[name] for name in ("samples", "size")}
    return replace(run, covers=(), records=run.rows, rejects={}, counts={}, task=task)
