import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.windows import WindowGrid

grids = st.tuples(st.integers(0, 200), st.integers(1, 40), st.integers(1, 40)).filter(
    lambda g: g[2] <= g[1]
)


def by_hand(elements, length, stride, tail):
    """Starts and lengths as a loop finds them: windows until every element is in one."""
    found, start = [], 0
    while start + length <= elements:
        found.append((start, length))
        start += stride
    reached = found[-1][0] + length if found else 0
    if tail == "short" and reached < elements:
        found.append((start, elements - start))
    return found


@given(grids, st.sampled_from(["drop", "short"]))
def test_agrees_with_a_loop(grid, tail):
    elements, length, stride = grid
    g = WindowGrid(elements, length, stride, tail)
    expected = by_hand(elements, length, stride, tail)
    indices = np.arange(g.count)
    assert list(zip(g.starts(indices), g.lengths(indices), strict=True)) == expected
    covered = {i for start, size in expected for i in range(start, start + size)}
    assert len(covered) + g.dropped == elements
    assert g.dropped < length


@pytest.mark.parametrize(
    ("elements", "length", "tail", "count", "dropped"),
    [
        (0, 4, "drop", 0, 0),
        (0, 4, "short", 0, 0),
        (3, 4, "drop", 0, 3),
        (3, 4, "short", 1, 0),
        (4, 4, "short", 1, 0),
        (9, 4, "drop", 2, 1),
        (9, 4, "short", 3, 0),
        (2**63 - 1, 2048, "drop", (2**63 - 1) // 2048, 2047),
        (2**63 - 1, 1, "short", 2**63 - 1, 0),
    ],
)
def test_counts(elements, length, tail, count, dropped):
    grid = WindowGrid(elements, length, length, tail)
    assert (grid.count, grid.dropped) == (count, dropped)


def test_starts_do_not_overflow():
    grid = WindowGrid(2**63 - 1, 2048, 2048, "short")
    last = np.array([grid.count - 1])
    assert grid.starts(last)[0] == (grid.count - 1) * 2048
    assert grid.lengths(last)[0] == 2047


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((-1, 4, 4), "got -1"),
        ((9, 0, 0), "length=0"),
        ((9, 4, 0), "stride must be from 1 to the length 4, got 0"),
        ((9, 4, 5), "stride must be from 1 to the length 4, got 5"),
        ((9, 4, 4, "pad"), "'pad'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        WindowGrid(*options)
