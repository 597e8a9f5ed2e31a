"""The two-level shuffle: its order against the definition, and what it reads and holds."""

from __future__ import annotations

import itertools
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib import dataset
from cachelib.order.blocks import HELD, BlockOrder, Blocks
from cachelib.order.seeds import of_epoch
from tests.reader import randomness
from tests.reader.memory import FailingCache, MemoryCache, SimulatedCache
from tests.reader.stored import write_commit

sizes = st.builds(Blocks, st.integers(0, 3000), st.integers(1, 300), st.integers(1, 40))
seeds = st.integers(-(2**70), 2**70)


def everywhere(blocks):
    return np.arange(blocks.rows, dtype=np.int64)


@given(blocks=sizes, seed=seeds)
def test_every_row_stands_at_one_position(blocks, seed):
    order = BlockOrder(blocks, seed)
    rows = order.apply(everywhere(blocks))
    assert rows.dtype == np.int64
    assert np.array_equal(np.sort(rows), everywhere(blocks))
    assert np.array_equal(order.invert(rows), everywhere(blocks))


def test_every_small_size():
    for rows, block, window in itertools.product(range(26), range(1, 8), range(1, 5)):
        blocks = Blocks(rows, block, window)
        order = BlockOrder(blocks, 3)
        found = order.apply(everywhere(blocks))
        assert sorted(found) == list(range(rows)), blocks
        assert np.array_equal(order.invert(found), everywhere(blocks)), blocks


