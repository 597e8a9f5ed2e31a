"""What is told of each row by arithmetic: its component, its number below all orders, its pass."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib import dataset
from tests.reader.memory import MemoryCache, SimulatedCache
from tests.reader.stored import write_commit

CACHE = MemoryCache([3, 5, 7, 9] * 20)
ROWS = dataset.of(CACHE)
WINDOWS = ROWS.windows(4)

ORDERS = {
    "stored": lambda base: base,
    "shuffle": lambda base: base.shuffle(3),
    "blocks": lambda base: base.shuffle(3, block=7, window=3),
    "slice": lambda base: base.shuffle(3).slice(5, 60),
    "slice of storage": lambda base: base.slice(5, 60).shuffle(3, block=4, window=2),
    "repeat": lambda base: base.shuffle(3).repeat(),
    "shuffled repeat": lambda base: base.repeat(3).shuffle(3),
    "then": lambda base: cachelib.then([(30, base.shuffle(1)), (None, base.shuffle(2).repeat())]),
}


def flat(column):
    return column.values if isinstance(column, cachelib.Ragged) else column.ravel()


@pytest.mark.parametrize("base", [ROWS, WINDOWS], ids=["rows", "windows"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_number_is_that_of_the_row_below_all_orders(base, order):
    ds = order(base)
    indices = np.arange(200 if ds.size is None else ds.size)[::-1]
    reads = CACHE.reads
    traced = ds.trace(indices)
    assert CACHE.reads == reads
    assert [column.dtype for column in traced.values()] == [np.int32, np.int64, np.int64]
    np.testing.assert_array_equal(
        flat(ds.take(indices)["tokens"]), flat(base.take(traced["row"])["tokens"])
    )
    assert set(traced["component"].tolist()) == {-1}
    assert ds.components == ()


def test_passes_are_numbered_through():
    ds = ROWS.shuffle(3).repeat(2)
    assert ds.trace([0, 79, 80, 159])["epoch"].tolist() == [0, 0, 1, 1]
    assert ds.repeat(2).trace([0, 80, 160, 319])["epoch"].tolist() == [0, 1, 2, 3]
    assert ds.shuffle(1).trace(range(160))["epoch"].tolist() != [0] * 160
    assert np.bincount(ds.shuffle(1).trace(range(160))["epoch"]).tolist() == [80, 80]
    assert ROWS.repeat().trace([80 * 10**12])["epoch"].tolist() == [10**12]
    assert ROWS.trace([])["row"].dtype == np.int64


def mixed(**options):
    parts = {"web": WINDOWS.shuffle(1).repeat(), "code": WINDOWS.slice(0, 20).shuffle(2).repeat()}
    return cachelib.mix(parts, {"web": 3, "code": 1}, seed=5, block=8, **options), parts


@given(st.lists(st.integers(0, 2000), max_size=60))
def test_a_mixture_tells_the_component_and_its_own_pass(positions):
    ds, parts = mixed()
    traced = ds.trace(positions)
    names = [ds.components[component] for component in traced["component"]]
    assert ds.components == ("code", "web")
    assert names == [ds.origins(p)[0].through[0] for p in positions]
    found = ds.take(positions)["tokens"] if positions else np.empty((0, 4))
    np.testing.assert_array_equal(found, WINDOWS.take(traced["row"])["tokens"])
    for name, row, epoch in zip(names, traced["row"], traced["epoch"], strict=True):
        size = 20 if name == "code" else 120
        inside = parts[name].trace(range(epoch * size, (epoch + 1) * size))
        assert row in inside["row"]
        assert set(inside["epoch"].tolist()) == {epoch}


def test_stages_share_the_numbers_of_components():
    first, _ = mixed()
    second = cachelib.mix(
        {"books": WINDOWS, "web": WINDOWS}, {"books": 1, "web": 1}, seed=1, exhausted="stop"
    )
    ds = cachelib.then([(16, first), (10, second), (5, WINDOWS)]).repeat(2)
    assert ds.components == ("books", "code", "web")
    component = ds.trace(range(31))["component"]
    told = [[n for n in o[0].through if "stage" not in n] for o in map(ds.origins, range(31))]
    assert [[ds.components[c]] if c >= 0 else [] for c in component] == told
    outer = cachelib.mix(
        {"mixed": first, "books": WINDOWS.repeat()}, {"mixed": 1, "books": 1}, seed=1
    )
    assert outer.components == ("books", "mixed")
    assert set(outer.trace(range(100))["component"].tolist()) == {0, 1}


def test_a_pack_has_one_number_in_all_passes(tmp_path):
    write_commit(tmp_path, [[3, 5, 7, 9] * 20, [2, 4] * 10])
    packs = cachelib.open(tmp_path).pack(32, seed=4)
    size = len(packs)
    passes = packs.repeat()
    held: dict[int, list[int]] = {}
    for epoch in range(3):
        indices = range(epoch * size, (epoch + 1) * size)
        numbers = passes.trace(indices)["row"]
        assert sorted(numbers.tolist()) == list(range(size))
        for number, row in zip(numbers.tolist(), passes.take(indices)["tokens"], strict=True):
            assert held.setdefault(number, row.tolist()) == row.tolist()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_adds_what_is_asked_for(prefetch):
    ds, _ = mixed()
    loader = ds.loader(8, dp_rank=1, dp_world=2, tell=("component", "row"), prefetch=prefetch)
    batch = next(loader)
    traced = ds.trace(range(4, 8))
    assert list(batch) == ["tokens", "component", "row"]
    for name in ("component", "row"):
        np.testing.assert_array_equal(batch[name], traced[name])
    again = pickle.loads(pickle.dumps(loader))
    np.testing.assert_array_equal(next(again)["row"], ds.trace(range(12, 16))["row"])
    padded = list(WINDOWS.slice(0, 3).loader(2, last="pad", tell=["row"]))
    assert [b["row"].tolist() for b in padded] == [[0, 1], [2, 2]]
    assert [b["weight"].tolist() for b in padded] == [[1, 1], [1, 0]]


def test_refuses_what_it_cannot_tell():
    for tell in ("row", ["source"]):
        with pytest.raises(ValueError, match="tell must be some of"):
            ROWS.loader(2, tell=tell)

    class Rows(SimulatedCache):
        def take(self, indices, fields=None):
            return {"row": indices}

    with pytest.raises(ValueError, match="the dataset has a column 'row' already"):
        next(dataset.of(Rows(9)).loader(2, tell=["row"]))
    with pytest.raises(IndexError):
        ROWS.trace([80])
