"""concat(): the rows of several datasets as those of one."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib import dataset
from cachelib.errors import StateMismatch
from cachelib.nodes.base import Adjacent, Stream, can
from cachelib.nodes.stored import Stored
from cachelib.ragged import Ragged
from tests.reader.documents import DocumentCache
from tests.reader.memory import MemoryCache, SimulatedCache
from tests.reader.stored import write_commit

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=20)


def joined(parts: list[list[int]]):
    """The concat of documents of lengths, and the values of each of its rows."""
    caches = {f"part {i}": dataset.of(DocumentCache(lengths)) for i, lengths in enumerate(parts)}
    rows = []
    for lengths in parts:
        rows += np.split(np.arange(sum(lengths), dtype=np.uint32), np.cumsum(lengths)[:-1])
    return cachelib.concat(caches), rows


@given(st.lists(LENGTHS, min_size=1, max_size=4), st.data())
def test_rows_come_one_part_after_another(parts, data):
    ds, rows = joined(parts)
    assert len(ds) == len(rows)
    asked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20))
    found = ds.take(asked)["tokens"]
    expected = Ragged.from_rows([rows[i] for i in asked], np.uint32)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.offsets, expected.offsets)


@given(st.lists(LENGTHS, min_size=1, max_size=4), st.integers(1, 30), st.data())
def test_the_stream_runs_over_all_parts(parts, length, data):
    ds, rows = joined(parts)
    values = np.concatenate(rows)
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    assert isinstance(ds.node, Stream)
    assert can(ds.node, Stream)
    assert can(ds.node, Adjacent)
    assert ds.node.elements("tokens") == len(values)
    windows = ds.windows(length, tail="short").take(range(-(-len(values) // length)))["tokens"]
    np.testing.assert_array_equal(windows.values, values)
    assert set(windows.lengths[:-1].tolist()) <= {length}
    starts = data.draw(st.lists(st.integers(0, len(values)), max_size=9))
    starts = np.array([s for s in starts if s + length <= len(values)], np.int64)
    read = ds.node.read_elements("tokens", starts, length)
    np.testing.assert_array_equal(read, values[starts[:, None] + np.arange(length)])
    places = np.arange(len(values))[:: data.draw(st.integers(1, 5))]
    np.testing.assert_array_equal(ds.node.rows_at("tokens", places), owners[places])


@given(st.lists(LENGTHS, min_size=1, max_size=3))
def test_documents_of_all_parts_are_packed_together(parts):
    ds, rows = joined(parts)
    packs = ds.pack(8, seed=1)
    found = packs.take(range(len(packs)))
    kept = found["tokens"][found["segment_ids"] > 0]
    np.testing.assert_array_equal(np.sort(kept), np.sort(np.concatenate(rows)))
    np.testing.assert_array_equal(found["mask"] == 1, found["segment_ids"] > 0)
    assert packs.packing.accounts.documents == len(rows)


def test_windows_of_caches_on_disk(tmp_path):
    for name, lengths in (("a", [3, 0, 5, 9]), ("b", [4, 4])):
        write_commit(tmp_path / name, [lengths[:2], lengths[2:]])
    parts = {name: cachelib.open(tmp_path / name) for name in ("b", "a")}
    ds = cachelib.concat(parts).windows(5, documents=True)
    values = np.concatenate([np.arange(8), np.arange(17)])
    assert ds.take(range(5))["tokens"].ravel().tolist() == values.tolist()
    assert [(o.row, o.through) for o in ds.origins(1)] == [(1, ("b",)), (0, ("a",))]
    assert ds.take([1])["segment_ids"].tolist() == [[1, 1, 1, 2, 2]]
    assert ds.version == {"a": 0, "b": 0}
    again = pickle.loads(pickle.dumps(ds.shuffle(1)))
    np.testing.assert_array_equal(
        again.take(range(5))["tokens"], ds.shuffle(1).take(range(5))["tokens"]
    )


def test_parts_have_one_tokenizer(tmp_path):
    for name in "ab":
        write_commit(tmp_path / name, [[4]], tokenizer=name)
    parts = {name: cachelib.open(tmp_path / name) for name in "ab"}
    with pytest.raises(ValueError, match="different tokenizers"):
        cachelib.concat(parts)


def test_parts_in_other_orders_are_no_stream():
    rows = dataset.of(MemoryCache([4] * 6))
    ds = cachelib.concat({"b": rows.shuffle(0), "a": rows})
    assert ds.take(range(6))["label"].tolist() == rows.shuffle(0).take(range(6))["label"].tolist()
    with pytest.raises(ValueError, match="not over its concat"):
        ds.windows(4)
    with pytest.raises(ValueError, match="not of its concat"):
        ds.pack(4)
    with pytest.raises(ValueError, match="do not: call shuffle"):
        ds.shuffle(0, block=2)


def test_what_lies_side_by_side_can_be_shuffled_by_blocks():
    windows = {
        name: dataset.of(MemoryCache([4] * 6)).windows(n) for name, n in (("a", 4), ("b", 4))
    }
    ds = cachelib.concat({**windows, "c": windows["a"].slice(1, 3)})
    assert ds.blocks(2).row_bytes == 16
    found = ds.shuffle(3, block=2, window=2).take(range(14))["tokens"][:, 0]
    assert sorted(found.tolist()) == sorted([*range(0, 24, 4)] * 2 + [4, 8])


def test_origins_and_traces_name_the_part():
    rows = dataset.of(MemoryCache([4] * 6))
    ds = cachelib.concat({"b": rows.slice(0, 2), "a": rows.shuffle(0)})
    assert ds.components == ("b", "a")
    traced = ds.trace([0, 1, 2, 3])
    assert traced["component"].tolist() == [0, 0, 1, 1]
    assert traced["row"].tolist() == [0, 1, *rows.shuffle(0).trace([0, 1])["row"]]
    assert ds.origins(1)[0].through == ("b",)
    assert ds.origins(2)[0].through == ("a",)


def test_passes_have_orders_of_their_own():
    rows = dataset.of(MemoryCache([4] * 60))
    ds = cachelib.concat({"b": rows.shuffle(0), "a": rows}).repeat(2)
    one, two = (ds.take(range(e * 120, e * 120 + 60))["label"].tolist() for e in range(2))
    assert one != two
    assert sorted(one) == sorted(two)


def test_a_mixture_counts_tokens_of_a_concat():
    parts = {"long": joined([[3, 4], [5]])[0].repeat(), "short": joined([[2]])[0].repeat()}
    mixed = cachelib.mix(parts, {"long": 2, "short": 1}, by="tokens", seed=0)
    assert mixed.counts(51_200) == {"long": 25_600, "short": 25_600}


def test_the_order_of_the_parts_is_part_of_the_order():
    a, b = (dataset.of(MemoryCache([4] * n)) for n in (5, 6))
    state = json.loads(json.dumps(cachelib.concat({"a": a, "b": b}).loader(2).state_dict()))
    assert cachelib.concat({"a": a, "b": b}).loader(2, start=state).samples == 0
    with pytest.raises(StateMismatch, match=r"concat\.names"):
        cachelib.concat({"b": b, "a": a}).loader(2, start=state)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "at least one"),
        ({"a": dataset.of(SimulatedCache(4)).repeat()}, "part 'a' never ends"),
        ({"a": dataset.of(SimulatedCache(0))}, "part 'a' is empty"),
        (
            {"a": dataset.of(SimulatedCache(4)), "b": dataset.of(MemoryCache([4]))},
            "part 'a' and part 'b' do not go together: column 'tokens' is missing in the first",
        ),
        ({name: dataset.of(SimulatedCache(2**62)) for name in "ab"}, "more than"),
    ],
)
def test_refuses(parts, message):
    with pytest.raises(ValueError, match=message):
        cachelib.concat(parts)


def test_refuses_other_types():
    wrong: list[Any] = [[], {"a": Stored(SimulatedCache(3))}, {1: dataset.of(SimulatedCache(3))}]
    for parts in wrong:
        with pytest.raises(TypeError):
            cachelib.concat(parts)
