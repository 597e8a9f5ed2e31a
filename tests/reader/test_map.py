"""map(): rows changed by functions."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
import types
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib import dataset
from cachelib.errors import StateMismatch
from tests.reader import functions_of_rows as functions
from tests.reader.memory import MemoryCache, SimulatedCache

ROWS = dataset.of(MemoryCache([3, 0, 12] * 20))
NUMBERS = dataset.of(SimulatedCache(50))


def drawn(ds, indices):
    return ds.take(indices)["drawn"].tolist()


def test_one_row_in_one_row_out():
    ds = ROWS.map(functions.doubled)
    assert len(ds) == 60
    found = ds.take([5, 3, 5])
    assert found["label"].tolist() == [100, 60, 100]
    assert found["tokens"].lengths.tolist() == [12, 3, 12]
    assert found["tokens"].values.dtype == np.uint32
    assert ds.take([])["label"].dtype == np.int64
    assert ds.origins(4) == ROWS.origins(4)
    assert ds[2]["label"] == 40


def test_ragged_columns_stay_so_unless_told():
    padded = ROWS.map(functions.padded, ragged=[]).take([0, 1, 2])
    assert padded["tokens"].shape == (3, 10)
    assert padded["count"].tolist() == [3, 0, 10]
    longer = ROWS.map(functions.lengthened, ragged=["tokens", "mask"]).take([0, 1, 2])
    assert longer["mask"].lengths.tolist() == [6, 0, 24]
    with pytest.raises(ValueError, match=r"'mask' of row 2 in shape \(24,\), expected \(6,\)"):
        ROWS.map(functions.lengthened).take([2])
    with pytest.raises(ValueError, match=r"ragged names 'other', which .*lengthened does not give"):
        ROWS.map(functions.lengthened, ragged=["other"])
    with pytest.raises(ValueError, match=r"'count' is ragged, but .* gives one value"):
        ROWS.map(functions.padded, ragged=["count"])


def test_the_key_is_that_of_the_row_in_its_pass():
    ds = NUMBERS.map(functions.drawn, seed=1)
    once = drawn(ds, range(50))
    assert len(set(once)) == 50
    assert drawn(ds, [7, 7]) == [once[7]] * 2
    assert drawn(NUMBERS.map(functions.drawn, seed=2), range(50)) != once
    epochs = ds.repeat(2)
    assert drawn(epochs, range(50)) == once
    assert not set(drawn(epochs, range(50, 100))) & set(once)


@pytest.mark.parametrize(
    "order",
    [
        lambda d: d.shuffle(3),
        lambda d: d.repeat(3),
        lambda d: d.shuffle(3).repeat(3),
        lambda d: d.repeat(3).shuffle(1),
        lambda d: d.slice(10, 40).shuffle(1),
    ],
)
def test_a_map_under_an_order_gives_what_a_map_over_it_gives(order):
    below = order(NUMBERS.map(functions.drawn, seed=1))
    above = order(NUMBERS).map(functions.drawn, seed=1)
    for name in ("label", "drawn"):
        np.testing.assert_array_equal(
            below.take(range(len(below)))[name], above.take(range(len(above)))[name]
        )


def test_no_row_is_made_but_those_asked_for():
    cache = MemoryCache([3] * 60)
    ds = dataset.of(cache).map(functions.doubled).shuffle(0).repeat()
    reads = cache.reads
    for step in range(5):
        ds.take([60 * step + 1])
    assert cache.reads == reads + 5


def test_in_mixtures_loaders_and_other_processes():
    mapped = NUMBERS.map(functions.drawn)
    mixed = cachelib.mix(
        {"a": mapped.shuffle(0).repeat(), "b": mapped.repeat()}, {"a": 1, "b": 1}, seed=0
    )
    batch = next(mixed.loader(16, tell=["row"]))
    np.testing.assert_array_equal(batch["row"], batch["label"])
    again = pickle.loads(pickle.dumps(mixed))
    np.testing.assert_array_equal(next(again.loader(16))["drawn"], batch["drawn"])
    over = cachelib.mix({"a": NUMBERS.repeat(), "b": NUMBERS.repeat()}, {"a": 1, "b": 1}, seed=0)
    found = over.map(functions.drawn).take(range(100))
    assert len(set(found["drawn"].tolist())) == 100


def test_windows_are_mapped_after_they_are_shuffled_by_blocks():
    windows = ROWS.windows(4)
    ds = windows.shuffle(0, block=4, window=2).map(functions.padded)
    assert ds.take([0, 1])["tokens"].shape == (2, 10)
    with pytest.raises(ValueError, match="call shuffle"):
        windows.map(functions.padded).shuffle(0, block=4)
    with pytest.raises(ValueError, match="not over its map"):
        ROWS.map(functions.doubled).windows(4)


def test_the_order_tells_the_function():
    ds = NUMBERS.map(functions.drawn, seed=3)
    told = ds.describe()
    assert (told["kind"], told["seed"], len(told["source"])) == ("map", 3, 32)
    state = ds.loader(5).state_dict()
    with pytest.raises(StateMismatch, match=r"map\.source"):
        NUMBERS.map(functions.doubled, seed=3).loader(5, start=state)
    named = NUMBERS.map(functions.drawn, seed=3, version="1")
    assert named.describe()["version"] == "1"
    assert "source" not in named.describe()


def test_rows_that_differ_from_the_first_are_named():
    ds = NUMBERS_OF_TENS.map(functions.unsteady)
    assert ds.take(range(5))["value"].tolist() == list(range(5))
    for row, message in (
        (5, r"gave columns \['other'\] for row 5, but \['value'\] for the first one"),
        (6, "'value' of row 6 as float64, but of the first one as int64"),
        (7, r"'value' of row 7 in shape \(2,\), expected \(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            ds.take([1, row])
    with pytest.raises(RuntimeError) as failed:
        ds.take([8])
    assert failed.value.__notes__ == ["in tests.reader.functions_of_rows.unsteady, for row 8"]


NUMBERS_OF_TENS = dataset.of(MemoryCache([1] * 20))


def test_functions_without_a_source_need_a_version(monkeypatch):
    module = types.ModuleType("made_up")
    exec("def halved(row, key):\n    return {'half': row['label'] / 2}", vars(module))
    monkeypatch.setitem(sys.modules, "made_up", module)
    with pytest.raises(TypeError, match="the source of halved is not known: say version='1'"):
        NUMBERS.map(module.halved)
    assert NUMBERS.map(module.halved, version="1").take([3])["half"].tolist() == [1.5]


def test_the_digest_is_that_of_the_source(tmp_path, monkeypatch):
    found = []
    for number, body in enumerate(("row", "row", "{**row}")):
        (tmp_path / f"some{number}.py").write_text(f"def same(row, key):\n    return {body}\n")
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module(f"some{number}")
        found.append(NUMBERS.map(module.same).describe()["source"])
    assert found[0] == found[1] != found[2]


def test_refuses():
    with pytest.raises(TypeError, match="'text' of row 0 as <U1: give numbers"):
        NUMBERS.map(functions.text)
    with pytest.raises(TypeError, match="must give columns by name, gave None for row 0"):
        NUMBERS.map(functions.nothing)
    with pytest.raises(ValueError, match="an empty dataset cannot be mapped"):
        dataset.of(SimulatedCache(0)).map(functions.drawn)
    with pytest.raises(TypeError, match="seed must be an integer"):
        NUMBERS.map(functions.drawn, seed="a")  # type: ignore[arg-type]
    wrong: list[Any] = [
        lambda row, key: row,
        functions.Scaler().scaled,
        functools.partial(functions.drawn, key=3),
        len,
    ]
    for function in wrong:
        with pytest.raises(TypeError, match="not a function that a module defines"):
            NUMBERS.map(function)
    wrong_version: Any = 1
    with pytest.raises(TypeError, match="version must be a string"):
        NUMBERS.map(functions.drawn, version=wrong_version)
