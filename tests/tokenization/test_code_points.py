"""Sets of code points, and the texts that hold their members."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.tokenization import CodePointSet
from pipelines.tokenization.arrow import as_texts

POINTS = st.integers(0x80, 0xD7FF) | st.integers(0xE000, 0x10FFFF)
EDGES = [0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000]


@given(points=st.sets(POINTS, max_size=30))
def test_set_holds_what_it_was_given(points: set[int]) -> None:
    found = CodePointSet.of(points)
    assert len(found) == len(points)
    assert all(point in found for point in points)
    assert {p for first, last in found.ranges for p in range(first, last + 1)} == points


@given(
    points=st.sets(POINTS, min_size=1, max_size=6),
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=10), max_size=6),
    data=st.data(),
)
@example(points={0x1AE6, 0xFBCB}, texts=["a", "\u1ae6", "\u1ae5\ufbcb"], data=None)
def test_rows_containing_equals_a_search(
    points: set[int], texts: list[str], data: st.DataObject | None
) -> None:
    if data is not None:  # put members and their neighbours into some texts
        near = [p + d for p in points for d in (-1, 0, 1)]
        near = [p for p in near if p < 0x110000 and not 0xD800 <= p < 0xE000]
        texts = [t + "".join(map(chr, data.draw(st.lists(st.sampled_from(near))))) for t in texts]
    found = CodePointSet.of(points).rows_containing(as_texts(texts))
    assert found.tolist() == [any(ord(c) in points for c in text) for text in texts]


@pytest.mark.parametrize("point", [*EDGES, 0x10FFFF])
def test_every_length_in_utf8_and_across_blocks(point: int) -> None:
    points = CodePointSet.of([point])
    for ahead in range((1 << 16) - 5, (1 << 16) + 2):
        texts = as_texts(["x" * ahead + chr(point), "y", chr(point), ""])
        assert points.rows_containing(texts).tolist() == [True, False, True, False]
        assert points.rows_containing(texts[1:]).tolist() == [False, True, False]


def test_an_empty_set_and_no_texts() -> None:
    assert not CodePointSet().rows_containing(as_texts(["\u1ae6"])).any()
    assert CodePointSet.of([0x80]).rows_containing(pa.array([], pa.large_string())).tolist() == []
    assert np.array_equal(CodePointSet.of([0x80]).rows_containing(as_texts(["", ""])), [0, 0])


@pytest.mark.parametrize(
    "ranges",
    [((0x41, 0x42),), ((0x90, 0x80),), ((0x80, 0x90), (0x91, 0x95)), ((0x80, 0x110000),)],
)
def test_ranges_are_checked(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        CodePointSet(ranges)
