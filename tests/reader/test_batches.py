import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.batches import Batches
from cachelib.order.schedule import Schedule


def fixed(batch_size):
    return Schedule(((0, batch_size),))


def spans(batches, position):
    found = []
    while (span := batches.span(position)) is not None:
        found.append(span)
        position = span.stop
    return found


@given(
    st.integers(0, 200), st.integers(1, 8), st.integers(1, 5), st.integers(0, 220), st.booleans()
)
def test_batches_cover_the_samples_once_and_in_order(size, each, world, position, drop):
    batches = Batches(size, fixed(each * world), world, last="drop" if drop else "short")
    found = spans(batches, position)
    assert len(found) == batches.remaining(position)
    covered = [i for span in found for i in span]
    left = max(size - position, 0)
    assert covered == list(range(position, position + left))[: len(covered)]
    assert left - len(covered) == (left % (each * world) if drop else 0)
    assert all(len(span) == each * world for span in found[:-1])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**62))
def test_parts_are_equal_contiguous_and_complete(each, world, position):
    batches = Batches(None, fixed(each * world), world)
    span = range(position, position + each * world)
    assert batches.span(position) == span
    parts = [batches.part(span, [rank]) for rank in range(world)]
    assert [i for part in parts for i in part.indices.tolist()] == list(span)
    assert {part.rows for part in parts} == {each}
    assert all(part.weight.tolist() == [1] * each for part in parts)


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2**62),
    st.randoms(use_true_random=False),
)
def test_the_part_of_several_ranks_is_theirs_in_each_micro_batch(
    each, world, micro, position, random
):
    batches = Batches(None, fixed(each * world * micro), world, micro)
    span = range(position, position + each * world * micro)
    ranks = random.sample(range(world), random.randint(1, world))
    own = [batches.part(span, [rank]).indices.reshape(micro, each) for rank in ranks]
    found = batches.part(span, ranks)
    assert found.rows == len(ranks) * micro * each
    assert found.indices.reshape(micro, len(ranks), each).tolist() == np.stack(own, 1).tolist()


def test_an_endless_sequence_has_no_last_batch():
    batches = Batches(None, fixed(4), 2)
    assert batches.span(10**12) == range(10**12, 10**12 + 4)
    assert batches.remaining(5) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((9, fixed(4), 0), "dp_world must be 1 or more, got 0"),
        ((9, fixed(4), 1, 0), "micro_batches must be 1 or more, got 0"),
        ((9, fixed(4), 3), "batch_size 4 does not divide among 3 ranks"),
        ((9, fixed(4), 2, 4), "batch_size 4 does not divide among 2 ranks of 4 micro-batches each"),
        ((9, Schedule(((0, 4), (8, 3))), 2), "batch_size 3 does not divide"),
        ((9, fixed(4), 2, 1, "all"), "'all'"),
        ((9, fixed(4), 2, 1, "pad", "some"), "'some'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        Batches(*options)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "begins at sample 0"),
        (((1, 4),), "begins at sample 0"),
        (((0, 0),), "batch_size must be 1 or more, got 0"),
        (((0, 4), (8, 2), (8, 3)), "must increase, got 8 after 8"),
    ],
)
def test_refuses_schedules(stages, message):
    with pytest.raises(ValueError, match=message):
        Schedule(stages)


schedules = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), max_size=3).map(
    lambda gaps: Schedule(
        tuple(
            (at, size)
            for at, (_, size) in zip(
                itertools.accumulate([0, *(gap for gap, _ in gaps)]), [(0, 4), *gaps], strict=True
            )
        )
    )
)


@given(schedules, st.integers(0, 60), st.integers(0, 30))
def test_a_schedule_counts_as_a_walk_over_its_batches_does(schedule, position, steps):
    walked = position
    for _ in range(steps):
        walked += schedule.size_at(walked)
    assert schedule.after(position, steps) == walked


@given(
    st.integers(0, 90),
    schedules,
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["drop", "short", "pad"]),
    st.integers(0, 99),
)
def test_padded_parts_hold_each_sample_once(size, schedule, world, micro, last, position):
    batches = Batches(size, schedule, world, micro, last, "pad")
    found = spans(batches, position)
    assert len(found) == batches.remaining(position)
    seen = []
    for span in found:
        parts = [batches.part(span, [rank]) for rank in range(world)]
        assert len({part.rows for part in parts}) == 1
        rows = world * parts[0].rows
        assert parts[0].rows % micro == 0
        full = schedule.size_at(span.start) if last == "pad" else len(span)
        assert 0 <= rows - full < world * micro
        held = [i for part in parts for i in part.indices[part.weight == 1].tolist()]
        assert held == list(span)
        assert all(set(part.indices.tolist()) <= set(span) for part in parts)
        seen += held
    assert seen == list(range(position, position + len(seen)))
    if last != "drop":
        assert len(seen) == max(size - position, 0)


def test_no_batch_crosses_a_border():
    batches = Batches(None, Schedule(((0, 4), (8, 2))), borders=(8, 14))
    batches.check(0)
    batches.check(10)
    batches.check(20)
    with pytest.raises(ValueError, match="a batch of 4 would cross sample 8"):
        batches.check(3)
    with pytest.raises(ValueError, match="would cross sample 14"):
        batches.check(11)


def test_a_short_batch_must_divide_too():
    batches = Batches(9, fixed(4), 2, last="short")
    batches.check(1)
    batches.check(9)
    batches.check(100)
    with pytest.raises(ValueError, match="last batch has 1 samples, which do not divide among 2"):
        batches.check(0)
    Batches(9, fixed(4), 2).check(0)


@pytest.mark.parametrize("position", [-1, 2**63])
def test_refuses_positions(position):
    with pytest.raises(ValueError, match=f"got {position}"):
        Batches(None, fixed(4), 2).check(position)
