"""Two sides of rows: what is held out and the rest, a function of the seed and each row's number.

Rows are cut into runs of 1,024, and run r holds out floor((r + 1) * 1024 * p + 1/2) -
floor(r * 1024 * p + 1/2) of its rows, so that each beginning of the rows is divided exactly, up to
what one run can be off. Which rows of a run these are is decided by a keyed permutation of it. So
a row stays on its side whatever rows come after it, and rank and select take arithmetic and the
permutations of the runs that are asked for.

The permutation is the iterated cipher of Even and Mansour, "A construction of a cipher from a
single pseudorandom permutation" (Journal of Cryptology 10, 1997), with two rounds: two tables that
belong to the seed, and three keys of 10 bits that belong to the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from cachelib.order import seeds
from cachelib.order.permutation import Permutation
from cachelib.order.splits import split

RUN = 1024
"""Rows of a run: a power of two."""

_BLOCK = 1 << 13
_SCRATCH = 1 << 21
# Beyond all places, also when the number of those before it is taken off.
_AFTER = np.int32(2 * RUN)
# From one run to the next where runs are searched together.
_STRIDE = np.int64(4 * RUN)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Side:
    """One side of ``total`` rows. Constant memory; ranks count the rows of this side, from 0 on.

    Attributes:
        total: rows of both sides, 0 to 2**63 - 1.
        fraction: what is held out, above 0 and below 1; taken as a number of parts of 2**64.
        seed: any integer.
        held: whether this is what is held out, or the rest.
    """

    total: int
    fraction: float
    seed: int
    held: bool

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction must be above 0 and below 1, got {self.fraction}")

    @property
    def other(self) -> Side:
        """The rows that are not on this side."""
        return replace(self, held=not self.held)

    @cached_property
    def count(self) -> int:
        """Rows of this side."""
        return int(self.ranks(np.array([self.total], np.int64))[0])

    def rows(self, ranks: np.ndarray) -> np.ndarray:
        """The rows, int64, that have int64 ranks in [0, count) on this side."""
        return self._in_blocks(ranks, self._select)

    def ranks(self, rows: np.ndarray) -> np.ndarray:
        """How many rows of this side come before each int64 row in [0, total]; int64."""
        return self._in_blocks(rows, self._rank)

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Whether each int64 row in [0, total) is on this side; bool."""
        runs, places = np.divmod(rows, np.int64(RUN))
        images = _encrypt(self._tables, self._keys(runs), places)
        return (images < self._held_in(runs)) == self.held

    def _select(self, ranks: np.ndarray) -> np.ndarray:
        runs = self._runs_of(ranks)
        within = ranks - self._before(runs)
        lesser = self._lesser(runs)
        if self._is_lesser:
            places = lesser.members[lesser.numbers, within]
        else:
            # Place x is the one of rank x - j, where j lesser ones come before it.
            gaps = lesser.members - np.arange(lesser.members.shape[1], dtype=np.int32)
            places = within + lesser.count(gaps, within, "right")
        return runs * np.int64(RUN) + places

    def _rank(self, rows: np.ndarray) -> np.ndarray:
        runs, places = np.divmod(rows, np.int64(RUN))
        lesser = self._lesser(runs)
        before = lesser.count(lesser.members, places, "left")
        return self._before(runs) + (before if self._is_lesser else places - before)

    def _in_blocks(self, values: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        size = min(_BLOCK, max(256, _SCRATCH // max(self._width, 1)))
        blocks = [of(values[start : start + size]) for start in range(0, len(values), size)]
        return np.concatenate([np.empty(0, np.int64), *blocks])

    @cached_property
    def _share(self) -> int:
        """What is held out, in parts of 2**64."""
        return min(max(round(Fraction(self.fraction) * (1 << 64)), 1), (1 << 64) - 1)

    @property
    def _is_lesser(self) -> bool:
        """Whether this is the side of fewer rows, of which runs are made up."""
        return self.held == (self._share <= 1 << 63)

    @property
    def _width(self) -> int:
        """Rows of the lesser side in a run, at most."""
        share = min(self._share, (1 << 64) - self._share)
        return -(-RUN * share // (1 << 64))

    def _held_before(self, runs: np.ndarray) -> np.ndarray:
        """Rows held out before each run, int64."""
        lefts, _ = split(runs.astype(np.uint64) * np.uint64(RUN), np.array(self._share, np.uint64))
        return lefts.view(np.int64)

    def _held_in(self, runs: np.ndarray) -> np.ndarray:
        return self._held_before(runs + 1) - self._held_before(runs)

    def _before(self, runs: np.ndarray) -> np.ndarray:
        """Rows of this side before each run, int64."""
        held = self._held_before(runs)
        return held if self.held else runs * np.int64(RUN) - held

    def _runs_of(self, ranks: np.ndarray) -> np.ndarray:
        """The run that holds the row of each rank: estimated by floats, then put right."""
        share = self._share if self.held else (1 << 64) - self._share
        last = np.int64(max(self.total - 1, 0) // RUN)
        estimate = (ranks + 0.5) * ((1 << 64) / (RUN * share))
        runs = np.minimum(estimate, float(last)).astype(np.int64)
        runs = np.minimum(runs, last)
        while True:
            late = self._before(runs) > ranks
            early = self._before(runs + 1) <= ranks
            if not (late.any() or early.any()):
                return runs
            runs += early.astype(np.int64) - late

    def _lesser(self, runs: np.ndarray) -> _Lesser:
        """The places of the lesser side in each run that is named."""
        unique, numbers = np.unique(runs, return_inverse=True)
        images, held = np.arange(self._width), self._held_in(unique)[:, None]
        valid = images < held
        if self._share > 1 << 63:
            valid = images < RUN - held
            images = RUN - 1 - images
        places = _decrypt(self._tables, self._keys(unique)[:, None], images)
        members = np.where(valid, places, _AFTER)
        members.sort(axis=1)
        return _Lesser(members, numbers)

    @property
    def _tables(self) -> _Tables:
        return _tables(self.seed)

    def _keys(self, runs: np.ndarray) -> np.ndarray:
        """64 bits of a hash of seed and run; uint64. The finaliser is that of SplitMix64."""
        keys = runs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + self._tables.key
        keys = (keys ^ (keys >> np.uint64(30))) * _MULTIPLIER_1
        keys = (keys ^ (keys >> np.uint64(27))) * _MULTIPLIER_2
        return keys ^ (keys >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class _Lesser:
    """The places that one side has in some runs.

    Attributes:
        members: int32 (runs, width), ascending; after the last one comes `_AFTER`.
        numbers: int64 (n,), which of these runs each of the values asked for is in.
    """

    members: np.ndarray
    numbers: np.ndarray

    def count(self, ascending: np.ndarray, values: np.ndarray, side: str) -> np.ndarray:
        """How many of ``ascending``, int32 (runs, width), of its run are below each value.

        With side "right", how many are not above it.
        """
        runs, width = ascending.shape
        flat = (ascending + np.arange(runs)[:, None] * _STRIDE).reshape(-1)
        found = np.searchsorted(flat, values + self.numbers * _STRIDE, side=side)  # type: ignore[call-overload]
        return np.asarray(found - self.numbers * width, np.int64)


@dataclass(frozen=True, eq=False)
class _Tables:
    """Two permutations of the places of a run, uint16 (RUN,), their inverses, and a key."""

    first: np.ndarray
    second: np.ndarray
    first_inverse: np.ndarray
    second_inverse: np.ndarray
    key: np.uint64


@lru_cache(maxsize=16)
def _tables(seed: int) -> _Tables:
    places = np.arange(RUN)
    first, second = (Permutation(RUN, seeds.derive("split", seed, n)) for n in (1, 2))
    key = int.from_bytes(seeds.derive("runs of a split", seed)[:8], "little")
    return _Tables(
        first.apply(places).astype(np.uint16),
        second.apply(places).astype(np.uint16),
        first.invert(places).astype(np.uint16),
        second.invert(places).astype(np.uint16),
        np.uint64(key),
    )


def _encrypt(tables: _Tables, keys: np.ndarray, places: np.ndarray) -> np.ndarray:
    one, two, three = _parts(keys)
    return tables.second[tables.first[places ^ one] ^ two] ^ three


def _decrypt(tables: _Tables, keys: np.ndarray, images: np.ndarray) -> np.ndarray:
    one, two, three = _parts(keys)
    return tables.first_inverse[tables.second_inverse[images ^ three] ^ two] ^ one


def _parts(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three keys of places, uint16."""
    one, two, three = ((keys >> np.uint64(bits)).astype(np.uint16) for bits in (48, 32, 16))
    return one & (RUN - 1), two & (RUN - 1), three & (RUN - 1)
