import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.indices import as_indices, as_integer, as_positions


@given(st.integers(1, 100), st.data())
def test_agrees_with_python(size, data):
    indices = data.draw(st.lists(st.integers(-size, size - 1)))
    found = as_indices(indices, size)
    assert found.dtype == np.int64
    assert found.tolist() == [range(size)[i] for i in indices]


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
@pytest.mark.parametrize("size", [100, 1000, 2**40, None])
def test_takes_every_integer_type(dtype, size):
    assert as_indices(np.array([3, 99], dtype), size).tolist() == [3, 99]
    if dtype.startswith("int") and size is not None:
        assert as_indices(np.array([-1], dtype), size).tolist() == [size - 1]


def test_takes_mixed_integers_and_iterables():
    assert as_indices([np.uint64(1), np.int64(2), 3], 5).tolist() == [1, 2, 3]
    assert as_indices((i for i in range(3)), 5).tolist() == [0, 1, 2]
    assert as_indices(range(3), 5).tolist() == [0, 1, 2]


@pytest.mark.parametrize("empty", [[], (), np.array([], np.uint8), np.empty(0, np.int64)])
def test_takes_nothing(empty):
    assert as_indices(empty, 0).tolist() == []
    assert as_indices(empty, 0).dtype == np.int64


def test_does_not_change_what_it_is_given():
    given_ = np.array([-1, 0])
    as_indices(given_, 5)
    assert given_.tolist() == [-1, 0]


@pytest.mark.parametrize(
    "bad",
    [
        [True],
        [1, False],
        np.array([True, False]),
        [np.True_],
        [1.0],
        np.array([1.0]),
        [1, None],
        "12",
        b"12",
        7,
        None,
        [[1, 2]],
        np.array([[1, 2]]),
        np.array(3),
        np.array(["1"]),
        np.array([1], object),
        np.array([1], "m8[s]"),
        np.empty(0),
    ],
    ids=repr,
)
def test_refuses_what_are_no_integers(bad):
    with pytest.raises(TypeError, match=r"must be (a sequence of |an )?integer|one-dimensional"):
        as_indices(bad, 5)


@pytest.mark.parametrize(
    ("indices", "size", "bad"),
    [
        ([0, 5], 5, 5),
        ([-6, 0], 5, -6),
        ([0], 0, 0),
        ([2**70], 5, 2**70),
        ([-(2**70)], 5, -(2**70)),
        (np.array([2**64 - 1], np.uint64), 5, 2**64 - 1),
        (np.array([-128], np.int8), 5, -128),
        (np.array([-1]), None, -1),
        (np.array([2**63], np.uint64), None, 2**63),
    ],
)
def test_refuses_what_is_outside(indices, size, bad):
    with pytest.raises(IndexError) as caught:
        as_indices(indices, size)
    assert f"index {bad} " in str(caught.value)
    assert ("endless" if size is None else f"{size} rows") in str(caught.value)


@pytest.mark.parametrize("value", [5, np.int8(5), np.uint64(5), np.array(5)])
def test_takes_any_integer(value):
    assert as_integer("seed", value) == 5
    assert type(as_integer("seed", value)) is int


@pytest.mark.parametrize("value", [True, np.True_, 1.0, None, "7", np.float32(1)])
def test_refuses_what_is_no_integer(value):
    with pytest.raises(TypeError, match="seed must be an integer, got "):
        as_integer("seed", value)


@pytest.mark.parametrize("indices", [{1, 2}, {1: 2}, frozenset([1]), {1: 2}.keys()])
def test_refuses_what_has_no_order(indices):
    with pytest.raises(TypeError, match=f"in an order, got a {type(indices).__name__}"):
        as_indices(indices, 5)


@pytest.mark.parametrize(
    "values", [[], [3, 0], [[1], [2]], 4, np.array([7], np.uint64), np.int8(3)]
)
def test_positions_keep_their_shape(values):
    found = as_positions("starts", values)
    assert found.dtype == np.int64
    assert found.tolist() == np.asarray(values).tolist()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([0.9], "float64"), (np.empty(0), "float64"), ([True], "bool"), (["0"], "<U1")],
)
def test_positions_are_integers(values, dtype):
    with pytest.raises(TypeError, match=f"starts must be integers, got {dtype}"):
        as_positions("starts", values)


def test_positions_fit_64_bits():
    with pytest.raises(IndexError, match=f"starts must be at most {2**63 - 1}, got {2**63}"):
        as_positions("starts", np.array([2**63], np.uint64))
