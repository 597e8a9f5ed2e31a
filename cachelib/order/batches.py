"""Steps and ranks: which samples make a batch, and which of them are whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cachelib.order.indices import LARGEST

Last = Literal["drop", "short"]


@dataclass(frozen=True)
class Batches:
    """A sequence of samples cut into batches, and each batch into equal, contiguous parts.

    A batch is given by the position of its first sample, never by its number, so that the batch
    size may change on the way. The batch at a position is the same for any world.

    Attributes:
        size: samples in all; None where they never end.
        batch_size: samples of a batch over all ranks, a multiple of ``world``.
        world: number of data-parallel ranks.
        last: what becomes of samples at the end that fill no whole batch: "drop" leaves them
            out, "short" makes them a batch, which must divide among the ranks as well.
    """

    size: int | None
    batch_size: int
    world: int
    last: Last = "drop"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {self.batch_size}")
        if self.world < 1:
            raise ValueError(f"dp_world must be 1 or more, got {self.world}")
        if self.batch_size % self.world:
            raise ValueError(
                f"batch_size {self.batch_size} does not divide among {self.world} ranks"
            )
        if self.last not in get_args(Last):
            raise ValueError(f"last must be one of {get_args(Last)}, got {self.last!r}")

    def span(self, position: int) -> range | None:
        """The samples of the batch that begins at a position, or None if no batch does."""
        if self.size is None:
            return range(position, position + self.batch_size)
        left = self.size - position
        if left <= 0 or (left < self.batch_size and self.last == "drop"):
            return None
        return range(position, position + min(left, self.batch_size))

    def remaining(self, position: int) -> int | None:
        """Number of batches from a position to the end; None where there is no end."""
        if self.size is None:
            return None
        left = max(self.size - position, 0)
        return left // self.batch_size if self.last == "drop" else -(-left // self.batch_size)

    def check(self, position: int) -> None:
        """ValueError if no batches can begin at a position, or not all divide among the ranks."""
        if not 0 <= position <= LARGEST:
            raise ValueError(f"samples are counted from 0 to {LARGEST}, got {position}")
        if self.size is None or self.last == "drop":
            return
        short = max(self.size - position, 0) % self.batch_size
        if short % self.world:
            raise ValueError(
                f"the last batch has {short} samples, which do not divide among {self.world} "
                f"ranks ({self.size} samples from {position} on in batches of "
                f"{self.batch_size}); use last='drop'"
            )

    def part(self, span: range, rank: int) -> range:
        """The samples of a batch that belong to a rank."""
        each = len(span) // self.world
        return span[rank * each : (rank + 1) * each]
