"""Slices against those of Python's lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib import dataset
from tests.reader.memory import MemoryCache, SimulatedCache


def labels(ds):
    return [int(i) // 10 for i in ds.take(range(len(ds)))["label"]]


@given(size=st.integers(0, 12), data=st.data())
def test_slices_are_those_of_a_list(size, data):
    start, stop = (data.draw(st.integers(-size, size)) for _ in range(2))
    ds = dataset.of(MemoryCache([1] * size))
    if stop % (size or 1) + size * (stop == size) < start % (size or 1) + size * (start == size):
        with pytest.raises(ValueError, match="comes before start"):
            ds.slice(start, stop)
        return
    assert labels(ds.slice(start, stop)) == list(range(size))[start:stop]


def test_parts_of_a_shuffle_share_no_row_in_any_pass():
    rows = dataset.of(MemoryCache([1] * 50)).shuffle(3)
    held, rest = rows.slice(0, 10), rows.slice(10, 50)
    assert labels(held) + labels(rest) == labels(rows)
    again = labels(rest.shuffle(1).repeat(3))
    assert set(again) == set(labels(rest))
    assert again[:40] != again[40:80]


def test_a_slice_of_an_endless_dataset():
    ds = dataset.of(MemoryCache([1] * 5)).repeat().slice(7, 19)
    assert labels(ds) == [i % 5 for i in range(7, 19)]
    with pytest.raises(ValueError, match="start must be from 0 to"):
        dataset.of(MemoryCache([1])).repeat().slice(-1, 2)


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (-6, 2), (6, 6)])
def test_refuses_what_is_outside(start, stop):
    with pytest.raises(ValueError, match="must be from -5 to 5"):
        dataset.of(MemoryCache([1] * 5)).slice(start, stop)


def test_slices_of_stored_order_can_be_shuffled_by_blocks():
    rows = dataset.of(SimulatedCache(100))
    part = rows.slice(20, 60).shuffle(0, block=8, window=2)
    assert sorted(part.take(range(40))["label"]) == list(range(20, 60))
    with pytest.raises(ValueError, match="lie side by side"):
        rows.shuffle(0).slice(0, 50).shuffle(0, block=8)


def test_the_state_tells_the_slice():
    ds = dataset.of(MemoryCache([1] * 5)).slice(1, -1)
    description = ds.describe()
    assert (description["kind"], description["start"], description["stop"]) == ("slice", 1, 4)
