import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.batches import Batches


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
    batches = Batches(size, each * world, world, "drop" if drop else "short")
    found = spans(batches, position)
    assert len(found) == batches.remaining(position)
    covered = [i for span in found for i in span]
    left = max(size - position, 0)
    assert covered == list(range(position, position + left))[: len(covered)]
    assert left - len(covered) == (left % (each * world) if drop else 0)
    assert all(len(span) == each * world for span in found[:-1])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**62))
def test_parts_are_equal_contiguous_and_complete(each, world, position):
    batches = Batches(None, each * world, world)
    span = range(position, position + each * world)
    assert batches.span(position) == span
    parts = [batches.part(span, rank) for rank in range(world)]
    assert [i for part in parts for i in part] == list(span)
    assert {len(part) for part in parts} == {each}


def test_an_endless_sequence_has_no_last_batch():
    batches = Batches(None, 4, 2)
    assert batches.span(10**12) == range(10**12, 10**12 + 4)
    assert batches.remaining(5) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((9, 0, 1), "batch_size must be 1 or more, got 0"),
        ((9, 4, 0), "dp_world must be 1 or more, got 0"),
        ((9, 4, 3), "batch_size 4 does not divide among 3 ranks"),
        ((9, 4, 2, "pad"), "'pad'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        Batches(*options)


def test_a_short_batch_must_divide_too():
    batches = Batches(9, 4, 2, "short")
    batches.check(1)
    batches.check(9)
    batches.check(100)
    with pytest.raises(ValueError, match="last batch has 1 samples, which do not divide among 2"):
        batches.check(0)
    Batches(9, 4, 2, "drop").check(0)


@pytest.mark.parametrize("position", [-1, 2**63])
def test_refuses_positions(position):
    with pytest.raises(ValueError, match=f"got {position}"):
        Batches(None, 4, 2).check(position)
