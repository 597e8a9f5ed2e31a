"""Mixtures as index arithmetic: stages, exhaustion, blocks and counts."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.mixture import Mixture, schedule

NAMES = [f"c{i}" for i in range(9)]


def mixture(wanted, sizes=None, exhausted="error", block=8, seed=0):
    sizes = [None] * len(wanted[0][1]) if sizes is None else sizes
    stages, size = schedule(wanted, sizes, exhausted, NAMES)
    return Mixture(stages, size, block, seed)


def upto(mixed, length):
    return [found.tolist() for found in mixed.locate(np.arange(length, dtype=np.int64))]


@st.composite
def wanted_stages(draw, block=8):
    count = draw(st.integers(1, 6))
    starts = [0, *sorted(draw(st.sets(st.integers(1, 40), max_size=4)))]
    weights = st.lists(st.integers(0, 9), min_size=count, max_size=count).filter(any)
    return [(start * block, draw(weights)) for start in starts]


@given(wanted_stages(), st.integers(0, 5))
def test_each_stage_goes_on_from_the_counts_served(wanted, seed):
    mixed = mixture(wanted, seed=seed)
    components, rows = (np.array(found) for found in upto(mixed, 400))
    counts = np.zeros(len(wanted[0][1]), int)
    ends = [start for start, _ in wanted[1:]] + [400]
    for (start, weights), end in zip(wanted, ends, strict=True):
        assert mixed.counts(start) == tuple(counts)
        for stop in range(start + 8, end + 1, 8):
            served = np.bincount(components[start:stop], minlength=len(counts))
            shares = (stop - start) * np.array(weights) / sum(weights)
            assert np.abs(served - shares).max() <= 2
        assert not served[np.array(weights) == 0].any()
        counts += served
    for component in range(len(counts)):
        found = rows[components == component]
        assert sorted(found) == list(range(counts[component]))


@given(wanted_stages(), st.integers(0, 400), st.integers(0, 5))
def test_counts_are_those_of_the_rows_delivered(wanted, position, seed):
    mixed = mixture(wanted, seed=seed)
    components, _ = upto(mixed, position)
    found = np.bincount(np.array(components, int), minlength=len(wanted[0][1]))
    assert mixed.counts(position) == tuple(found)


@given(
    st.lists(st.integers(0, 30), max_size=40), st.integers(1, 9), st.sampled_from([None, 20, 31])
)
def test_rows_change_places_inside_their_block_only(positions, block, size):
    stages, _ = schedule([(0, [1, 1])], [None, None], "error", NAMES)
    mixed = Mixture(stages, size, block, seed=3)
    whole = mixed.places(np.arange(size or 40 * block, dtype=np.int64)).tolist()
    for start in range(0, len(whole), block):
        group = whole[start : start + block]
        assert sorted(group) == list(range(start, start + len(group)))
    positions = [p for p in positions if p < len(whole)]
    assert mixed.places(np.array(positions, np.int64)).tolist() == [whole[p] for p in positions]


def test_blocks_have_places_of_their_own():
    mixed = mixture([(0, [1, 1])], block=64)
    first, second = mixed.places(np.arange(128, dtype=np.int64)).reshape(2, 64)
    assert first.tolist() != (second - 64).tolist()
    other = mixture([(0, [1, 1])], block=64, seed=1)
    assert first.tolist() != other.places(np.arange(64, dtype=np.int64)).tolist()


def test_the_order_is_part_of_the_format():
    mixed = mixture([(0, [3, 1]), (8, [1, 1])], seed=7)
    components, rows = upto(mixed, 16)
    assert components == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1]
    assert rows == [1, 1, 3, 4, 5, 0, 2, 0, 7, 4, 8, 3, 9, 2, 6, 5]


@given(
    st.lists(st.one_of(st.none(), st.integers(1, 60)), min_size=1, max_size=5),
    st.data(),
)
def test_exhaustion(sizes, data):
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    stopped = mixture([(0, weights)], sizes, "stop")
    mixed = mixture([(0, weights)], sizes, "renormalise")
    if all(size is None for size in sizes):
        assert stopped.size is None
        assert mixture([(0, weights)], sizes, "error").stages == mixed.stages == stopped.stages
        return
    with pytest.raises(ValueError, match=f"runs out at sample {stopped.size}:"):
        mixture([(0, weights)], sizes, "error")
    counts = stopped.counts(stopped.size)
    assert all(size is None or count <= size for count, size in zip(counts, sizes, strict=True))
    # One more sample would have been of a component that has no rows left.
    (more,), _ = mixture([(0, weights)]).share(np.array([stopped.size]))
    assert counts[more] == sizes[more]
    length = 400 if mixed.size is None else mixed.size
    assert mixed.size is None or mixed.size == sum(sizes)
    components, rows = (np.array(found, int) for found in upto(mixed, length))
    for component, size in enumerate(sizes):
        found = sorted(rows[components == component])
        assert found == list(range(len(found)))
        assert size is None or len(found) <= size
        assert mixed.size is None or len(found) == size
    assert mixed.counts(length) == tuple(np.bincount(components, minlength=len(sizes)))


def test_a_component_that_lasts_for_its_stages_does_not_run_out():
    wanted = [(0, [1, 1]), (16, [1, 0])]
    assert mixture(wanted, [None, 8]).size is None
    with pytest.raises(ValueError, match=r"'c1' has 7 rows and runs out at sample 15: let it"):
        mixture(wanted, [None, 7])


def test_weight_that_is_left_is_shared_out():
    mixed = mixture([(0, [2, 1, 1]), (80, [1, 1, 2])], [10, None, None], "renormalise")
    assert [stage.weights for stage in mixed.stages] == [(2, 1, 1), (0, 1, 1), (0, 1, 2)]
    assert mixed.counts(80)[0] == 10


def test_a_stage_without_rows_is_refused():
    wanted = [(0, [1, 0]), (80, [0, 1])]
    with pytest.raises(ValueError, match="from sample 0 to 80 has no rows left from sample 30 on"):
        mixture(wanted, [30, 50], "renormalise")
    assert mixture(wanted, [30, 50], "stop").size == 30
    assert mixture([(0, [1, 0]), (16, [0, 1])], [30, 50], "renormalise").size == 66


def test_refuses_another_rule():
    with pytest.raises(ValueError, match=r"'error', 'renormalise', 'stop'.*, got 'first'"):
        mixture([(0, [1])], exhausted="first")


def test_many_finite_components_are_planned_and_reached_anywhere():
    rng = np.random.default_rng(0)
    weights = [max(round(w), 1) for w in 10 ** rng.uniform(0, 6, 200)]
    sizes = rng.integers(1, 10**12, 200).tolist()
    started = time.monotonic()
    mixed = mixture([(0, weights)], sizes, "renormalise")
    assert mixed.size == sum(sizes)
    assert mixed.counts(mixed.size) == tuple(sizes)
    where = rng.integers(0, mixed.size, 1000)
    components, rows = mixed.share(where)
    for position, component, row in zip(where[:20].tolist(), components, rows, strict=False):
        stage = mixed.stages[mixed._stage_of(position)]
        assert stage.counts(position)[component] == row
    # Anything that walks there would take years.
    assert time.monotonic() - started < 60
