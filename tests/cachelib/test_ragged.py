"""Ragged rows: what goes in comes out, and what does not fit together is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.ragged import Ragged, offsets_of, ranges

ROWS = st.lists(st.lists(st.integers(0, 255), max_size=5), max_size=12)


def ragged(rows: list[list[int]]) -> Ragged:
    return Ragged.from_rows([np.array(row, np.uint8) for row in rows], np.uint8)


def lists(rows: Ragged) -> list[list[int]]:
    return [row.tolist() for row in rows]


@given(ROWS)
def test_rows_round_trip(rows: list[list[int]]) -> None:
    found = ragged(rows)
    assert len(found) == len(rows)
    assert lists(found) == rows
    assert found.lengths.tolist() == [len(row) for row in rows]
    assert [found[i - len(rows)].tolist() for i in range(len(rows))] == rows


@given(ROWS, st.data())
def test_slices_and_choices_are_those_of_lists(rows: list[list[int]], data: st.DataObject) -> None:
    found = ragged(rows)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert lists(found.slice(start, stop)) == rows[start:stop]
    if rows:
        chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20))
        taken = found.take(np.array(chosen, np.int64))
        assert lists(taken) == [rows[i] for i in chosen]


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_parts_concatenate_in_order(parts: list[list[list[int]]]) -> None:
    whole = Ragged.concatenate([ragged(rows) for rows in parts])
    assert lists(whole) == [row for rows in parts for row in rows]


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 5)), max_size=10))
def test_ranges_are_those_of_python(pairs: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in pairs], np.int64)
    lengths = np.array([length for _, length in pairs], np.int64)
    expected = [i for start, length in pairs for i in range(start, start + length)]
    assert ranges(starts, lengths).tolist() == expected
    assert offsets_of(lengths)[-1] == len(expected)


def test_trailing_dimensions_stay() -> None:
    values = np.arange(24).reshape(4, 2, 3)
    rows = Ragged.from_lengths(values, np.array([3, 0, 1]))
    assert [row.shape for row in rows] == [(3, 2, 3), (0, 2, 3), (1, 2, 3)]
    np.testing.assert_array_equal(rows.take(np.array([2, 0])).values, values[[3, 0, 1, 2]])


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (np.array([0, 3], np.int32), "int64"),
        (np.array([], np.int64), "rows \\+ 1"),
        (np.array([[0, 3]], np.int64), "rows \\+ 1"),
        (np.array([1, 3], np.int64), "from 0 to 3"),
        (np.array([0, 2], np.int64), "from 0 to 3"),
        (np.array([0, 4], np.int64), "from 0 to 3"),
        (np.array([0, 2, 1, 3], np.int64), "row 1 has a negative length"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(offsets: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ragged(np.zeros(3, np.uint8), offsets)


@pytest.mark.parametrize("row", [3, -4])
def test_rows_outside_are_refused(row: int) -> None:
    with pytest.raises(IndexError, match="outside the 3 rows"):
        ragged([[1], [], [2]])[row]
