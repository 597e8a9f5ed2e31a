"""Which shards are packed together: pure planning."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.maintenance.groups import groups

SHARDS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=40)


def runs(shards: list[tuple[int, int]], borders: list[int], target: int) -> list[range]:
    sizes, waste = np.array(shards, np.int64).T
    return list(groups(sizes, waste, np.array(borders, np.int64), target))


@given(SHARDS, st.lists(st.integers(0, 40)).map(sorted), st.integers(1, 100))
def test_runs_are_in_order_within_eras_and_limits(
    shards: list[tuple[int, int]], borders: list[int], target: int
) -> None:
    found = runs(shards, borders, target)
    numbers = [number for run in found for number in run]
    assert numbers == sorted(set(numbers))
    for run in found:
        assert 0 <= run.start < run.stop <= len(shards)
        assert not any(run.start < border < run.stop for border in borders)
        size = sum(shards[number][0] for number in run)
        assert len(run) == 1 or size <= target


@given(SHARDS, st.lists(st.integers(0, 40)).map(sorted), st.integers(1, 100))
def test_what_is_packed_leaves_no_more_to_pack(
    shards: list[tuple[int, int]], borders: list[int], target: int
) -> None:
    found = runs(shards, borders, target)
    packed: list[tuple[int, int]] = []
    limits: list[int] = []
    firsts = {run.start: run for run in found}
    number = 0
    while number < len(shards):
        if number in borders:
            limits.append(len(packed))
        run = firsts.get(number, range(number, number + 1))
        clean = number in firsts
        packed.append((sum(shards[n][0] for n in run), 0 if clean else shards[number][1]))
        number = run.stop
    assert runs(packed, limits, target) == []


def test_a_large_shard_is_left_alone_unless_rows_of_it_were_deleted() -> None:
    assert runs([(80, 0)], [], 10) == []
    assert runs([(80, 1)], [], 10) == [range(1)]
    assert runs([(4, 0), (4, 0), (4, 0)], [], 8) == [range(2)]
    assert runs([(4, 0), (4, 0), (4, 0)], [2], 80) == [range(2)]
    assert runs([(0, 0), (0, 0)], [], 1) == [range(2)]
