"""Borders of parts: the same for blocks of any sizes and for a run that goes on, by property."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.borders import ROW_BYTES, Borders
from pipelines.sources.records import Records, Reject, Source

LIMIT = 100

Rows = list[tuple[int, int, bool]]
"""Position, bytes of text, and whether it is a record, not a reject, of all that begin."""


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    places = draw(st.sets(st.integers(0, 60), max_size=30))
    return [
        (at, draw(st.integers(0, 120)), draw(st.booleans() | st.just(True)))
        for at in sorted(places)
    ]


def source(format: str) -> Source:
    return Source(0, "a", "a", 1, "v", format, None, None)


def records(found: Rows, start: int, stop: int) -> Records:
    inside = [row for row in found if start <= row[0] < stop]
    good = [(at, size) for at, size, whole in inside if whole]
    return Records(
        text=pa.array(["x" * (size // 2) for _, size in good], pa.large_string()),
        keep={
            "id": pa.array(["y" * (size - size // 2) for _, size in good], pa.large_string()),
            "n": pa.array([at for at, _ in good], pa.int64()),
        },
        positions=np.array([at for at, _ in good], np.int64),
        rejects=tuple(Reject(at, "bad", "", "") for at, _, whole in inside if not whole),
        replaced=0,
        start=start,
        stop=stop,
    )


def borders_of(
    pieces: list[Rows], kinds: list[str], cuts: set[int], begin: tuple[int, int]
) -> list[tuple[int, int]]:
    """All borders of pieces of positions [0, 64) that are read in blocks, from a place on."""
    found = []
    borders = Borders(LIMIT)
    for piece in range(begin[0], len(pieces)):
        start = begin[1] if piece == begin[0] else 0
        limits = [start, *sorted(cut for cut in cuts if start < cut < 64), 64]
        for low, high in itertools.pairwise(limits):
            block = records(pieces[piece], low, high)
            found += [(piece, at) for at in borders.within(piece, source(kinds[piece]), block)]
    return found


@given(st.data(), st.lists(rows(), min_size=1, max_size=3), st.sets(st.integers(1, 63)))
def test_borders_are_the_same_in_any_blocks_and_from_any_border_on(
    data: st.DataObject, pieces: list[Rows], cuts: set[int]
) -> None:
    kinds = [data.draw(st.sampled_from(["csv", "jsonl", "parquet"])) for _ in pieces]
    whole = borders_of(pieces, kinds, set(), (0, 0))
    assert borders_of(pieces, kinds, cuts, (0, 0)) == whole
    for number, border in enumerate(whole):
        assert borders_of(pieces, kinds, cuts, border) == whole[number + 1 :]


@given(st.lists(rows(), min_size=1, max_size=3))
def test_a_part_of_rows_ends_with_the_row_that_fills_it(pieces: list[Rows]) -> None:
    begins = [(piece, at) for piece, found in enumerate(pieces) for at, _, _ in found]
    sizes = {
        (piece, at): size * whole + ROW_BYTES
        for piece, found in enumerate(pieces)
        for at, size, whole in found
    }
    # Positions at which nothing begins are rows too: held out, or left out by a function.
    for piece in range(len(pieces)):
        for at in range(64):
            sizes.setdefault((piece, at), ROW_BYTES)
    made = borders_of(pieces, ["csv"] * len(pieces), set(), (0, 0))
    assert set(made) <= set(begins)
    limits = [(0, 0), *made, (len(pieces), 0)]
    for low, high in itertools.pairwise(limits):
        inside = [place for place in begins if low <= place < high]
        assert inside or not begins
        for row in inside[1:]:
            assert sum(size for place, size in sizes.items() if low <= place < row) < LIMIT
        if high in made:
            assert sum(size for place, size in sizes.items() if low <= place < high) >= LIMIT


@pytest.mark.parametrize("kind", ["jsonl", "json", "text-lines"])
def test_where_positions_are_bytes_parts_end_past_multiples(kind: str) -> None:
    found = [(at, 1, True) for at in (10, 99, 120, 199, 350, 399, 400)]
    borders = Borders(LIMIT)
    assert borders.within(0, source(kind), records(found, 0, 130)) == [120]
    assert borders.within(0, source(kind), records(found, 130, 200)) == []
    assert borders.within(0, source(kind), records(found, 200, 500)) == [350, 400]
