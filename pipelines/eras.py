"""Eras: when those of a growing cache end, so that there are neither none nor thousands."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from cachelib.format.snapshot import Snapshot
from pipelines.columns import TOKENS
from pipelines.commit import unsealed_rows


class EraClock:
    """Tells when the rows that belong to no era yet are to become one.

    Args:
        seconds: from when the first of them was seen here.
        size: bytes of their token ids.
        clock: seconds, of which only differences count.
    """

    def __init__(
        self, seconds: float, size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._size = size
        self._clock = clock
        self._end = 0  # of the last era, in rows
        self._since: float | None = None
        self._bytes = 0

    def see(self, snapshot: Snapshot) -> None:
        """Take note of a newer snapshot."""
        end = snapshot.rows - unsealed_rows(snapshot)
        if unsealed_rows(snapshot) == 0:
            self._since = None
        elif self._since is None or end != self._end:
            self._since = self._clock()
        self._end = end
        self._bytes = unsealed_bytes(snapshot)

    @property
    def due(self) -> bool:
        """Whether an era is to end now."""
        if self._since is None:
            return False
        return self._bytes >= self._size or self._clock() - self._since >= self._seconds


def unsealed_bytes(snapshot: Snapshot) -> int:
    """Bytes of the token ids of rows that belong to no era yet."""
    end = int(snapshot.eras[-1]) if len(snapshot.eras) else 0
    bases = snapshot.element_bases[TOKENS]
    first = int(np.searchsorted(snapshot.row_bases, end))
    return int(bases[-1] - bases[first]) * np.dtype(snapshot.commit.schema[TOKENS].dtype).itemsize
