"""The checks of randomness catch weak orders, and let pass what is drawn at random."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.reader import randomness
from tests.reader.randomness import (
    neighbours_apart,
    sources_in_batches,
    unrelated,
)

SIZE = 1 << 16
ROWS = np.arange(SIZE)


def drawn(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(size)


def linear_congruential() -> np.ndarray:
    """The generator of Numerical Recipes modulo 2^16, of full period."""
    states = [0]
    while len(states) < SIZE:
        states.append((1664525 * states[-1] + 1013904223) % SIZE)
    return np.array(states)


def bits_reversed() -> np.ndarray:
    order = np.zeros_like(ROWS)
    for bit in range(16):
        order |= ((ROWS >> bit) & 1) << (15 - bit)
    return order


def by_buffer(held: int) -> np.ndarray:
    """A shuffle buffer over stored order: a random one of those held goes, the next row comes."""
    rng = np.random.default_rng(0)
    buffer, order = list(range(held)), []
    for row, place in zip(range(held, SIZE), rng.integers(held, size=SIZE), strict=False):
        order.append(buffer[place])
        buffer[place] = row
    return np.array(order + rng.permutation(buffer).tolist())


ALL = set(randomness.ONE_ORDER)

WEAK: dict[str, tuple[Any, set[Any]]] = {
    "stored order": (ROWS, ALL),
    "stored order backwards": (ROWS[::-1], ALL),
    "a product modulo the size": ((40503 * ROWS + 11) % SIZE, ALL),
    "linear congruential": (linear_congruential(), ALL - {sources_in_batches}),
    "bits reversed": (bits_reversed(), ALL),
    "low bits kept": (drawn(SIZE >> 6)[ROWS >> 6] << 6 | (ROWS & 63), ALL),
    "low bits that change once in 1,024": (drawn(1024)[ROWS % 1024] << 6 | (ROWS >> 10), ALL),
    "rows of 64 mixed": ((ROWS & ~63) | drawn(64)[ROWS & 63], ALL),
    "blocks and their rows mixed": (drawn(128)[ROWS >> 9] << 9 | drawn(512)[ROWS & 511], ALL),
    "pairs kept": (drawn(SIZE // 2)[ROWS >> 1] << 1 | (ROWS & 1), ALL),
    "two halves riffled": ((ROWS >> 1) + (ROWS & 1) * (SIZE // 2), ALL),
    "a buffer of 4,096 rows": (by_buffer(4096), {sources_in_batches, neighbours_apart}),
}


@pytest.mark.parametrize("name", WEAK)
def test_weak_orders_are_caught(name):
    order, catching = WEAK[name]
    assert np.array_equal(np.sort(order), ROWS)
    assert catching
    for check in catching:
        with pytest.raises(AssertionError, match=r"expected .* to|standard deviations off"):
            check(order, SIZE)


PASSES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the same": lambda order: order,
    "begun elsewhere": lambda order: np.roll(order, SIZE // 3),
    "backwards": lambda order: order[::-1],
    "rows moved on": lambda order: (order + SIZE // 3) % SIZE,
    "rows mirrored": lambda order: SIZE - 1 - order,
    "bits of rows turned": lambda order: order ^ 0x5A5A,
    "batches mixed": lambda order: order.reshape(-1, 512)[drawn(SIZE // 512)].ravel(),
    "rows of each batch mixed": lambda order: order.reshape(-1, 512)[:, drawn(512)].ravel(),
}


@pytest.mark.parametrize("name", PASSES)
def test_passes_that_have_to_do_with_one_another_are_caught(name):
    order = drawn(SIZE)
    following = PASSES[name](order)
    assert np.array_equal(np.sort(following), ROWS)
    with pytest.raises(AssertionError, match=r"expected .* to|standard deviations off"):
        unrelated(order, following, SIZE)


def test_seeds_that_are_added_to_passes_are_caught():
    """Seed 7 in pass 1 would be seed 8 in pass 0."""
    runs = [drawn(SIZE, seed + epoch) for seed in (7, 8) for epoch in (0, 1)]
    caught = []
    for a, b in itertools.combinations(range(4), 2):
        try:
            unrelated(runs[a], runs[b], SIZE)
        except AssertionError:
            caught.append((a, b))
    assert caught == [(1, 2)]


@pytest.mark.parametrize("size", [4096, 4097, 1 << 16, 100_000])
def test_orders_drawn_at_random_pass(size):
    for seed in range(3):
        order = drawn(size, seed)
        for check in randomness.ONE_ORDER:
            check(order, size)
        unrelated(order, drawn(size, seed + 100), size)


@pytest.mark.parametrize(("trials", "chance"), [(20, 0.3), (512, 1 / 64), (512, 1 / 2), (9, 0.9)])
def test_limits_are_those_of_the_binomial_distribution(trials, chance, monkeypatch):
    monkeypatch.setattr(randomness, "TAIL", 1e-3)
    low, high = randomness.binomial_limits.__wrapped__(trials, chance)

    def exactly(counts):
        return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in counts)

    assert exactly(range(low)) <= 1e-3 < exactly(range(low + 1))
    assert exactly(range(high + 1, trials + 1)) <= 1e-3 < exactly(range(high, trials + 1))


@pytest.mark.parametrize("degrees", [2, 8, 16, 64, 254, 1000])
def test_limits_of_chi_square_are_no_narrower_than_they_say(degrees):
    """Of even degrees the chance is a sum of Poisson ones, of half the value."""
    variance = 2 / (9 * degrees)

    def value(deviations):
        return degrees * max(1 - variance + deviations * math.sqrt(variance), 1e-9) ** 3

    def chance(half, counts):
        return sum(math.exp(-half + k * math.log(half) - math.lgamma(k + 1)) for k in counts)

    low, high = value(-randomness.DEVIATIONS), value(randomness.DEVIATIONS)
    above = chance(high / 2, range(degrees // 2))
    below = chance(low / 2, range(degrees // 2, degrees // 2 + 2000))
    assert max(above, below) <= randomness.TAIL
    assert degrees < 16 or above > randomness.TAIL / 3
    for inside, outside in ((low * 1.001, low * 0.999), (high * 0.999, high * 1.001)):
        randomness.chi_square(inside, degrees, "")
        if outside > 1e-6:
            with pytest.raises(AssertionError, match="standard deviations off"):
                randomness.chi_square(outside, degrees, "")
