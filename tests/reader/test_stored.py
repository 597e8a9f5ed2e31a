"""Orders over stored caches: several shards, commits and versions, read from files."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import cachelib
from cachelib import dataset
from tests.reader.memory import MemoryCache
from tests.reader.stored import write_commit, write_frames

FIRST = [[3, 0, 5, 1], [0, 0], [], [7, 2, 30, 4]]
SECOND = [[1, 1, 1], [20]]
LENGTHS = [length for shard in FIRST + SECOND for length in shard]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("caches") / "numbers"
    write_commit(path, FIRST)
    write_commit(path, SECOND)
    return path


@pytest.fixture
def cache(path):
    return cachelib.open(path)


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, column in expected.items():
        if isinstance(column, cachelib.Ragged):
            assert found[name].offsets.tolist() == column.offsets.tolist()
            assert found[name].values.tolist() == column.values.tolist()
        else:
            assert found[name].tolist() == column.tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d,
        lambda d: d.shuffle(3),
        lambda d: d.shuffle(3).repeat(3),
        lambda d: d.windows(7),
        lambda d: d.windows(7, tail="short"),
        lambda d: d.windows(7, stride=3, tail="short").shuffle(3).repeat(2),
        lambda d: d.windows(75).repeat(),
    ],
)
def test_agrees_with_the_same_rows_in_memory(cache, make):
    stored, memory = make(cache.dataset()), make(dataset.of(MemoryCache(LENGTHS)))
    assert stored.size == memory.size
    size = 100 if stored.size is None else len(stored)
    rng = np.random.default_rng(0)
    for indices in (np.arange(size), rng.integers(0, size, 50), [size - 1, 0, 0], []):
        assert_same(stored.take(indices), memory.take(indices))


def test_windows_have_the_dtype_of_the_cache(cache):
    assert cache.windows(4).take([0])["tokens"].dtype == np.uint16
    assert cache.windows(4).take([])["tokens"].dtype == np.uint16
    assert cache.windows(4, tail="short").take([-1])["tokens"].values.dtype == np.uint16


def test_the_cache_has_the_methods_of_its_dataset(cache):
    windows = cache.windows(4, stride=2).shuffle(1)
    assert len(windows) == (sum(LENGTHS) - 4) // 2 + 1
    assert len(next(cache.loader(5, dp_rank=1, dp_world=5))["label"]) == 1
    shuffled = cache.shuffle(2).take(range(len(cache)))
    assert sorted(shuffled["label"].tolist()) == [10 * i for i in range(len(cache))]


def test_refuses_unknown_fields(cache):
    with pytest.raises(KeyError, match="words"):
        cache.windows(4, field="words")


def test_a_state_belongs_to_its_version(path):
    old = cachelib.open(path, version=0).windows(4).shuffle(1).loader(2)
    next(old)
    state = json.loads(json.dumps(old.state_dict()))
    assert len(json.dumps(state)) < 1024
    with pytest.raises(cachelib.StateMismatch, match="open it with version=0"):
        cachelib.open(path).windows(4).shuffle(1).loader(2, start=state)
    again = cachelib.open(path, version=state["version"]).windows(4).shuffle(1)
    resumed = again.loader(2, start=state)
    assert [b["tokens"].tolist() for b in resumed] == [b["tokens"].tolist() for b in old]


def test_prefetched_batches_are_those_read_one_by_one(cache):
    ds = cache.windows(5).shuffle(4).repeat(3)
    ahead = [b["tokens"].tolist() for b in ds.loader(4, prefetch=4)]
    assert ahead == [b["tokens"].tolist() for b in ds.loader(4, prefetch=0)]
    rows = [row for batch in ahead for row in batch]
    assert rows == ds.take(range(len(rows)))["tokens"].tolist()


def test_pickles(cache):
    ds = cache.windows(5).shuffle(4).repeat(3)
    assert_same(pickle.loads(pickle.dumps(ds)).take(range(9)), ds.take(range(9)))
    loader = ds.loader(4)
    next(loader)
    assert_same(next(pickle.loads(pickle.dumps(loader))), next(loader))


def test_threads_share_a_dataset(cache):
    ds = cache.windows(3).shuffle(4)
    expected = ds.take(range(len(ds)))
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: ds.take(range(len(ds))), range(16)):
            assert_same(found, expected)


def test_spawned_processes_see_the_same(cache):
    ds = cache.windows(5).shuffle(4).repeat()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert_same(pool.submit(ds.take, range(9)).result(60), ds.take(range(9)))


def test_windows_keep_the_shape_of_values(tmp_path):
    write_frames(tmp_path, lengths=[2, 0, 5, 4])
    cache = cachelib.open(tmp_path)
    windows = cache.windows(3, field="frames")
    assert windows.take([2, 0])["frames"].tolist() == [
        [[i, i + 0.25, i + 0.5] for i in range(start, start + 3)] for start in (6, 0)
    ]
    short = cache.windows(3, field="frames", tail="short").take([3, 0])["frames"]
    assert short.lengths.tolist() == [2, 3]
    assert short.values.shape == (5, 3)
    assert short.values[:, 0].tolist() == [9, 10, 0, 1, 2]
