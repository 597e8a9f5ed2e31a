"""Ragged: rows of different lengths as flat values and offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LONG = 32
"""Values of a range from which copying range by range is cheaper than an index a value."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of varying length, stored back to back.

    Attributes:
        values: array of shape (elements, *trailing), any dtype.
        offsets: int64 array of shape (rows + 1,); row i is
            ``values[offsets[i]:offsets[i + 1]]``; ``offsets[0]`` is 0 and the last is ``elements``.
    """

    values: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        offsets = self.offsets
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError(
                f"offsets must be int64 of shape (rows + 1,), got {offsets.dtype} {offsets.shape}"
            )
        if offsets[0] != 0 or offsets[-1] != len(self.values):
            raise ValueError(
                f"offsets must run from 0 to {len(self.values)}, got {offsets[0]} to {offsets[-1]}"
            )
        if np.any(offsets[1:] < offsets[:-1]):
            row = int(np.argmax(offsets[1:] < offsets[:-1]))
            raise ValueError(f"offsets must not decrease, but row {row} has a negative length")

    @classmethod
    def from_lengths(cls, values: np.ndarray, lengths: np.ndarray) -> Ragged:
        """Rows of the given int lengths, shape (rows,), over values of shape (sum, *trailing)."""
        return cls(values, offsets_of(lengths))

    @classmethod
    def from_rows(cls, rows: Sequence[np.ndarray], dtype: np.dtype | type) -> Ragged:
        """Rows given one array each; for tests and small inputs."""
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        arrays = [np.asarray(row, dtype) for row in rows]
        values = np.concatenate(arrays) if arrays else np.empty(0, dtype)
        return cls.from_lengths(values, lengths)

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts, in order; at least one part, all of one dtype."""
        if len(parts) == 1:
            return parts[0]
        return cls.from_lengths(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    @property
    def lengths(self) -> np.ndarray:
        """Row lengths, int64 of shape (rows,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """The values of one row, a view; negative rows count from the end."""
        rows = len(self)
        if not -rows <= row < rows:
            raise IndexError(f"row {row} is outside the {rows} rows")
        row %= rows
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def slice(self, start: int, stop: int) -> Ragged:
        """Rows [start, stop), without a copy of the values."""
        first = self.offsets[start]
        offsets = self.offsets[start : stop + 1] - first
        return Ragged(self.values[first : self.offsets[stop]], offsets)

    def take(self, indices: np.ndarray) -> Ragged:
        """The rows at int ``indices``, in that order, repeats allowed."""
        lengths = self.lengths[indices]
        values = gather(self.values, self.offsets[:-1][indices], lengths)
        return Ragged.from_lengths(values, lengths)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Prefix sums of int lengths: int64 of shape (rows + 1,), beginning with 0."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def gather(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The values start..start+length of every pair, back to back: a copy of shape (sum, *shape)."""
    if lengths.sum() < LONG * len(lengths):
        return values[ranges(starts, lengths)]
    pairs = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.concatenate([values[start:stop] for start, stop in pairs] or [values[:0]])


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers start..start+length of every pair, back to back, as int64."""
    offsets = offsets_of(lengths)
    shifts = np.repeat(np.asarray(starts, np.int64) - offsets[:-1], lengths)
    return shifts + np.arange(offsets[-1], dtype=np.int64)
