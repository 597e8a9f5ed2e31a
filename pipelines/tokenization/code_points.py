"""Sets of Unicode code points, and which texts hold any of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.tokenization.arrow import buffers

CODE_POINTS = 0x110000
_SURROGATES = range(0xD800, 0xE000)
# Small enough to stay in the processor's cache; blocks of ASCII are passed over at once.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class CodePointSet:
    """A set of code points outside ASCII.

    Attributes:
        ranges: (first, last) pairs, both inclusive, ascending, neither touching nor overlapping.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        previous = 0x7E
        for first, last in self.ranges:
            if not previous + 1 < first <= last < CODE_POINTS:
                raise ValueError(
                    f"ranges must be ascending, apart and within U+0080 to U+10FFFF, got "
                    f"({first:#x}, {last:#x}) after {previous:#x}"
                )
            previous = last

    @classmethod
    def of(cls, code_points: Iterable[int]) -> CodePointSet:
        """The set of the given code points."""
        points = np.unique(np.fromiter(code_points, np.int64))
        if len(points) == 0:
            return cls()
        breaks = np.flatnonzero(np.diff(points) > 1)
        firsts = points[np.concatenate([[0], breaks + 1])]
        lasts = points[np.concatenate([breaks, [len(points) - 1]])]
        return cls(tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __contains__(self, code_point: int) -> bool:
        return any(first <= code_point <= last for first, last in self.ranges)

    @functools.cached_property
    def _members(self) -> np.ndarray:
        """bool (0x110000,)"""
        members = np.zeros(CODE_POINTS, bool)
        for first, last in self.ranges:
            members[first : last + 1] = True
        return members

    @functools.cached_property
    def _beginnings(self) -> np.ndarray:
        """bool (65536,): whether first byte + 256 * second byte begins a member in UTF-8."""
        points = np.flatnonzero(self._members)
        points = points[(points < _SURROGATES.start) | (points >= _SURROGATES.stop)]
        first, second = _first_two_bytes(points)
        beginnings = np.zeros(1 << 16, bool)
        beginnings[first + 256 * second] = True
        return beginnings

    def rows_containing(self, texts: pa.LargeStringArray) -> np.ndarray:
        """Which texts hold a member: bool (rows,). ASCII costs nearly nothing."""
        found = np.zeros(len(texts), bool)
        if not self.ranges:
            return found
        offsets, data = buffers(texts)
        for start in range(int(offsets[0]), int(offsets[-1]), _BLOCK):
            stop = min(start + _BLOCK, int(offsets[-1]))
            if data[start:stop].max() < 0x80:
                continue
            leads = start + np.flatnonzero(data[start:stop] >= 0xC2)
            # In valid UTF-8 a lead byte is never the last one.
            pairs = data[leads].astype(np.uint16) | data[leads + 1].astype(np.uint16) << 8
            leads = leads[self._beginnings[pairs]]
            if len(leads):
                members = leads[self._members[_decode(data, leads)]]
                found[np.searchsorted(offsets, members, side="right") - 1] = True
        return found


def _first_two_bytes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first two bytes of each code point from U+0080 on in UTF-8."""
    two, three = points < 0x800, points < 0x10000
    first = np.where(
        two, 0xC0 | points >> 6, np.where(three, 0xE0 | points >> 12, 0xF0 | points >> 18)
    )
    shift = np.where(two, 0, np.where(three, 6, 12))
    return first, 0x80 | points >> shift & 0x3F


def _decode(data: np.ndarray, leads: np.ndarray) -> np.ndarray:
    """Code points, int64, whose UTF-8 begins at ``leads``; none is ASCII."""
    first = data[leads].astype(np.int64)
    point = np.where(first < 0xE0, first & 0x1F, np.where(first < 0xF0, first & 0x0F, first & 0x07))
    for ahead, from_lead in ((1, 0xC2), (2, 0xE0), (3, 0xF0)):
        longer = first >= from_lead
        point[longer] = point[longer] << 6 | data[leads[longer] + ahead] & 0x3F
    return point
