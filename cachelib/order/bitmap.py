"""Chosen rows as bits, with counts: which row is the n-th chosen one, and how many come before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cachelib.ragged import offsets_of

_RUN = 512
_BLOCK = 1 << 13


@dataclass(frozen=True, eq=False)
class Bitmap:
    """Some of ``total`` rows: a bit a row, and a count for each 512 of them.

    Ranks count the chosen rows, from 0 on.

    Attributes:
        total: of how many rows.
        bits: uint8 (runs, 64), bit i % 8 of byte i // 8 of all is row i; the last run is not full.
    """

    total: int
    bits: np.ndarray

    @classmethod
    def of(cls, masks: Iterable[np.ndarray], total: int) -> Bitmap:
        """From bool arrays (n,) that follow one another, a multiple of 8 in all but the last."""
        bits = np.zeros((total // _RUN + 1) * _RUN // 8, np.uint8)
        at = 0
        for mask in masks:
            packed = np.packbits(mask, bitorder="little")
            bits[at // 8 : at // 8 + len(packed)] = packed
            at += len(mask)
        if at != total:
            raise ValueError(f"expected {total} truth values, got {at}")
        return cls(total, bits.reshape(-1, _RUN // 8))

    @cached_property
    def count(self) -> int:
        """How many rows are chosen."""
        return int(self._before[-1])

    def rows(self, ranks: np.ndarray) -> np.ndarray:
        """The chosen rows, int64, that have int64 ranks in [0, count)."""
        return _in_blocks(ranks, self._select)

    def ranks(self, rows: np.ndarray) -> np.ndarray:
        """How many chosen rows come before each int64 row in [0, total]; int64."""
        return _in_blocks(rows, self._rank)

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Whether each int64 row in [0, total) is chosen; bool."""
        return (self.bits.reshape(-1)[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1

    def _select(self, ranks: np.ndarray) -> np.ndarray:
        runs = np.searchsorted(self._before, ranks, side="right") - 1
        unique, numbers = np.unique(runs, return_inverse=True)
        chosen = np.flatnonzero(self._unpacked(unique)) % _RUN
        first = offsets_of(self._before[unique + 1] - self._before[unique])[numbers]
        return runs * np.int64(_RUN) + chosen[first + ranks - self._before[runs]]

    def _rank(self, rows: np.ndarray) -> np.ndarray:
        runs, places = np.divmod(rows, np.int64(_RUN))
        inside = self._unpacked(runs) & (np.arange(_RUN) < places[:, None])
        return self._before[runs] + np.count_nonzero(inside, axis=1)

    def _unpacked(self, runs: np.ndarray) -> np.ndarray:
        return np.unpackbits(self.bits[runs], axis=1, bitorder="little").view(np.bool_)

    @cached_property
    def _before(self) -> np.ndarray:
        """Chosen rows before each run, and in all; int64 (runs + 1,)."""
        return offsets_of(np.bitwise_count(self.bits).sum(axis=1, dtype=np.int64))


def _in_blocks(values: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    blocks = [of(values[start : start + _BLOCK]) for start in range(0, len(values), _BLOCK)]
    return np.concatenate([np.empty(0, np.int64), *blocks])
