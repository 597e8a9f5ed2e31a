"""Which runs are merged by which task: pure arithmetic, by property."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.format.shard import Cover, Manifest
from pipelines.order.orders import Order
from pipelines.order.passes import (
    FAN_IN,
    READ_BYTES,
    Merge,
    bracket,
    even_pivots,
    group_size,
    passes,
    plan_groups,
    plan_ranges,
    range_count,
    sampled_pivots,
)

BY = Order("by", field="score")


def run(number: int, values: list[int], every: int = 1, rejects: int = 0) -> Manifest:
    """A run of rows of ten bytes whose keys have the given words, with every n-th as a sample."""
    keys = [[value, "a", 1000 * number + i] for i, value in enumerate(sorted(values))]
    rows = list(range(0, len(keys), every))
    samples = {"rows": rows, "bytes": [10 * r for r in rows], "keys": [keys[r] for r in rows]}
    return Manifest(
        shard=f"r{number}",
        attempt="a",
        rows=len(keys),
        elements={},
        digest="0:0",
        covers=(Cover("a", 0, 1, True),),
        records=len(keys) + rejects,
        rejects={"bad": rejects} if rejects else {},
        counts={"empty": 1},
        task={"split": number, "samples": samples, "size": 10 * len(keys)},
    )


@st.composite
def runs(draw: st.DrawFn) -> list[Manifest]:
    every = draw(st.integers(1, 7))
    return [
        run(i, draw(st.lists(st.integers(0, 30), min_size=1, max_size=40)), every)
        for i in range(draw(st.integers(1, 6)))
    ]


@given(st.integers(0, 10**15), st.integers(1, 10**12))
def test_ranges_hold_no_more_than_a_split(size: int, split_bytes: int) -> None:
    ranges = range_count(size, split_bytes)
    assert ranges >= 1
    assert size / ranges <= split_bytes
    assert ranges == 1 or size / (ranges - 1) > split_bytes


@given(st.integers(1, 10**6), st.integers(1, 10**14), st.integers(1, 10**6))
def test_groups_make_reads_worth_a_request(count: int, size: int, ranges: int) -> None:
    group = group_size(count, size, ranges)
    assert 1 <= group <= min(count, FAN_IN)
    if ranges == 1 or size / (count * ranges) >= READ_BYTES:
        assert group == 1
    elif group < min(count, FAN_IN):
        assert group * size / (count * ranges) >= READ_BYTES


def test_passes_of_real_sizes() -> None:
    split, run_bytes = 64 << 20, 30 << 20
    assert passes(5, 5 * run_bytes, split) == 1
    assert passes(900, 900 * run_bytes, split) == 1
    assert passes(1100, 1100 * run_bytes, split) == 2
    assert group_size(10_000, 10_000 * run_bytes, 4700) == 10


@given(st.integers(1, 300), st.integers(1, 50))
def test_groups_take_each_run_once(count: int, group: int) -> None:
    merge = plan_groups([run(i, [i]) for i in range(count)], group)
    places = [place for share in merge.shares for place in range(share.first, share.stop)]
    assert places == list(range(count))
    assert max(share.stop - share.first for share in merge.shares) <= group
    assert not merge.final
    assert merge.carried == ()


@given(runs(), st.integers(1, 12), st.booleans())
def test_ranges_take_each_key_once(found: list[Manifest], ranges: int, shuffled: bool) -> None:
    order = Order("shuffle") if shuffled else BY
    merge = plan_ranges(order, found, ranges, found)
    assert merge.final
    assert {(share.first, share.stop) for share in merge.shares} == {(0, len(found))}
    assert merge.shares[0].lower is None
    assert merge.shares[-1].upper is None
    for one, next_ in itertools.pairwise(merge.shares):
        assert one.upper == next_.lower
        assert one.upper is not None
        assert one.lower is None or one.lower < one.upper
    carried = [place for pair in merge.carried for place in range(*pair)]
    assert carried == list(range(len(found)))
    assert Merge.from_json(json.loads(json.dumps(merge.to_json()))) == merge
    assert merge.rows == sum(m.rows for m in found)
    assert not any(m.covers or m.counts for m in merge.runs)


def test_no_rows_make_no_range() -> None:
    merge = plan_ranges(BY, [], 1, [run(0, [], rejects=3)])
    assert merge.shares == ()
    assert merge.carried == ((0, 1),)


@given(runs(), st.integers(2, 8))
def test_ranges_are_about_even(found: list[Manifest], ranges: int) -> None:
    """Within what lies between two samples of every run."""
    keys = sorted(tuple(key) for m in found for key in m.task["samples"]["keys"])
    rows = sum(m.rows for m in found)
    pivots = sampled_pivots(found, ranges)
    assert set(pivots) <= set(keys)
    if len(keys) == rows:  # every row is a sample
        for number, pivot in enumerate(pivots if len(pivots) == ranges - 1 else [], 1):
            before = sum(key < pivot for key in keys)
            assert abs(before - rows * number / ranges) <= 1


def test_equal_values_are_shared_out_by_source_and_position() -> None:
    found = [run(i, [1] * 100, every=5) for i in range(4)]
    pivots = sampled_pivots(found, 4)
    assert len(pivots) == 3
    assert [pivot[2] // 1000 for pivot in pivots] == [1, 2, 3]


def test_hashes_are_shared_out_evenly() -> None:
    assert even_pivots(4) == [(1 << 62,), (1 << 63,), (3 << 62,)]
    assert even_pivots(1) == []


@given(runs(), st.integers(-1, 31), st.integers(0, 6000))
def test_brackets_hold_the_place_of_a_key(found: list[Manifest], value: int, position: int) -> None:
    for m in found:
        every = (m.task["samples"]["rows"] + [m.rows])[1] or 1
        for key in ((value,), (value, "a"), (value, "a", position), (value, "", 0)):
            low, high = bracket(m, key)
            for row, sample in zip(
                m.task["samples"]["rows"], m.task["samples"]["keys"], strict=True
            ):
                assert (tuple(sample) < key) == (row < low) or low <= row <= high
                if tuple(sample) < key:
                    assert row < low
                else:
                    assert row >= high
            assert 0 <= low <= high <= m.rows
            assert high - low <= every


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_what_was_read_is_carried_over_in_small_shards(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.order.passes.CARRIED", limit)
    found = [run(i, [i], rejects=i % 3) for i in range(10)]
    carried = plan_ranges(BY, found, 1, found).carried
    assert [place for pair in carried for place in range(*pair)] == list(range(10))
    for first, stop in carried:
        weights = [1 + i % 3 for i in range(first, stop)]
        assert sum(weights) <= limit or len(weights) == 1
