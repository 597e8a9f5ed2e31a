"""Datasets over a cache in memory, against what plain Python lists would give."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib import concat, dataset, mix
from cachelib.ragged import Ragged
from tests.reader.functions_of_rows import doubled
from tests.reader.memory import MemoryCache, SimulatedCache

LENGTHS = [3, 0, 5, 1, 0, 7, 2]


@pytest.fixture
def rows():
    return dataset.of(MemoryCache(LENGTHS))


def labels(ds, indices=None):
    indices = range(len(ds)) if indices is None else indices
    return [int(i) // 10 for i in ds.take(indices)["label"]]


def tokens(ds, indices=None):
    column = ds.take(range(len(ds)) if indices is None else indices)["tokens"]
    return [row.tolist() for row in column]


def test_rows_come_in_the_order_asked(rows):
    assert len(rows) == 7
    assert labels(rows, [2, 0, 2, -1]) == [2, 0, 2, 6]
    assert tokens(rows, [2, 1, 2]) == [[3, 4, 5, 6, 7], [], [3, 4, 5, 6, 7]]
    assert labels(rows, []) == []


def test_fields_can_be_chosen():
    rows = dataset.of(MemoryCache(LENGTHS), fields=["label"])
    assert list(rows.take([0])) == ["label"]


def test_items_are_rows(rows):
    assert rows[-2]["tokens"].tolist() == [9, 10, 11, 12, 13, 14, 15]
    assert rows[np.int16(2)]["label"] == 20
    assert len(list(rows)) == 7
    with pytest.raises(IndexError, match="index 7 is outside the 7 rows"):
        rows[7]


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.windows(3), lambda d: d.shuffle(0)])
def test_refuses_indices_outside(rows, make):
    ds = make(rows)
    for bad in (len(ds), -len(ds) - 1):
        with pytest.raises(IndexError, match=f"index {bad} is outside the {len(ds)} rows"):
            ds.take([0, bad])
    with pytest.raises(TypeError):
        ds.take([0.0])


@given(
    lengths=st.lists(st.integers(0, 9), max_size=12),
    length=st.integers(1, 8),
    data=st.data(),
    tail=st.sampled_from(["drop", "short"]),
)
def test_windows_are_slices_of_the_stream(lengths, length, data, tail):
    stride = data.draw(st.integers(1, length))
    stream = list(range(sum(lengths)))
    ds = dataset.of(MemoryCache(lengths)).windows(length, stride=stride, tail=tail)
    indices = data.draw(st.lists(st.integers(0, len(ds) - 1))) if len(ds) else []
    column = ds.take(indices)["tokens"]
    assert isinstance(column, Ragged if tail == "short" else np.ndarray)
    assert [row.tolist() for row in column] == [
        stream[i * stride : i * stride + length] for i in indices
    ]
    values = column.values if isinstance(column, Ragged) else column
    assert values.dtype == np.uint32


def test_windows_cross_rows_and_lose_only_the_tail(rows):
    assert tokens(rows.windows(4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert tokens(rows.windows(4, tail="short"))[-1] == [16, 17]
    assert rows.windows(4).take([])["tokens"].shape == (0, 4)
    assert rows.windows(4).node.grid.dropped == 2


def test_a_stream_shorter_than_a_window(rows):
    assert len(rows.windows(19)) == 0
    assert tokens(rows.windows(19, tail="short")) == [list(range(18))]


@pytest.mark.parametrize(
    "make",
    [lambda d: d.shuffle(0), lambda d: d.windows(4), lambda d: d.repeat(2)],
    ids=["shuffle", "windows", "repeat"],
)
def test_windows_need_stored_order(rows, make):
    with pytest.raises(ValueError, match=r"call windows\(\) first"):
        make(rows).windows(2)


@pytest.mark.parametrize(
    "options", [{"length": 2.0}, {"length": True}, {"length": 2, "stride": 1.5}]
)
def test_windows_refuse_what_is_no_integer(rows, options):
    with pytest.raises(TypeError, match="must be an integer"):
        rows.windows(**options)


def test_shuffle_keeps_every_row_once(rows):
    for ds in (rows, rows.windows(2), rows.shuffle(3)):
        order = [repr(row) for row in ds.shuffle(1)]
        assert sorted(order) == sorted(repr(row) for row in ds)
    windows = rows.windows(1)
    assert tokens(windows.shuffle(1)) != tokens(windows)
    assert tokens(windows.shuffle(1)) != tokens(windows.shuffle(2))
    assert tokens(windows.shuffle(1)) == tokens(windows.shuffle(np.uint8(1)))


def test_shuffle_keeps_ragged_rows_whole(rows):
    shuffled = rows.shuffle(5)
    assert tokens(shuffled) == tokens(rows, labels(shuffled))


def test_shuffled_order_is_part_of_the_format():
    assert labels(dataset.of(MemoryCache(LENGTHS)).shuffle(7)) == [2, 3, 1, 5, 4, 0, 6]


def test_an_empty_cache():
    rows = dataset.of(MemoryCache([]))
    assert len(rows) == len(rows.windows(4)) == len(rows.shuffle(0)) == 0
    assert len(rows.shuffle(0).take([])["label"]) == 0
    with pytest.raises(ValueError, match="empty dataset cannot be repeated"):
        rows.repeat()


@pytest.mark.parametrize(
    "use",
    [
        lambda d: d.repeat(),
        lambda d: d.shuffle(0).repeat(3),
        lambda d: d.loader(1, last="short"),
        lambda d: d.shuffle(0, block=2).loader(8),
        lambda d: d.evaluate(1),
        lambda d: d.map(doubled),
        lambda d: mix({"web": d}, {"web": 1}, seed=0),
    ],
)
def test_windows_longer_than_all_tokens_are_told(rows, use):
    with pytest.raises(ValueError, match="the window length 19 exceeds the 18 values of 'tokens'"):
        use(rows.windows(19))
    with pytest.raises(ValueError) as caught:
        use(rows.windows(18).slice(0, 0))
    assert "exceeds" not in str(caught.value)


def test_passes_are_whole_and_differ():
    once = dataset.of(MemoryCache([1] * 50)).shuffle(7)
    ds = once.repeat(4)
    assert len(ds) == 200
    passes = [labels(ds, range(e * 50, e * 50 + 50)) for e in range(4)]
    assert passes[0] == labels(once)
    assert all(sorted(p) == list(range(50)) for p in passes)
    assert len({tuple(p) for p in passes}) == 4
    assert passes[1] != labels(dataset.of(MemoryCache([1] * 50)).shuffle(8))


def test_requests_across_passes_keep_their_order():
    for ds in (
        dataset.of(MemoryCache(LENGTHS)).shuffle(7).repeat(5),
        dataset.of(MemoryCache(LENGTHS)).shuffle(7).repeat(),
    ):
        indices = [34, 0, 13, 14, 0, 20, 7, 6]
        together = ds.take(indices)
        alone = [ds[i] for i in indices]
        assert together["label"].tolist() == [row["label"] for row in alone]
        assert [r.tolist() for r in together["tokens"]] == [r["tokens"].tolist() for r in alone]


def test_a_plain_repeat_starts_over(rows):
    assert labels(rows.repeat(2)) == [*range(7), *range(7)]


def test_endless():
    ds = dataset.of(MemoryCache(LENGTHS)).shuffle(7).repeat()
    assert ds.size is None
    assert len(ds.take([2**63 - 1, 0])["label"]) == 2
    with pytest.raises(TypeError, match="endless"):
        len(ds)
    with pytest.raises(IndexError, match="endless"):
        ds.take([-1])
    with pytest.raises(ValueError, match=r"call shuffle\(\) first"):
        ds.shuffle(0)
    with pytest.raises(ValueError, match="endless dataset cannot be repeated"):
        ds.repeat(2)


def test_no_two_passes_of_nested_repeats_share_an_order():
    ds = dataset.of(MemoryCache([1] * 50)).shuffle(7).repeat(2).repeat(3)
    flat = dataset.of(MemoryCache([1] * 50)).shuffle(7).repeat(6)
    assert labels(ds) == labels(flat)
    again = dataset.of(MemoryCache([1] * 50)).shuffle(7).repeat(2).repeat(3).repeat(2)
    assert labels(again) == labels(dataset.of(MemoryCache([1] * 50)).shuffle(7).repeat(12))


def test_every_link_of_a_chain_reshuffles():
    one = dataset.of(MemoryCache([1] * 50))
    ds = one.shuffle(7).repeat(2).shuffle(3).repeat(2)
    assert sorted(labels(ds)) == sorted([*range(50)] * 4)
    assert labels(ds, range(100)) != labels(ds, range(100, 200))


@pytest.mark.parametrize("times", [0, -1, 2**63])
def test_repeat_refuses_numbers(rows, times):
    with pytest.raises(ValueError, match=f"got {times}"):
        rows.repeat(times)


def test_epoch_of(rows):
    assert [rows.repeat().epoch_of(i) for i in (0, 6, 7, 10**12)] == [0, 0, 1, 10**12 // 7]
    assert rows.shuffle(0).epoch_of(6) == 0


def test_huge_datasets_cost_nothing():
    ds = dataset.of(SimulatedCache(10**12)).windows(2048).shuffle(1).repeat()
    row = ds.take([10**15])["tokens"]
    assert row.shape == (1, 2048)
    assert row[0, 0] % 2048 == 0


def test_description_is_json_and_tells_what_orders_depend_on():
    def described(cache, make):
        return json.dumps(make(dataset.of(cache)).describe())

    cache = MemoryCache(LENGTHS)
    base = described(cache, lambda d: d.windows(4).shuffle(1))
    others = [
        described(cache, lambda d: d.windows(5).shuffle(1)),
        described(cache, lambda d: d.windows(4, stride=2).shuffle(1)),
        described(cache, lambda d: d.windows(4, tail="short").shuffle(1)),
        described(cache, lambda d: d.windows(4).shuffle(2)),
        described(cache, lambda d: d.windows(4).shuffle(2).shuffle(1)),
        described(cache, lambda d: d.windows(4)),
        described(cache, lambda d: d.shuffle(1)),
        described(MemoryCache([18]), lambda d: d.windows(4).shuffle(1)),
        described(MemoryCache(LENGTHS, content="b"), lambda d: d.windows(4).shuffle(1)),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert base == described(MemoryCache(LENGTHS, version=2), lambda d: d.windows(4).shuffle(1))
    assert base == described(cache, lambda d: d.windows(4).shuffle(1).repeat())


def test_equal_orders_look_alike_wherever_the_cache_lies(rows):
    moved = MemoryCache(LENGTHS)
    moved.url = "elsewhere://"

    def made(source, seed=1):
        return repr(source.windows(3).shuffle(seed))

    assert made(rows) == made(dataset.of(moved)) == made(pickle.loads(pickle.dumps(rows)))
    assert made(rows).startswith("Dataset(cache.windows.shuffle, rows=6, order=")
    other = dataset.of(MemoryCache(LENGTHS, content="b"))
    assert len({made(rows), made(rows, 2), made(other), repr(rows.shuffle(1))}) == 4
    assert "rows=None" in repr(rows.repeat())


def test_pickles(rows):
    ds = rows.windows(2).shuffle(1).repeat(3)
    assert tokens(pickle.loads(pickle.dumps(ds))) == tokens(ds)


def test_threads_see_the_same():
    ds = dataset.of(MemoryCache([1] * 5000)).shuffle(1).repeat()
    expected = labels(ds, range(4000, 6000))
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: labels(ds, range(4000, 6000)), range(32))
    assert all(f == expected for f in found)


def test_fields_are_names():
    cache = MemoryCache(LENGTHS)
    assert list(dataset.of(cache, ["label"]).take([0])) == ["label"]
    wrong: list[tuple[Any, type[Exception], str]] = [
        (
            "tokens",
            TypeError,
            r"fields must be a sequence of names, got 'tokens': say \['tokens'\]",
        ),
        ([1], TypeError, r"fields must be a sequence of names, got \[1\]"),
        (3, TypeError, "fields must be a sequence of names, got 3"),
        ([], ValueError, r"fields must name at least one, got \[\]"),
        (["nope"], KeyError, "nope"),
    ]
    for fields, kind, message in wrong:
        with pytest.raises(kind, match=message):
            dataset.of(cache, fields)


def test_rows_are_those_of_a_cache(rows):
    others: list[Any] = ["cache", rows, None]
    for wrong in others:
        with pytest.raises(TypeError, match=r"rows must be a cache, as cachelib\.open gives one"):
            dataset.of(wrong)


@pytest.mark.parametrize("part", ["rows", "split", "where", "concat"])
def test_windows_are_of_the_fields_chosen(part):
    cache = MemoryCache([4] * 100)

    def made(fields):
        rows = dataset.of(cache, fields)
        if part == "split":
            return rows.split(0.5)[1]
        if part == "where":
            return rows.where([("label", ">=", 3)])
        return concat({"a": rows, "b": rows}) if part == "concat" else rows

    with pytest.raises(ValueError, match=r"'tokens' is not among .* of which \['label'\] were cho"):
        made(["label"]).windows(4)
    assert list(made(["tokens"]).windows(4).take([0])) == ["tokens"]


def test_windows_over_a_field_that_is_not_there():
    with pytest.raises(KeyError, match="nothing"):
        dataset.of(MemoryCache([4]), ["label"]).windows(4, field="nothing")
