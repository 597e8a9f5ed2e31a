"""A dataset is a random-access source of grain: every row once, in its batches and workers."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from absl import flags

import cachelib
from cachelib import dataset
from cachelib.format.storage import Storage
from tests.cachelib.gaps import delete
from tests.cachelib.helpers import EVERY_KIND, random_columns, write_cache
from tests.reader.stored import write_commit

pytestmark = pytest.mark.jax

ROWS, BATCH = 46, 4


@pytest.fixture
def cache(tmp_path: Path) -> cachelib.Cache:
    """46 rows or windows; label i is 10 * i, window i begins with 8 * i."""
    # Workers ask for flags, which a program's absl.app.run has parsed.
    flags.FLAGS.mark_as_parsed()
    write_commit(tmp_path / "cache", [[10] * 30, [4] * (ROWS - 30)])
    return cachelib.open(tmp_path / "cache")


def sampler(rows: int, **options: Any) -> Any:
    return grain.samplers.IndexSampler(num_records=rows, num_epochs=1, seed=3, **options)


def loader(source: Any, workers: int, **options: Any) -> Any:
    return grain.DataLoader(
        data_source=source,
        sampler=sampler(len(source), shuffle=True),
        operations=[grain.transforms.Batch(BATCH)],
        worker_count=workers,
        **options,
    )


@pytest.mark.parametrize("make", [lambda c: c, lambda c: c.dataset(), lambda c: c.shuffle(1)])
def test_rows_are_those_of_the_dataset(cache: cachelib.Cache, make: Any) -> None:
    source = make(cache)
    rows = grain.MapDataset.source(source)
    assert len(rows) == ROWS
    for i in (0, 7, ROWS - 1):
        assert rows[i]["tokens"].tolist() == source[i]["tokens"].tolist()
        assert rows[i]["label"] == source[i]["label"]
    found = [int(row["label"]) for row in rows.shuffle(seed=1)]
    assert sorted(found) == [*range(0, 10 * ROWS, 10)] != found


def test_passes_and_batches_are_grains(cache: cachelib.Cache) -> None:
    windows = cache.windows(8).slice(0, 45)
    batches = grain.MapDataset.source(windows).shuffle(seed=1).repeat(2).batch(BATCH)
    found = [batch["tokens"] for batch in batches]
    assert {rows.shape[1:] for rows in found} == {(8,)}
    starts = np.concatenate(found)[:, 0].tolist()
    once = [*range(0, 45 * 8, 8)]
    assert sorted(starts[:45]) == sorted(starts[45:]) == once
    assert starts[:45] != starts[45:]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_of_a_loader_deliver_each_row_once(cache: cachelib.Cache, workers: int) -> None:
    iterator = iter(loader(dataset.of(cache, fields=["label"]), workers))
    found = [next(iterator)["label"].tolist() for _ in range(3)]
    state = iterator.get_state()
    rest = [batch["label"].tolist() for batch in iterator]
    assert sorted(chain(*found, *rest)) == [*range(0, 10 * ROWS, 10)]
    # Another object of the same order is the same source, and one of another order is not.
    again = cachelib.open(cache.url)
    resumed = iter(loader(dataset.of(again, fields=["label"]), workers))
    resumed.set_state(state)
    assert [batch["label"].tolist() for batch in resumed] == rest
    with pytest.raises(ValueError, match="data source"):
        iter(loader(again.shuffle(5), workers)).set_state(state)


def test_workers_of_a_pipeline_deliver_each_row_once(cache: cachelib.Cache) -> None:
    rows = grain.MapDataset.source(cache.windows(8).shuffle(1)).shuffle(seed=1).to_iter_dataset()
    two = grain.multiprocessing.MultiprocessingOptions(num_workers=2)
    found = [row for batch in rows.batch(BATCH).mp_prefetch(two) for row in batch["tokens"][:, 0]]
    assert sorted(found) == [8 * i for i in range(len(cache.windows(8)))]


def test_endless_datasets_have_no_length_for_grain(cache: cachelib.Cache) -> None:
    with pytest.raises(TypeError, match="an endless dataset has no length"):
        len(grain.MapDataset.source(cache.windows(8).repeat()))


def test_rows_of_a_cache_with_deleted_ones_are_those_of_their_indices(tmp_path: Path) -> None:
    columns = random_columns(EVERY_KIND, [2] * 8, seed=1)
    write_cache(tmp_path, EVERY_KIND, columns, [[8]])
    delete(Storage.at(tmp_path), [1, 5], columns)
    cache = cachelib.open(tmp_path)
    rows = grain.MapDataset.source(cache)
    assert len(rows) == 8
    assert rows[6]["label"] == np.asarray(columns["label"])[6]
    with pytest.raises(cachelib.ForebayError, match="row 5 was deleted"):
        rows[5]
    left = grain.MapDataset.source(cache.dataset())
    expected = np.asarray(columns["label"])[[0, 2, 3, 4, 6, 7]]
    np.testing.assert_array_equal([row["label"] for row in left], expected)
