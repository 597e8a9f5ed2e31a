"""Eras: the stretches of a growing cache that are ordered one after another.

An era is sealed once and never changes, so that what lies in sealed eras never moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Sealed:
    """The sealed eras of a cache.

    Attributes:
        rows: int64 (eras,), how many rows are left up to the end of each, not descending.
        elements: int64 (eras,) for each ragged field: the values of these rows.
        digests: the content digest of the rows up to the end of each, as text.
        finished: whether the cache is complete, so that no era comes after them.
    """

    rows: np.ndarray
    elements: Mapping[str, np.ndarray]
    digests: tuple[str, ...]
    finished: bool


@dataclass(frozen=True, eq=False)
class EraTable:
    """Where eras end, in rows, windows or packs; the first begins at 0.

    Attributes:
        ends: int64 (eras,), not descending: an era may be empty.
    """

    ends: np.ndarray

    @property
    def size(self) -> int:
        """What all eras hold together."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def span(self, era: int) -> range:
        """What an era holds."""
        return range(int(self.ends[era - 1]) if era else 0, int(self.ends[era]))

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The eras that int64 positions in [0, size) lie in, and the places there; int64 (n,)."""
        eras = np.searchsorted(self.ends, positions, side="right")
        begins = np.concatenate([np.zeros(1, np.int64), self.ends])[eras]
        return eras, positions - begins

    def entered(self, position: int) -> int:
        """Eras, from the first on, that what lies before a position in [0, size] depends on."""
        if position == 0:
            return 0
        return int(np.searchsorted(self.ends, position - 1, side="right")) + 1


def windows_before(elements: np.ndarray, length: int, stride: int) -> np.ndarray:
    """Windows that end at or before each element, int64: those of an era and of all before it.

    Window i is elements [i * stride, i * stride + length), and belongs to the era of its last one.
    """
    return np.where(elements < length, 0, (elements - length) // stride + 1).astype(np.int64)
