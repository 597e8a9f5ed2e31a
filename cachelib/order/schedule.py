"""Schedules: batch sizes that change on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Batch sizes by position: a batch has the size of the last stage at or before its beginning.

    A batch that begins in one stage may reach into the next, which then begins with the batch
    after it.

    Attributes:
        stages: (position of a sample, batch size) pairs, the first at 0, positions increasing.
    """

    stages: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.stages or self.stages[0][0] != 0:
            raise ValueError(f"the first stage of batch_size begins at sample 0, got {self.stages}")
        for (at, _), (following, _) in zip(self.stages, self.stages[1:], strict=False):
            if following <= at:
                raise ValueError(f"stages of batch_size must increase, got {following} after {at}")
        for _, size in self.stages:
            if size < 1:
                raise ValueError(f"batch_size must be 1 or more, got {size}")

    def size_at(self, position: int) -> int:
        """Samples of the batch that begins at a position."""
        return next(size for at, size in reversed(self.stages) if at <= position)

    def runs(self, position: int, end: int | None) -> Iterator[tuple[int, int, int | None]]:
        """Runs of batches of one size that begin in [position, end).

        Yields:
            (position of the first, batch size, number of batches or None for ever).
        """
        limits = [at for at, _ in self.stages[1:]] + [end]
        for (_, size), limit in zip(self.stages, limits, strict=True):
            stop = end if limit is None or (end is not None and end < limit) else limit
            if stop is None:
                yield position, size, None
            elif position < stop:
                count = -(-(stop - position) // size)
                yield position, size, count
                position += count * size

    def last(self, position: int, end: int) -> range | None:
        """The batch that begins last in [position, end), as it would be with nothing to stop it."""
        found = None
        for start, size, count in self.runs(position, end):
            assert count is not None
            found = range(start + (count - 1) * size, start + count * size)
        return found

    def after(self, position: int, steps: int) -> int:
        """The position ``steps`` batches, 0 or more, after a position."""
        for start, size, count in self.runs(position, None):
            if count is None or steps <= count:
                return start + steps * size
            steps -= count
        raise AssertionError("the last stage has no end")
