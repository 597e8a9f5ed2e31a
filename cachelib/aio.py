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
from cachelib.following import Followed
from cachelib.nodes.base import Columns, grows, reach, wait
from cachelib.order.indices import LARGEST


@dataclass(frozen=True)
class AsyncDataset:
    """A dataset whose reads are awaited; `sync` is the dataset itself."""

    sync: Dataset

    def is_finite(self) -> bool:
        """Whether there is a last row, or will be."""
        return not self.sync.endless

    async def async_len(self) -> int:
        """Number of rows.

        Of a dataset that grows it is waited for, until the cache is complete.

        Raises:
            TypeError: the dataset is endless.
            NotYetBuilt, BuilderGone: the cache was not completed.
        """
        if grows(self.sync.node) and not self.sync.endless:
            await asyncio.to_thread(wait, self.sync.node, LARGEST)
        return len(self.sync)

    async def final_length_is_known(self) -> bool:
        """Whether `async_len` is known: not of a cache that is followed and not complete yet."""
        return self.sync.size is not None or not grows(self.sync.node)

    async def current_len(self) -> int | None:
        """Rows that can be read now; None for an endless dataset of which all can."""
        return await asyncio.to_thread(reach, self.sync.node)

    async def wait_until_len_at_least(self, length: int) -> int:
        """Number of rows that can be read, once it is at least that or cannot grow any more.

        Raises:
            NotYetBuilt, BuilderGone: a followed cache did not come so far.
        """
        await asyncio.to_thread(wait, self.sync.node, length)
        there = await self.current_len()
        return length if there is None else there

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


def dataset(of: Dataset | Cache | Followed) -> AsyncDataset:
    """The asynchronous face of a dataset, or of a cache's rows in stored order."""
    return AsyncDataset(of if isinstance(of, Dataset) else of.dataset())