@given(blocks=sizes, seed=seeds)
def test_a_group_has_whole_blocks_side_by_side(blocks, seed):
    order = BlockOrder(blocks, seed)
    groups, places = order.locate(everywhere(blocks))
    assert np.all(np.diff(groups) >= 0)
    rows = order.apply(everywhere(blocks))
    for number in range(blocks.groups):
        mine = groups == number
        of_blocks = set(rows[mine] // blocks.block)
        assert 1 <= len(of_blocks) <= blocks.window
        assert not of_blocks & set(rows[~mine] // blocks.block)
        assert places[mine].tolist() == list(range(mine.sum()))
        assert order.group(number).order.size == mine.sum()


@given(blocks=sizes, seed=seeds, data=st.data())
def test_any_position_alone_is_what_it_is_among_all(blocks, seed, data):
    if not blocks.rows:
        return
    some = np.array(data.draw(st.lists(st.integers(0, blocks.rows - 1), max_size=20)), np.int64)
    order = BlockOrder(blocks, seed)
    assert np.array_equal(order.apply(some), order.apply(everywhere(blocks))[some])


def test_the_order_is_part_of_the_format():
    order = BlockOrder(Blocks(11, 2, 3), 7)
    assert order.apply(np.arange(11)).tolist() == [8, 1, 5, 0, 9, 4, 3, 10, 2, 7, 6]


def test_a_size_far_beyond_memory():
    blocks = Blocks(10**15 + 7, 32, 64)
    order = BlockOrder(blocks, 0)
    positions = np.array([0, 10**6, 5 * 10**14, 10**15 + 6])
    rows = order.apply(positions)
    assert rows.min() >= 0
    assert rows.max() < blocks.rows
    assert np.array_equal(order.invert(rows), positions)


def test_rows_mix_evenly_within_a_group():
    """Over seeds, each row of one group is equally likely at each place.

    The places of 8 blocks of 4 are 32; with N seeds a cell counts about N / 32, binomially. The
    limit is 5.5 standard deviations: 1024 cells stay within it all but once in 25,000 sets.
    """
    blocks, turns = Blocks(32, 4, 8), 4000
    counts = np.zeros((32, 32), np.int64)
    places = np.arange(32)
    for seed in range(turns):
        counts[places, BlockOrder(blocks, seed).apply(places)] += 1
    mean = turns / 32
    deviation = math.sqrt(turns * (1 / 32) * (31 / 32))
    assert np.abs(counts - mean).max() < 5.5 * deviation


def test_blocks_meet_evenly():
    """Two blocks share one of 4 groups of 2 as often as chance has it: 1 of 7 (5 deviations)."""
    blocks, turns = Blocks(24, 3, 2), 4000
    together = 0
    for seed in range(turns):
        groups = BlockOrder(blocks, seed).locate(BlockOrder(blocks, seed).invert(np.array([0, 3])))
        together += int(groups[0][0] == groups[0][1])
    assert abs(together - turns / 7) < 5 * math.sqrt(turns * (1 / 7) * (6 / 7))


def inner(order, number):
    """The order of a group's rows, as a permutation of their ranks in storage."""
    blocks = order.blocks
    whole = blocks.window * blocks.block
    rows = order.apply(np.arange(number * whole, (number + 1) * whole))
    return np.argsort(np.argsort(rows))


@pytest.mark.parametrize(("block", "window"), [(256, 64), (64, 100), (4096, 2), (1, 4097)])
@pytest.mark.parametrize("check", randomness.ONE_ORDER, ids=lambda check: check.__name__)
def test_rows_of_a_group_are_in_random_order(check, block, window):
    order = BlockOrder(Blocks(3 * block * window, block, window), 1)
    check(inner(order, 1), block * window)


def test_orders_of_groups_passes_and_nearby_seeds_are_unrelated():
    blocks = Blocks(3 * 64 * 128, 64, 128)
    passes = [of_epoch(seed, epoch) for seed in (7, 8) for epoch in (0, 1)]
    found = [inner(BlockOrder(blocks, seed), number) for seed in passes for number in (0, 1)]
    for one, other in itertools.combinations(found, 2):
        randomness.unrelated(one, other, 64 * 128)


def test_blocks_are_in_random_order():
    """Of blocks of one row that are not mixed, the order of rows is that of blocks."""
    blocks = Blocks(2100, 1, 1)
    first, second = (BlockOrder(blocks, of_epoch(3, e)).apply(everywhere(blocks)) for e in (0, 1))
    for check in randomness.ONE_ORDER:
        check(first, 2100)
    randomness.unrelated(first, second, 2100)


def labels(ds, indices=None):
    indices = range(len(ds)) if indices is None else indices
    return [int(i) // 10 for i in ds.take(indices)["label"]]


@pytest.fixture
def rows():
    return dataset.of(MemoryCache([3, 0, 5, 1, 0, 7, 2] * 5))


def test_shuffles_rows_and_their_ragged_values(rows):
    ds = rows.shuffle(4, block=4, window=2)
    order = labels(ds)
    assert sorted(order) == list(range(35))
    assert order == ds.node.order(np.arange(35)).tolist()
    columns = ds.take(range(35))
    plain = rows.take(order)
    assert [r.tolist() for r in columns["tokens"]] == [r.tolist() for r in plain["tokens"]]
    assert len(ds.take([])["label"]) == 0
    assert ds.take([3, 3, -1])["label"].tolist() == [order[i] * 10 for i in (3, 3, -1)]


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 5), st.sampled_from(["drop", "short"]))
def test_shuffles_windows(length, block, window, tail):
    windows = dataset.of(MemoryCache([3, 0, 5, 1, 0, 7, 2])).windows(length, tail=tail)
    ds = windows.shuffle(1, block=block, window=window)
    found = sorted(tuple(row) for row in ds.take(range(len(ds)))["tokens"])
    assert found == sorted(tuple(row) for row in windows.take(range(len(ds)))["tokens"])


def test_an_empty_dataset():
    ds = dataset.of(MemoryCache([])).shuffle(0, block=4)
    assert len(ds) == 0
    assert len(ds.take([])["label"]) == 0
    assert dataset.of(MemoryCache([])).blocks(4).reads(64) == 0


def test_passes_are_whole_and_differ(rows):
    once = rows.shuffle(7, block=4, window=2)
    ds = once.repeat(4)
    passes = [labels(ds, range(e * 35, e * 35 + 35)) for e in range(4)]
    assert passes[0] == labels(once)
    assert all(sorted(p) == list(range(35)) for p in passes)
    assert len({tuple(p) for p in passes}) == 4


def test_each_group_is_read_once():
    cache = MemoryCache([1] * 64)
    ds = dataset.of(cache).shuffle(0, block=4, window=4).repeat()
    with ds.loader(4, prefetch=3) as loader:
        for _ in range(2 * 16):
            next(loader)
    assert cache.reads in (8, 9)  # one may be read ahead


def test_batches_may_be_changed(rows):
    ds = rows.shuffle(0, block=4, window=2)
    before = labels(ds, [0, 1])
    ds.take([0, 1])["label"][:] = 0
    assert labels(ds, [0, 1]) == before


def test_a_read_that_failed_is_tried_again():
    cache = FailingCache(20, bad={0})
    ds = dataset.of(cache).shuffle(0, block=5, window=4)
    with pytest.raises(OSError, match="row 0"):
        ds.take([0])
    cache.bad = set()
    assert len(ds.take([0])["label"]) == 1


def test_threads_get_the_same(rows):
    ds = rows.shuffle(0, block=2, window=2)
    alone = labels(ds)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: labels(ds, [i])[0], list(range(35)) * 4))
    assert found == alone * 4


