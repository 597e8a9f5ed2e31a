"""Sides of a split: exact, stable, and as random as they should be."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachelib.order.holdout import RUN, Side

FRACTIONS = st.one_of(
    st.floats(1e-9, 1, exclude_max=True), st.sampled_from([0.5, 0.01, 0.99, 1 / 3, 5e-324])
)
TOTALS = st.one_of(st.integers(0, 5 * RUN), st.sampled_from([RUN - 1, RUN, RUN + 1]))


def everything(total: int) -> np.ndarray:
    return np.arange(total, dtype=np.int64)


def sides(total: int, fraction: float, seed: int) -> tuple[Side, Side]:
    return Side(total, fraction, seed, True), Side(total, fraction, seed, False)


@given(TOTALS, FRACTIONS, st.integers())
@example(0, 0.5, 0)
def test_rank_and_select_agree_with_membership(total, fraction, seed):
    rows = everything(total)
    held, rest = sides(total, fraction, seed)
    assert np.array_equal(held.contains(rows), ~rest.contains(rows))
    for side in (held, rest):
        chosen = side.contains(rows)
        assert side.count == chosen.sum()
        np.testing.assert_array_equal(side.rows(everything(side.count)), rows[chosen])
        before = np.concatenate([[0], np.cumsum(chosen)])
        np.testing.assert_array_equal(side.ranks(everything(total + 1)), before)


@given(st.integers(1, 60), FRACTIONS, st.integers(0, 9))
def test_runs_hold_out_exactly_their_share(runs, fraction, seed):
    half = Fraction(1, 2)
    for n in (runs, runs - 1):
        shares = Fraction(round(Fraction(fraction) * 2**64), 2**64) * n * RUN
        assert Side(n * RUN, fraction, seed, True).count == int(shares + half)


@given(TOTALS, st.integers(0, 3 * RUN), FRACTIONS, st.integers(0, 9))
def test_a_row_stays_on_its_side_when_rows_are_added(total, more, fraction, seed):
    for before, after in zip(
        sides(total, fraction, seed), sides(total + more, fraction, seed), strict=True
    ):
        assert np.array_equal(before.contains(everything(total)), after.contains(everything(total)))
        ranks = everything(before.count)
        np.testing.assert_array_equal(before.rows(ranks), after.rows(ranks))


@given(st.integers(2**40, 2**63 - 1), st.floats(1e-6, 0.999999), st.booleans(), st.data())
def test_far_rows(total, fraction, held, data):
    side = Side(total, fraction, 7, held)
    ranks = np.array(data.draw(st.lists(st.integers(0, side.count - 1), max_size=9)), np.int64)
    rows = side.rows(ranks)
    assert side.contains(rows).all()
    np.testing.assert_array_equal(side.ranks(rows), ranks)


def test_an_order_does_not_change_what_is_found():
    side = Side(10**9, 0.3, 1, False)
    ranks = np.random.default_rng(0).integers(0, side.count, 20_000)
    found = side.rows(ranks)
    order = np.argsort(ranks, kind="stable")
    np.testing.assert_array_equal(side.rows(ranks[order]), found[order])


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9])
def test_membership_is_as_that_of_a_random_sample(fraction):
    """Counts of places, of neighbours and of periods lie within six standard deviations."""
    runs = 4000
    table = Side(runs * RUN, fraction, 3, True).contains(everything(runs * RUN)).reshape(runs, RUN)

    def near(successes: np.ndarray, trials: int, share: float) -> None:
        spread = np.sqrt(trials * share * (1 - share))
        assert np.abs(successes - trials * share).max() < 6 * spread + 6

    near(table.sum(axis=0), runs, fraction)
    pair = fraction * (fraction * RUN - 1) / (RUN - 1)
    for distance in (1, 2, 3, 8, 64, RUN // 2):
        both = table & np.roll(table, distance, axis=1)
        near(both.sum(axis=1).sum(), both.size, pair)
        near(both.sum(axis=0), runs, pair)
    for period in (2, 3, 7, 64):
        whole = table[:, : RUN // period * period].reshape(-1, period)
        near(whole.sum(axis=0), len(whole), fraction)
    # The same place in runs that follow one another.
    near((table[1:] & table[:-1]).sum(), (runs - 1) * RUN, fraction**2)


def test_seeds_are_unrelated():
    rows = everything(1 << 20)
    chosen = [Side(len(rows), 0.5, seed, True).contains(rows) for seed in range(8)]
    for i in range(8):
        for j in range(i):
            assert abs(np.count_nonzero(chosen[i] == chosen[j]) - (1 << 19)) < 6 * (1 << 9)


def test_the_sides_of_a_seed_do_not_change():
    side = Side(10**6, 0.001, 42, True)
    assert side.count == 1000
    assert side.rows(np.array([0, 1, 2, 999], np.int64)).tolist() == [695, 1914, 2349, 999_671]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_refuses(fraction):
    with pytest.raises(ValueError, match="above 0 and below 1"):
        Side(10, fraction, 0, True)
