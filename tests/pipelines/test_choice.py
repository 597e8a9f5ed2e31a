"""A share of rows is chosen by source and position, whatever else."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.choice import chosen


def test_the_rate_is_kept_and_rows_are_spread() -> None:
    positions = np.arange(100_000, dtype=np.int64) * 97
    for rate in (0.0, 0.001, 0.01, 0.5, 1.0):
        found = chosen("a purpose", 3, "a/b.jsonl", positions, rate)
        assert found.dtype == bool
        assert abs(found.mean() - rate) <= 4 * np.sqrt(rate * (1 - rate) / len(positions))
        halves = found.reshape(2, -1).mean(axis=1)
        assert abs(halves[0] - halves[1]) <= 8 * np.sqrt(rate * (1 - rate) / len(positions))


def test_the_choice_depends_on_source_and_position_alone() -> None:
    positions = np.arange(10_000, dtype=np.int64)
    whole = chosen("forebay.audit", 0, "a", positions, 0.1)
    parts = [chosen("forebay.audit", 0, "a", part, 0.1) for part in np.array_split(positions, 7)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert np.array_equal(whole[::-1], chosen("forebay.audit", 0, "a", positions[::-1], 0.1))
    assert (whole & chosen("forebay.audit", 0, "b", positions, 0.1)).sum() < whole.sum() / 2
    assert (whole <= chosen("forebay.audit", 0, "a", positions, 0.2)).all()
    for purpose, seed in (("forebay.audit", 1), ("forebay.holdout", 0)):
        other = chosen(purpose, seed, "a", positions, 0.1)
        assert (whole & other).sum() < whole.sum() / 2
    # The sample is part of what two builds share; it must not move between releases.
    assert np.flatnonzero(whole)[:4].tolist() == [3, 8, 32, 45]


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_rates_are_checked(rate: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        chosen("forebay.audit", 0, "a", np.arange(3), rate)
