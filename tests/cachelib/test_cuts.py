"""Cuts of ranges at the borders of shards, against positions counted one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.cuts import Cuts, coalesce, cut, join
from cachelib.ragged import offsets_of

SPANS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), max_size=12)


@given(SPANS, st.integers(0, 10))
def test_joined_ranges_cover_and_do_not_touch(spans: list[tuple[int, int]], gap: int) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    lengths = np.array([length for _, length in spans], np.int64)
    low, high = join(starts, lengths, gap)
    wanted = {i for start, length in spans for i in range(start, start + length)}
    covered = {i for a, b in zip(low, high, strict=True) for i in range(a, b)}
    assert wanted <= covered
    assert (low[1:] > high[:-1] + gap).all()
    for i in covered - wanted:  # only gaps between two wanted ones are read in vain
        assert any(j in wanted for j in range(i - gap, i))
        assert any(j in wanted for j in range(i + 1, i + gap + 1))


@given(SPANS, st.lists(st.integers(0, 30), min_size=1, max_size=10))
def test_cuts_lie_in_one_shard_each(spans: list[tuple[int, int]], sizes: list[int]) -> None:
    bases = offsets_of(np.array(sizes, np.int64))
    inside = [(min(a, bases[-1]), min(a + n, bases[-1])) for a, n in spans]
    starts, stops = join(
        np.array([a for a, _ in inside], np.int64), np.array([b - a for a, b in inside]), 0
    )
    cuts = cut(starts, stops, bases)
    assert (cuts.starts >= 0).all()
    assert (cuts.stops > cuts.starts).all()
    assert (cuts.stops <= np.array(sizes)[cuts.shards]).all()
    assert _positions(cuts, bases) == [
        i for a, b in zip(starts, stops, strict=True) for i in range(a, b)
    ]


@given(SPANS)
def test_coalesced_ranges_are_the_same_positions_in_as_few_ranges(
    spans: list[tuple[int, int]],
) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    low, high = coalesce(starts, np.array([length for _, length in spans], np.int64))
    wanted = [i for start, length in spans for i in range(start, start + length)]
    assert [i for a, b in zip(low, high, strict=True) for i in range(a, b)] == wanted
    assert (low < high).all()
    assert (low[1:] != high[:-1]).all()


@given(SPANS, st.lists(st.integers(0, 30), min_size=1, max_size=10))
def test_cuts_in_order_are_the_same_positions(
    spans: list[tuple[int, int]], sizes: list[int]
) -> None:
    bases = offsets_of(np.array(sizes, np.int64))
    inside = [(min(a, bases[-1]), min(a + n, bases[-1])) for a, n in spans]
    inside = [(a, b) for a, b in inside if a < b]
    cuts = cut(
        np.array([a for a, _ in inside], np.int64),
        np.array([b for _, b in inside], np.int64),
        bases,
    )
    assert (cuts.stops > cuts.starts).all()
    assert (cuts.stops <= np.array(sizes)[cuts.shards]).all()
    assert _positions(cuts, bases) == [i for a, b in inside for i in range(a, b)]


def _positions(cuts: Cuts, bases: np.ndarray) -> list[int]:
    return [
        i
        for shard, a, b in zip(cuts.shards, cuts.starts, cuts.stops, strict=True)
        for i in range(bases[shard] + a, bases[shard] + b)
    ]
