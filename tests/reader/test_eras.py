"""Eras: what lies in sealed ones never moves, whatever comes after."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order import seeds
from cachelib.order.eras import EraTable, windows_before
from cachelib.order.windows import WindowGrid

limits = st.lists(st.integers(0, 60), min_size=1, max_size=12).map(
    lambda counts: np.cumsum(counts, dtype=np.int64)
)


@given(limits)
def test_every_position_lies_in_one_era(ends: np.ndarray) -> None:
    table = EraTable(ends)
    eras, places = table.locate(np.arange(table.size))
    spans = [table.span(era) for era in range(len(ends))]
    assert [position for span in spans for position in span] == list(range(table.size))
    for position, (era, place) in enumerate(zip(eras.tolist(), places.tolist(), strict=True)):
        assert spans[era][place] == position
        assert table.entered(position + 1) == era + 1
    assert table.entered(0) == 0


@given(limits, st.data())
def test_what_was_entered_does_not_depend_on_later_eras(
    ends: np.ndarray, data: st.DataObject
) -> None:
    table = EraTable(ends[: data.draw(st.integers(1, len(ends)))])
    positions = np.arange(table.size)
    np.testing.assert_array_equal(table.locate(positions), EraTable(ends).locate(positions))
    for position in range(table.size + 1):
        assert table.entered(position) == EraTable(ends).entered(position)


@given(limits, st.integers(1, 40), st.data())
def test_a_window_belongs_to_the_era_of_its_last_element(
    elements: np.ndarray, length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, length))
    table = EraTable(windows_before(elements, length, stride))
    assert table.ends.tolist() == [WindowGrid(int(e), length, stride).full for e in elements]
    of_elements = EraTable(elements)
    for window in range(table.size):
        last = window * stride + length - 1
        ((era,), _), ((expected,), _) = (
            table.locate(np.array([window])),
            of_elements.locate(np.array([last])),
        )
        assert era == expected


def test_seeds_of_eras_are_pinned() -> None:
    assert seeds.of_era(7, 0) == 7
    assert seeds.of_era(7, 1) == 12453176024847947103
    assert len({seeds.of_era(seed, era) for seed in range(20) for era in range(20)}) > 390


@pytest.mark.parametrize("eras", [0, 1])
def test_no_era_holds_nothing(eras: int) -> None:
    assert EraTable(np.zeros(eras, np.int64)).size == 0
