"""The permutation: an exact bijection, and random in the ways that training would notice.

Statistical tests use fixed keys, so they cannot flicker; their limits are those of
tests/reader/randomness.py.
"""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.order.permutation import BLOCK, TABLE_LIMIT, Permutation
from cachelib.order.seeds import derive, of_epoch
from tests.reader import randomness

# A few sizes at which indices have structure: powers of two, their neighbours, and a round number.
SIZES = [1 << 12, (1 << 12) + 1, 1 << 16, (1 << 16) + 1, 100_000, 1 << 17]
LARGE = [10**9, 1 << 40, (1 << 40) + 1, 10**12, 1 << 50]
POSITIONS = 1 << 16


def permutation(size: int, seed: int = 0, epoch: int = 0) -> Permutation:
    return Permutation(size, derive("shuffle", of_epoch(seed, epoch)))


def images(size: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    """The whole order, or as much of its beginning as a test of a large one looks at."""
    positions = size if size not in LARGE else POSITIONS
    return permutation(size, seed, epoch).apply(np.arange(positions))


def assert_bijection(size: int) -> None:
    order = images(size, seed=size)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(size)), size
    assert np.array_equal(permutation(size, size).invert(order), np.arange(size)), size


def test_is_a_bijection_for_every_small_size():
    for size in range(5001):
        assert_bijection(size)


@pytest.mark.parametrize("bits", range(1, 21))
def test_is_a_bijection_around_powers_of_two(bits):
    for size in (2**bits - 1, 2**bits, 2**bits + 1):
        assert_bijection(size)


@pytest.mark.parametrize("bits", range(21, 64))
def test_inverse_of_large_domains(bits):
    for size in {2**bits - 1, 2**bits, min(2**bits + 1, 2**63)}:
        p = permutation(size, bits)
        rng = np.random.default_rng(bits)
        positions = np.concatenate(
            [rng.integers(0, size - 1, 1000), np.arange(100), size - 1 - np.arange(100)]
        )
        sent = p.apply(positions)
        assert sent.min() >= 0
        assert sent.max() <= size - 1
        assert np.array_equal(p.invert(sent), positions)
        assert np.array_equal(p.apply(p.invert(positions)), positions)


@given(st.integers(1, 2**63), st.integers(0, 2**64 - 1), st.data())
def test_inverse_of_any_size(size, seed, data):
    positions = np.array(data.draw(st.lists(st.integers(0, min(size, 2**63) - 1), max_size=20)))
    p = permutation(size, seed)
    positions = positions.astype(np.int64)
    sent = p.apply(positions)
    assert np.array_equal(p.invert(sent), positions)
    assert len(np.unique(sent)) == len(np.unique(positions))


def test_order_is_part_of_the_format():
    """A changed permutation would silently reorder every run that resumes."""
    assert images(10, seed=7).tolist() == [2, 8, 5, 4, 3, 7, 1, 9, 0, 6]
    first = {size: permutation(size, 7).apply(np.arange(2)).tolist() for size in (10**12, 2**63)}
    assert first == {
        10**12: [244743708739, 841336271007],
        2**63: [3674395723487589110, 4270814699799145261],
    }


def test_position_by_position_is_the_same_as_all_at_once():
    size = 3 * BLOCK + 17
    p = permutation(size)
    order = p.apply(np.arange(size))
    for start in (0, 5, BLOCK - 1, size - 3):
        assert np.array_equal(p.apply(np.arange(start, start + 3)), order[start : start + 3])


@pytest.mark.parametrize("size", [100, 10**6])
def test_shapes_types_and_repeats(size):
    p = permutation(size)
    order = p.apply(np.array([5, 5, 0], np.uint8))
    assert order.dtype == np.int64
    assert order[0] == order[1]
    assert p.apply(np.zeros((2, 3), np.int32)).shape == (2, 3)
    assert p.apply(np.arange(0, 50, 7)[::-1]).tolist() == p.apply(np.arange(50))[49::-7].tolist()
    assert len(p.apply(np.empty(0, np.int64))) == 0
    given_ = np.arange(9)
    p.apply(given_)
    assert given_.tolist() == list(range(9))


