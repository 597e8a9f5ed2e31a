"""The asynchronous face gives what the dataset gives."""

from __future__ import annotations

import asyncio
import pickle
import threading

import numpy as np
import pytest

from cachelib import aio, dataset
from tests.reader.memory import MemoryCache, SimulatedCache


def test_reads_what_the_dataset_reads():
    ds = dataset.of(MemoryCache([3, 0, 5])).shuffle(1)
    face = aio.dataset(ds)

    async def read():
        return await face.async_len(), await face.get_batch([2, 0, 2, -1]), await face.take([1])

    length, rows, columns = asyncio.run(read())
    assert length == 3
    expected = ds.take([2, 0, 2, -1])
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(row["tokens"], expected["tokens"][i])
        assert row["label"] == expected["label"][i]
    assert columns["label"].tolist() == ds.take([1])["label"].tolist()
    assert asyncio.run(face.getitem_async(1))["label"] == ds[1]["label"]
    assert asyncio.run(face.get_batch([])) == []


def test_lengths_are_those_of_the_snapshot():
    finite = aio.dataset(dataset.of(SimulatedCache(10)))
    endless = aio.dataset(finite.sync.repeat())

    async def lengths(face):
        return await face.current_len(), await face.wait_until_len_at_least(20)

    assert (finite.is_finite(), asyncio.run(lengths(finite))) == (True, (10, 10))
    assert (endless.is_finite(), asyncio.run(lengths(endless))) == (False, (None, 20))
    assert asyncio.run(finite.final_length_is_known())
    with pytest.raises(TypeError, match="endless"):
        asyncio.run(endless.async_len())
    with pytest.raises(IndexError, match="index 10"):
        asyncio.run(finite.get_batch([10]))


def test_reads_go_on_at_once():
    class Meeting(SimulatedCache):
        """Reads that end only once two of them are under way."""

        barrier = threading.Barrier(2, timeout=30)

        def take(self, indices, fields=None):
            self.barrier.wait()
            return super().take(indices, fields)

    face = aio.dataset(dataset.of(Meeting(10)))

    async def both():
        return await asyncio.gather(face.getitem_async(1), face.getitem_async(2))

    assert [row["label"] for row in asyncio.run(both())] == [1, 2]


def test_pickles():
    face = aio.dataset(dataset.of(SimulatedCache(10)).shuffle(3))
    assert pickle.loads(pickle.dumps(face)).sync.describe() == face.sync.describe()
