"""Exact splits, against Python's integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.splits import SplitTree, descend, split

LIMIT = 2**63 - 1
positions = st.one_of(st.integers(0, LIMIT), st.integers(LIMIT - 1000, LIMIT), st.integers(0, 1000))
fractions = st.one_of(
    st.integers(1, 2**64 - 1),
    st.sampled_from([1, 2, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]),
)
weights = st.lists(st.one_of(st.integers(1, 10), st.integers(1, 10**6)), min_size=1, max_size=40)


def located(tree, where):
    where = np.array(where, np.int64)
    return descend(tree.fractions, tree.children, np.full(len(where), tree.root), where)


@given(st.lists(st.tuples(positions, fractions), min_size=1))
def test_a_split_is_exact(pairs):
    lefts, goes_left = split(*(np.array(column, np.uint64) for column in zip(*pairs, strict=True)))
    for (n, p), left, goes in zip(pairs, lefts.tolist(), goes_left.tolist(), strict=True):
        before, after = ((m * p + 2**63) // 2**64 for m in (n, n + 1))
        assert (left, goes) == (before, after > before)


@given(weights)
def test_rows_of_each_component_come_once_and_in_order(weights):
    tree = SplitTree.of(weights)
    components, rows = located(tree, range(2000))
    for component in range(len(weights)):
        found = rows[components == component]
        assert found.tolist() == list(range(len(found)))
        assert tree.counts(2000)[component] == len(found)


@given(weights, positions)
def test_counts_and_positions_agree_with_the_descent_anywhere(weights, position):
    tree = SplitTree.of(weights)
    [component], [row] = (found.tolist() for found in located(tree, [position]))
    before, after = tree.counts(position), tree.counts(position + 1)
    assert before[component] == row
    assert after == {**before, component: row + 1}
    assert sum(before.values()) == position
    assert tree.position(component, row) == position


def assert_bound(weights, limit=2):
    """No count is ever further than ``limit`` from its share."""
    tree = SplitTree.of(weights)
    components, _ = located(tree, range(20_000))
    whole = sum(weights)
    worst = 0.0
    for component in np.unique(components).tolist():
        share = weights[component] / whole
        at = np.flatnonzero(components == component)
        served = np.arange(len(at))
        # Just before each row of the component is served, and just after.
        worst = max(worst, np.abs(at * share - served).max())
        worst = max(worst, np.abs((at + 1) * share - served - 1).max())
    assert worst <= limit
    for length in (1, 1000, 2**62 + 12345, 2**63):
        for component, count in tree.counts(length).items():
            assert abs(count - Fraction(length * weights[component], whole)) <= limit


@given(st.lists(st.floats(-6, 0), min_size=2, max_size=60))
def test_counts_stay_within_two_of_their_share(exponents):
    assert_bound([max(round(10**e * 10**9), 1) for e in exponents])


@pytest.mark.parametrize("spread", [0, 1, 3, 6])
def test_counts_of_a_thousand_components_stay_within_two(spread):
    exponents = np.random.default_rng(spread).uniform(-spread, 0, 1000)
    assert_bound([max(round(10**e * 10**9), 1) for e in exponents.tolist()])


def test_counts_stay_within_two_where_the_bound_is_tight():
    fibonacci = [1, 1]
    while len(fibonacci) < 40:
        fibonacci.append(sum(fibonacci[-2:]))
    assert_bound(fibonacci)


def test_components_of_weight_zero_change_nothing():
    some, all_of_them = SplitTree.of([3, 1, 1]), SplitTree.of([0, 3, 0, 1, 1, 0])
    assert np.array_equal(some.fractions, all_of_them.fractions)
    components, rows = located(some, range(100))
    others, same = located(all_of_them, range(100))
    assert np.array_equal(np.array([1, 3, 4])[components], others)
    assert np.array_equal(rows, same)


def test_weights_beyond_any_fraction_are_served_their_nearest():
    assert_bound([1, 10**40])
    assert SplitTree.of([1, 10**40]).counts(2**63) == {0: 1, 1: 2**63 - 1}


def test_one_component_needs_no_split():
    components, rows = located(SplitTree.of([0, 5]), [0, 7, LIMIT])
    assert components.tolist() == [1, 1, 1]
    assert rows.tolist() == [0, 7, LIMIT]
    assert SplitTree.of([0, 5]).counts(9) == {1: 9}
    assert SplitTree.of([0, 5]).position(1, 8) == 8


def test_the_order_is_part_of_the_format():
    components, rows = located(SplitTree.of([7, 2, 1]), range(12))
    assert components.tolist() == [0, 1, 0, 0, 2, 0, 0, 0, 1, 0, 0, 1]
    assert rows.tolist() == [0, 0, 1, 2, 0, 3, 4, 5, 1, 6, 7, 2]
