"""Steps and ranks: which samples make a batch, and which of them are whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cachelib.order.indices import LARGEST
from cachelib.order.schedule import Schedule

Last = Literal["drop", "short", "pad"]
Uneven = Literal["error", "pad"]


@dataclass(frozen=True)
class Part:
    """Rows of a batch that belong to one rank, or to several.

    Attributes:
        runs: the rows, as runs of samples one after another.
        stop: where the samples of the whole batch end; rows from there on are padding.
    """

    runs: tuple[range, ...]
    stop: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(map(len, self.runs))

    @property
    def indices(self) -> np.ndarray:
        """Samples of the rows, int64 (rows,); padding repeats the last sample of the batch."""
        return np.minimum(self._places, self.stop - 1)

    @property
    def weight(self) -> np.ndarray:
        """1 for samples and 0 for padding, float32 (rows,)."""
        return (self._places < self.stop).astype(np.float32)

    @property
    def _places(self) -> np.ndarray:
        return np.concatenate([np.arange(r.start, r.stop, dtype=np.int64) for r in self.runs])


@dataclass(frozen=True)
class Batches:
    """A sequence of samples cut into batches, and each batch into equal, contiguous parts.

    A batch is given by the position of its first sample, never by its number, so that the batch
    size may change on the way. The samples of the batch at a position are the same for any world.

    Attributes:
        size: samples in all; None where they never end.
        schedule: samples of a batch over all ranks, multiples of ``world * micro`` unless padded.
        world: number of data-parallel ranks.
        micro: micro-batches into which each rank cuts its part.
        last: what becomes of samples at the end that fill no whole batch: "drop" leaves them out,
            "short" makes them a batch of their own, "pad" one that is padded to the full size.
        uneven: what becomes of a batch that does not divide among ranks and micro-batches: an
            "error", or rows of "pad"ding up to the next multiple.
        borders: positions, increasing, that no batch may cross.
    """

    size: int | None
    schedule: Schedule
    world: int = 1
    micro: int = 1
    last: Last = "drop"
    uneven: Uneven = "error"
    borders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("dp_world", self.world), ("micro_batches", self.micro)):
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        for name, word, words in (("last", self.last, Last), ("uneven", self.uneven, Uneven)):
            if word not in get_args(words):
                raise ValueError(f"{name} must be one of {get_args(words)}, got {word!r}")
        for _, batch_size in self.schedule.stages:
            if batch_size % self.shares and self.uneven == "error":
                raise ValueError(
                    f"batch_size {batch_size} does not divide among {self.among}; uneven='pad' "
                    "adds rows of weight 0"
                )

    @property
    def pads(self) -> bool:
        """Whether rows may be padding, so that each has a weight."""
        return self.last == "pad" or self.uneven == "pad"

    def span(self, position: int) -> range | None:
        """The samples of the batch that begins at a position, or None if no batch does."""
        batch_size = self.schedule.size_at(position)
        if self.size is None:
            return range(position, position + batch_size)
        left = self.size - position
        if left <= 0 or (left < batch_size and self.last == "drop"):
            return None
        return range(position, position + min(left, batch_size))

    def remaining(self, position: int) -> int | None:
        """Number of batches from a position to the end; None where there is no end."""
        if self.size is None:
            return None
        count, end = 0, position
        for start, batch_size, batches in self.schedule.runs(position, self.size):
            assert batches is not None
            count, end = count + batches, start + batches * batch_size
        return count - 1 if self.last == "drop" and end > self.size and count else count

    def check(self, position: int) -> None:
        """ValueError if no batches can begin at a position, or not all divide among the ranks."""
        if not 0 <= position <= LARGEST:
            raise ValueError(f"samples are counted from 0 to {LARGEST}, got {position}")
        self._check_borders(position)
        if self.size is None or self.last != "short" or self.uneven == "pad":
            return
        last = self.schedule.last(position, self.size)
        if last is None:
            return
        short = min(len(last), self.size - last.start)
        if short % self.shares:
            raise ValueError(
                f"the last batch has {short} samples, which do not divide among {self.among} "
                f"({self.size} samples from {position} on in batches of {len(last)}); use "
                "last='drop', last='pad' or uneven='pad'"
            )

    def _check_borders(self, position: int) -> None:
        for border in self.borders:
            last = self.schedule.last(position, border)
            if last is not None and last.stop > border:
                raise ValueError(
                    f"a batch of {len(last)} would cross sample {border}, where the columns "
                    f"change: batches from {position} on must end there"
                )

    def part(self, span: range, ranks: Sequence[int]) -> Part:
        """The rows of a batch that belong to ranks: by micro-batch, and in each rank by rank."""
        rows = self.schedule.size_at(span.start) if self.last == "pad" else len(span)
        piece = -(-rows // self.shares)
        starts = [
            span.start + (rank * self.micro + micro) * piece
            for micro in range(self.micro)
            for rank in ranks
        ]
        return Part(tuple(range(start, start + piece) for start in starts), span.stop)

    @property
    def shares(self) -> int:
        """What each batch is cut into: micro-batches of all ranks."""
        return self.world * self.micro

    @property
    def among(self) -> str:
        """Those who share a batch, in words."""
        micro = f" of {self.micro} micro-batches each" if self.micro > 1 else ""
        return f"{self.world} ranks{micro}"
