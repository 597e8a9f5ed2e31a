"""Asynchronous reading: a dataset as training frameworks on JAX take it.

    web = cachelib.aio.dataset(cachelib.open("web").windows(2048).shuffle(seed=0))
    rows = await web.get_batch([5, 3, 5])

Reads are the dataset's own, each in a thread, so that many can be awaited at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from cachelib.cache import Cache
from cachelib.dataset import Dataset
from cachelib.nodes.base import Columns


@dataclass(frozen=True)
class AsyncDataset:
    """A dataset whose reads are awaited; `sync` is the dataset itself."""

    sync: Dataset

    def is_finite(self) -> bool:
        """Whether there is a last row."""
        return self.sync.size is not None

    async def async_len(self) -> int:
        """Number of rows.

        Raises:
            TypeError: the dataset is endless.
        """
        return len(self.sync)

    async def final_length_is_known(self) -> bool:
        """Whether `async_len` will not change: always, since a snapshot is read."""
        return True

    async def current_len(self) -> int | None:
        """Rows there are now: all of them; None for an endless dataset."""
        return self.sync.size

    async def wait_until_len_at_least(self, length: int) -> int:
        """Number of rows, at once: a snapshot does not grow. An endless dataset has as asked."""
        return length if self.sync.size is None else self.sync.size

    async def take(self, indices: Iterable[SupportsIndex]) -> Columns:
        """Rows by column; arguments and errors are those of `Dataset.take`."""
        return await asyncio.to_thread(self.sync.take, indices)

    async def get_batch(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Rows, a value for each field, read together; errors are those of `Dataset.take`."""
        columns = await self.take(indices)
        return [{name: column[i] for name, column in columns.items()} for i in range(len(indices))]

    async def getitem_async(self, index: SupportsIndex) -> dict[str, Any]:
        """One row, a value for each field."""
        return (await self.get_batch([index]))[0]


def dataset(of: Dataset | Cache) -> AsyncDataset:
    """The asynchronous face of a dataset, or of a cache's rows in stored order."""
    return AsyncDataset(of if isinstance(of, Dataset) else of.dataset())
