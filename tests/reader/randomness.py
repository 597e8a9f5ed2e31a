"""Checks that an order is random in the ways that training would notice.

A check takes ``order``, int64 (n,): the rows at positions 0 to n - 1 of a permutation of [0, size),
at least 1,024 of them. It raises AssertionError if a count is one that an order drawn at random
gives with a chance below `TAIL` on that side. Counts of hits are held against the exact binomial
distribution (drawing without replacement varies less, so that is an upper limit), sums of squares
against chi square.

All checks of an order of 2^16 rows look at some 300,000 counts, nearly all of them in batches: of
orders drawn at random they refuse less than one in 15,000. test_randomness.py shows what each check
catches. The tests that use them have fixed keys, so that they do not flicker.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

import numpy as np

TAIL = 1e-10
"""Chance that a count of a random order lies beyond its limit on one side, at most."""

DEVIATIONS = -NormalDist().inv_cdf(TAIL)
"""The same limit in standard deviations of a normal distribution: 6.36."""

BATCH = 512
SOURCES = 256


def residues_in_batches(order: np.ndarray, size: int) -> None:
    """Each batch holds each residue, modulo 2 to 64, as often as a fair draw; neither more evenly.

    It catches low bits that barely change between neighbours, or that change too regularly.
    """
    rows, batch = _batches(order)
    for modulus in range(2, 65):
        chances = np.array([(size - r - 1) // modulus + 1 for r in range(modulus)]) / size
        _shares(rows % modulus, batch, chances, size, f"residue modulo {modulus}")


def sources_in_batches(order: np.ndarray, size: int) -> None:
    """Each batch holds each of 256 contiguous sources as often as a fair draw: none clusters.

    Neighbours come from one source as often as chance has it, too.
    """
    edges = np.array([size * source // SOURCES for source in range(SOURCES + 1)])
    chances = np.diff(edges) / size
    rows, batch = _batches(order)
    _shares(np.searchsorted(edges, rows, side="right") - 1, batch, chances, size, "source")
    drawn = np.searchsorted(edges, order, side="right") - 1
    alike = int(np.count_nonzero(drawn[1:] == drawn[:-1]))
    hits(alike, len(order) - 1, _both(np.diff(edges), size), "neighbours of one source")


def residues_of_neighbours(order: np.ndarray, size: int) -> None:
    """Low bits, and other residues, change from one position to the next as chance has it."""
    for modulus in (2, 3, 4, 5, 7, 8, 16, 32, 64):
        of_each = np.array([(size - r - 1) // modulus + 1 for r in range(modulus)])
        same = int(np.count_nonzero(order[1:] % modulus == order[:-1] % modulus))
        hits(same, len(order) - 1, _both(of_each, size), f"neighbours alike modulo {modulus}")


def neighbours_apart(order: np.ndarray, size: int) -> None:
    """Rows at close positions are as far from one another, and as often ascending, as by chance."""
    for distance in (1, 2, 3, 16):
        ends = np.abs(order[distance:] - order[:-distance])
        for near in (1, 8, 64):
            chance = near * (2 * size - near - 1) / (size * (size - 1))
            found = int(np.count_nonzero(ends <= near))
            hits(found, len(ends), chance, f"rows within {near} at distance {distance}")
        # How far, on the circle of all rows: not in one or a few steps.
        spread((order[distance:] - order[:-distance]) % size, size, f"steps over {distance}")
    ascents = int(np.count_nonzero(order[1:] > order[:-1]))
    # The number of ascents of n rows in random order has variance (n + 1) / 12.
    normal((ascents - (len(order) - 1) / 2) / math.sqrt((len(order) + 1) / 12), "ascents")


ONE_ORDER = (residues_in_batches, sources_in_batches, residues_of_neighbours, neighbours_apart)
"""The checks of one order."""


def unrelated(one: np.ndarray, other: np.ndarray, size: int) -> None:
    """Two whole orders have no more to do with one another than by chance: of epochs, or seeds.

    Rows at the same position are seldom equal or close, not correlated, and differ by all amounts
    equally often; a row stands in both at places that are apart by all amounts equally often.
    """
    hits(int(np.count_nonzero(one == other)), size, 1 / size, "positions with the same row")
    near = size // 256
    close = int(np.count_nonzero(np.abs(one - other) <= near))
    chance = (size + near * (2 * size - near - 1)) / size**2
    hits(close, size, chance, f"positions with rows within {near}")
    centre = (size - 1) / 2
    squares = float(np.dot(one - centre, one - centre))
    correlation = float(np.dot(one - centre, other - centre)) / squares
    normal(correlation * math.sqrt(size - 1), "correlation")
    spread((other - one) % size, size, "differences of rows")
    spread((np.argsort(other) - np.argsort(one)) % size, size, "differences of places")


def hits(count: int, trials: int, chance: float, what: str) -> None:
    """A count of hits is one of the binomial distribution."""
    low, high = binomial_limits(trials, chance)
    assert low <= count <= high, f"{what}: {count} of {trials}, expected {low} to {high}"


def spread(values: np.ndarray, size: int, what: str) -> None:
    """Values in [0, size) fall into 256 equal bins as often as a fair draw."""
    edges = np.array([size * part // 256 for part in range(257)])
    counts = np.bincount(np.searchsorted(edges, values, side="right") - 1, minlength=256)
    uniform(counts, len(values) * np.diff(edges) / size, what)


def uniform(counts: np.ndarray, expected: np.ndarray | float, what: str) -> None:
    """Counts, whose sum is that expected, are neither more nor less even than chance has it."""
    chi_square(float(((counts - expected) ** 2 / expected).sum()), counts.size - 1, what)


def chi_square(value: float, degrees: float, what: str) -> None:
    """A sum of squares is one of the chi square distribution, on both sides.

    By its cube root, which is nearly normal (Wilson and Hilferty, "The distribution of
    chi-square", 1931).
    """
    variance = 2 / (9 * degrees)
    normal(((value / degrees) ** (1 / 3) - (1 - variance)) / math.sqrt(variance), what)


def normal(deviations: float, what: str) -> None:
    assert abs(deviations) <= DEVIATIONS, f"{what}: {deviations:.1f} standard deviations off"


@functools.lru_cache(maxsize=4096)
def binomial_limits(trials: int, chance: float) -> tuple[int, int]:
    """The least and the largest count that are not refused: beyond each lies at most `TAIL`."""
    k = np.arange(trials + 1)
    choices = _log_factorials(trials)[-1] - _log_factorials(trials) - _log_factorials(trials)[::-1]
    pmf = np.exp(choices + k * math.log(chance) + (trials - k) * math.log1p(-chance))
    low = int(np.searchsorted(np.cumsum(pmf), TAIL, side="right"))
    high = trials - int(np.searchsorted(np.cumsum(pmf[::-1]), TAIL, side="right"))
    return low, high


@functools.lru_cache(maxsize=64)
def _log_factorials(largest: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, largest + 1)))])


def _both(counts: np.ndarray, size: int) -> float:
    """The chance that two rows are of one kind, of kinds that have so many rows each."""
    return float((counts / size * ((counts - 1) / (size - 1))).sum())


def _batches(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of all whole batches, and the batch of each."""
    count = len(order) // BATCH
    return order[: count * BATCH], np.repeat(np.arange(count), BATCH)


def _shares(
    kinds: np.ndarray, batch: np.ndarray, chances: np.ndarray, size: int, what: str
) -> None:
    """Each batch has each kind of row as often as chance has it."""
    batches = int(batch[-1]) + 1
    cells = np.bincount(kinds + len(chances) * batch, minlength=batches * len(chances))
    counts = cells.reshape(batches, len(chances))
    for chance in np.unique(chances):
        of_chance = counts[:, chances == chance]
        for count in (int(of_chance.min()), int(of_chance.max())):
            hits(count, BATCH, float(chance), f"one {what} in a batch")
    expected = BATCH * chances
    # All batches of a permutation hold all rows: they have one batch less to vary by.
    degrees = batches * (len(chances) - 1) * (1 - BATCH / size)
    chi_square(float(((counts - expected) ** 2 / expected).sum()), degrees, f"each {what}")
