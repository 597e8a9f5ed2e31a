"""Bitmaps against boolean arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.bitmap import Bitmap


@given(
    st.one_of(st.integers(0, 3000), st.sampled_from([511, 512, 513, 1024])),
    st.sampled_from([0.0, 0.001, 0.3, 0.99, 1.0]),
    st.integers(1, 9),
)
def test_rank_and_select_agree_with_the_truth_values(total, share, pieces):
    chosen = np.random.default_rng(total).random(total) < share
    edges = [total * i // pieces // 8 * 8 for i in range(pieces)] + [total]
    masks = (chosen[start:stop] for start, stop in itertools.pairwise(edges))
    bitmap = Bitmap.of(masks, total)
    assert bitmap.count == chosen.sum()
    assert np.array_equal(bitmap.contains(np.arange(total)), chosen)
    np.testing.assert_array_equal(bitmap.rows(np.arange(bitmap.count)), np.flatnonzero(chosen))
    before = np.concatenate([[0], np.cumsum(chosen)])
    np.testing.assert_array_equal(bitmap.ranks(np.arange(total + 1)), before)


def test_ranks_may_come_in_any_order():
    chosen = np.random.default_rng(0).random(100_000) < 0.1
    bitmap = Bitmap.of([chosen], len(chosen))
    ranks = np.random.default_rng(1).integers(0, bitmap.count, 30_000)
    np.testing.assert_array_equal(bitmap.rows(ranks), np.flatnonzero(chosen)[ranks])


def test_refuses_another_number_of_truth_values():
    with pytest.raises(ValueError, match="expected 9 truth values, got 8"):
        Bitmap.of([np.ones(8, np.bool_)], 9)