@pytest.mark.parametrize("size", [0, 1, 100, 10**6])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_refuses_positions_outside(size, step):
    bad = -1 if step < 0 else size + step
    for method in (permutation(size).apply, permutation(size).invert):
        with pytest.raises(IndexError, match=f"index {bad} is outside .* {size} elements"):
            method(np.array([bad]))


@pytest.mark.parametrize("size", [-1, 2**63 + 1])
def test_refuses_sizes(size):
    with pytest.raises(ValueError, match=str(size)):
        Permutation(size, b"")


@pytest.mark.parametrize("size", [100, 10**6])
def test_pickles(size):
    p = permutation(size)
    assert np.array_equal(
        pickle.loads(pickle.dumps(p)).apply(np.arange(99)), p.apply(np.arange(99))
    )


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_permutations_of_a_tiny_domain_are_equally_likely(size):
    seeds = 6000
    found = [tuple(images(size, seed)) for seed in range(seeds)]
    every = list(itertools.permutations(range(size)))
    counts = np.array([found.count(p) for p in every])
    assert counts.sum() == seeds
    randomness.uniform(counts, seeds / len(every), "permutations")


@pytest.mark.parametrize("size", [5, 8, 13, 16, 64, 100])
def test_every_value_at_every_position_is_equally_likely(size):
    seeds = 2000
    counts = np.zeros((size, size))
    for seed in range(seeds):
        counts[np.arange(size), images(size, seed)] += 1
    for row in (*counts, *counts.T):
        randomness.uniform(row, seeds / size, "places of a value, or values of a place")


@pytest.mark.parametrize("size", [TABLE_LIMIT + 1, 1 << 13])
def test_pairs_of_a_small_network_are_spread_evenly(size):
    """Differences of the images of close positions, and of those that share a half, over keys."""
    keys, columns = 400, -(-size // (math.isqrt(size - 1) + 1))
    for distance in (1, 2, columns, 64):
        counts = np.zeros(size)
        for seed in range(keys):
            order = images(size, seed)
            counts += np.bincount((np.roll(order, -distance) - order) % size, minlength=size)
        assert counts[0] == 0
        randomness.uniform(counts[1:], keys * size / (size - 1), f"differences at {distance}")


@pytest.mark.parametrize("check", randomness.ONE_ORDER, ids=lambda check: check.__name__)
@pytest.mark.parametrize("size", SIZES + LARGE)
def test_orders_are_random_in(check, size):
    check(images(size), size)


@pytest.mark.parametrize("size", SIZES)
def test_rows_leave_their_places(size):
    for seed in range(5):
        randomness.unrelated(np.arange(size), images(size, seed), size)


@pytest.mark.parametrize("size", SIZES)
def test_epochs_and_nearby_seeds_are_unrelated(size):
    """Seed 7 in epoch 1 is not seed 8 in epoch 0, either."""
    orders = [images(size, seed, epoch) for seed in (7, 8) for epoch in (0, 1, 2)]
    for one, other in itertools.combinations(orders, 2):
        randomness.unrelated(one, other, size)


@pytest.mark.parametrize("bits", [32, 40, 50, 62, 63])
def test_bits_of_large_domains_are_fair(bits):
    order = permutation(2**bits, bits).apply(np.arange(1 << 16))
    for bit in range(bits):
        ones = (order >> bit) & 1
        changes = int(np.count_nonzero(ones[1:] != ones[:-1]))
        randomness.hits(int(ones.sum()), len(order), 0.5, f"ones of bit {bit}")
        randomness.hits(changes, len(order) - 1, 0.5, f"changes of bit {bit}")


def test_sizes_are_unrelated():
    """A longer cache has a new order, not the old one with insertions."""
    a, b = images(100_000), images(100_001)
    assert np.count_nonzero(a == b[:-1]) <= 9