def test_pickled_it_holds_nothing(rows):
    ds = rows.shuffle(0, block=4, window=2)
    order = labels(ds)
    again = pickle.loads(pickle.dumps(ds))
    assert labels(again) == order
    assert again.node == again.node


def test_the_plan_says_what_is_held_and_read():
    blocks = dataset.of(SimulatedCache(10_000)).blocks(100, 10)
    assert blocks.block_bytes == 800
    assert blocks.working_set == HELD * 10 * 800
    assert blocks.reads(50) == 0.5
    assert dataset.of(SimulatedCache(900)).blocks(100, 10).working_set == 7200


def test_refuses_what_is_above_the_budget():
    rows = dataset.of(SimulatedCache(10_000))
    with pytest.raises(
        ValueError,
        match=r"2 groups of window=10 blocks of block=100 rows of 8 bytes: 16,000 bytes, "
        r"more than budget=15,999; window=9 would fit",
    ):
        rows.shuffle(0, block=100, window=10, budget=15_999)
    with pytest.raises(ValueError, match="not even window=1 fits: choose smaller blocks"):
        rows.shuffle(0, block=100, window=10, budget=1599)
    rows.shuffle(0, block=100, window=10, budget=16_000)


@pytest.mark.parametrize("options", [{"window": 10}, {"budget": 1 << 30}])
def test_what_is_for_blocks_needs_blocks(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"{name} needs block="):
        dataset.of(MemoryCache([100])).windows(10).shuffle(0, **options)


@pytest.mark.parametrize("rows", [0, -1])
def test_a_batch_has_rows(rows):
    with pytest.raises(ValueError, match=f"batch_size={rows}"):
        Blocks(100, 10, 2, 1.0).reads(rows)


@pytest.mark.parametrize("documents", ["no", 1, None])
def test_documents_are_told_apart_or_not(documents):
    with pytest.raises(TypeError, match="documents must be True or False"):
        dataset.of(MemoryCache([100])).windows(10, documents=documents)


def test_the_state_tells_block_and_window(rows):
    description = rows.shuffle(3, block=4, window=2).describe()
    assert description["kind"] == "blocks"
    assert (description["block"], description["window"], description["seed"]) == (4, 2, 3)
    wide = rows.shuffle(3, block=4, window=2, budget=10**9)
    assert wide.describe() == description


@pytest.mark.parametrize("make", [lambda d: d.shuffle(0), lambda d: d.repeat(2)])
def test_blocks_need_rows_side_by_side(rows, make):
    with pytest.raises(ValueError, match="lie side by side in storage"):
        make(rows).shuffle(0, block=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"block": 0}, "block has 1 or more rows"), ({"block": 2, "window": 0}, "1 or more blocks")],
)
def test_refuses_values_that_cannot_be(rows, options, message):
    with pytest.raises(ValueError, match=message):
        rows.shuffle(0, **options)
    with pytest.raises(TypeError, match="block must be an integer"):
        rows.shuffle(0, block=2.0)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"targets": "aligned"}])
def test_the_plan_knows_the_bytes_of_rows(options):
    ds = dataset.of(MemoryCache([40])).windows(4, **options)
    columns = ds.take(range(8))
    assert ds.blocks(8).block_bytes == sum(column.nbytes for column in columns.values())


def test_the_plan_knows_the_bytes_of_a_stored_cache(tmp_path):
    write_commit(tmp_path, [[3, 1], [], [8, 0, 4]])
    cache = cachelib.open(tmp_path)
    assert cache.nbytes(["tokens"]) == 16 * 2
    assert cache.nbytes(["label"]) == 5 * 8
    assert cache.nbytes() == 16 * 2 + 5 * 8
    ds = cache.shuffle(0, block=2, window=2)
    assert sorted(ds.take(range(5))["label"]) == [0, 10, 20, 30, 40]
