"""Where the rows of a batch came from, through every kind of node."""

from __future__ import annotations

import numpy as np
import pytest

import cachelib
from cachelib import dataset
from cachelib.nodes.base import Origin
from tests.reader.memory import MemoryCache


def rows():
    return dataset.of(MemoryCache([3, 0, 5, 1, 4]))


def origin(row, *through):
    return Origin(f"file {row % 3}", row * 100, row, through)


@pytest.mark.parametrize(
    "ds",
    [
        rows(),
        rows().shuffle(3),
        rows().shuffle(3, block=2, window=2),
        rows().repeat(3),
        rows().shuffle(3).repeat(),
        rows().shuffle(1).repeat(2).shuffle(5),
    ],
    ids=["stored", "shuffle", "blocks", "repeat", "epochs", "nested"],
)
def test_names_the_row_that_take_gives(ds):
    count = 15 if ds.size is None else ds.size
    labels = ds.take(np.arange(count))["label"]
    for index in range(count):
        assert ds.origins(index) == [origin(labels[index] // 10)]


def test_names_all_documents_of_a_window():
    windows = rows().windows(4).shuffle(2)
    tokens = windows.take(np.arange(3))["tokens"]
    owners = np.repeat(np.arange(5), [3, 0, 5, 1, 4])
    for index in range(3):
        assert windows.origins(index) == [origin(row) for row in np.unique(owners[tokens[index]])]


def test_names_components_and_stages():
    mixed = cachelib.mix(
        {"a": rows().repeat(), "b": rows().shuffle(1).repeat()}, {"a": 1, "b": 3}, seed=0
    )
    ds = cachelib.then([(7, mixed), (5, rows())])
    labels = ds.take(np.arange(12))["label"]
    for index in range(7):
        (found,) = ds.origins(index)
        assert found.through in (("stage 0", "a"), ("stage 0", "b"))
        assert found.row == labels[index] // 10
    assert [ds.origins(7 + i) for i in range(5)] == [[origin(i, "stage 1")] for i in range(5)]


def test_a_loader_explains_the_whole_batch_of_a_step():
    ds = rows().shuffle(3).repeat()
    loader = ds.loader(4, dp_rank=1, dp_world=2)
    next(loader)
    order = ds.take(np.arange(12))["label"] // 10
    assert [loader.explain(2, i) for i in range(4)] == [[origin(row)] for row in order[8:12]]
    with pytest.raises(IndexError, match="row 4 is outside the 4 rows of the batch 2"):
        loader.explain(2, 4)
    with pytest.raises(IndexError, match="no batch at step 3"):
        rows().loader(2).explain(3, 0)
    with pytest.raises(IndexError, match="index 5"):
        rows().origins(5)
