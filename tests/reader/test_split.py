"""split(): sides of a cache, what can be made of them, and whether they are apart."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib import dataset
from cachelib.nodes.base import Stream
from cachelib.nodes.selected import RUN, Selected
from tests.reader.documents import DocumentCache
from tests.reader.functions_of_rows import thirds
from tests.reader.memory import MemoryCache, SimulatedCache
from tests.reader.stored import write_commit


def documents(lengths):
    """Documents, and the values of each."""
    cache = dataset.of(DocumentCache(lengths))
    values = np.arange(sum(lengths), dtype=np.uint32)
    return cache, np.split(values, np.cumsum(lengths)[:-1])


def numbers(ds):
    """The rows of the cache that the rows of a dataset are."""
    return ds.trace(np.arange(len(ds)))["row"].tolist()


def random_lengths(seed, count):
    drawn = np.random.default_rng(seed)
    return (drawn.integers(0, 12, count) * (drawn.random(count) < 0.7)).tolist()


def test_sides_share_no_row_and_have_all():
    cache = dataset.of(SimulatedCache(102_400))
    train, held = cache.split(0.01)
    assert (len(train), len(held)) == (101_376, 1_024)
    assert sorted(numbers(train) + numbers(held)) == list(range(102_400))
    assert numbers(held) == sorted(numbers(held))
    assert train.take([0, 5000])["label"].tolist() == [numbers(train)[0], numbers(train)[5000]]
    assert [o.row for o in held.origins(3)] == [numbers(held)[3]]
    assert numbers(cache.split(0.01, seed=1)[1]) != numbers(held)


def test_rows_stay_on_their_sides_when_the_cache_grows(tmp_path):
    lengths = random_lengths(0, 1500)
    write_commit(tmp_path, [lengths[:700], lengths[700:]])
    before = cachelib.open(tmp_path).split(0.1, seed=3)
    write_commit(tmp_path, [random_lengths(1, 900)])
    after = cachelib.open(tmp_path).split(0.1, seed=3)
    for old, new in zip(before, after, strict=True):
        assert numbers(new)[: len(old)] == numbers(old)
        assert min(numbers(new)[len(old) :]) >= 1500
    assert len(after[1]) == pytest.approx(240, abs=25)


@given(st.integers(1, 900), st.sampled_from([0.02, 0.3, 0.9]), st.integers(1, 40), st.data())
def test_the_stream_of_a_side_is_that_of_its_rows(count, fraction, length, data):
    cache, rows = documents(random_lengths(count, count))
    for side in cache.split(fraction, seed=count):
        assert isinstance(side.node, Stream)
        chosen = numbers(side)
        values = np.concatenate([np.empty(0, np.uint32), *(rows[i] for i in chosen)])
        owners = np.repeat(np.arange(len(chosen)), [len(rows[i]) for i in chosen])
        assert side.node.elements("tokens") == len(values)
        windows = side.windows(length, tail="short")
        order = data.draw(st.permutations(range(len(windows))))
        found = windows.take(order)["tokens"]
        for at, index in enumerate(order):
            expected = values[index * length : (index + 1) * length]
            np.testing.assert_array_equal(found[at], expected)
        places = np.array(data.draw(st.permutations(range(len(values)))), np.int64)[:50]
        np.testing.assert_array_equal(side.node.rows_at("tokens", places), owners[places])


@given(st.integers(1, 900), st.sampled_from([0.02, 0.3]))
def test_sides_are_packed(count, fraction):
    cache, rows = documents(random_lengths(count, count))
    for side in cache.split(fraction, seed=count):
        packs = side.pack(16, seed=2)
        found = packs.take(range(len(packs)))
        kept = np.sort(found["tokens"][found["segment_ids"] > 0])
        expected = [rows[i] for i in numbers(side)]
        np.testing.assert_array_equal(
            kept, np.sort(np.concatenate([np.empty(0, np.uint32), *expected]))
        )


def test_windows_of_a_side_on_disk(tmp_path):
    lengths = random_lengths(5, 3000)
    write_commit(tmp_path, [lengths[:100], [], lengths[100:2000], lengths[2000:]])
    cache = cachelib.open(tmp_path)
    train, held = cache.split(0.2)
    every = cache.take(range(3000))["tokens"]
    for side in (train, held):
        values = np.concatenate([every[i] for i in numbers(side)])
        windows = side.windows(32, documents=True, targets="shifted")
        found = windows.take(range(len(windows)))
        whole = len(values) // 32 * 32
        np.testing.assert_array_equal(found["tokens"].ravel(), values[:whole])
        rows = [o.row for o in windows.origins(7)]
        assert set(rows) <= set(numbers(side))
        tokens = np.concatenate([every[row] for row in rows])
        assert set(found["tokens"][7].tolist()) <= set(tokens.tolist())
        blocks = windows.shuffle(0, block=4, window=4).take(range(len(windows)))
        assert sorted(blocks["tokens"][:, 0].tolist()) == sorted(found["tokens"][:, 0].tolist())
    shuffled = train.windows(32).shuffle(1)
    again = pickle.loads(pickle.dumps(shuffled))
    np.testing.assert_array_equal(again.take([5])["tokens"], shuffled.take([5])["tokens"])


def test_what_is_kept_of_the_lengths_goes_along_when_pickled():
    cache = DocumentCache(random_lengths(0, 2000))
    windows = dataset.of(cache).split(0.1)[0].windows(8)
    again = pickle.loads(pickle.dumps(windows))
    read = again.node.stream.child.rows
    asked = read.rows_asked
    again.take([0])
    assert read.rows_asked - asked <= 2 * RUN


def test_sides_of_sides():
    cache = dataset.of(SimulatedCache(50_000))
    train, held = cache.split(0.1)
    test, validation = held.split(0.5, seed=1)
    assert len(test) == pytest.approx(2500, abs=100)
    assert sorted(numbers(test) + numbers(validation)) == numbers(held)
    later, _ = dataset.of(SimulatedCache(90_000)).split(0.1)[1].split(0.5, seed=1)
    assert numbers(later)[: len(test)] == numbers(test)
    validation.check_apart(train)
    validation.check_apart(test)


def test_a_side_of_a_condition_does_not_depend_on_the_condition():
    rows = dataset.of(MemoryCache([1] * 5000))
    sides = rows.split(0.1, seed=2)
    chosen = rows.where(thirds, columns=["label"]).where([("label", ">", 4000)])
    for side, part in zip(sides, chosen.split(0.1, seed=2), strict=True):
        expected = [i for i in numbers(side) if i % 3 == 0 and i > 400]
        assert numbers(part) == expected
        assert numbers(side.where(thirds, columns=["label"])) == [
            i for i in numbers(side) if i % 3 == 0
        ]
        assert part.take([0])["label"].tolist() == [expected[0] * 10]
    again = chosen.split(0.1, seed=2)[0].split(0.5, seed=3)
    assert sorted(numbers(again[0]) + numbers(again[1])) == numbers(chosen.split(0.1, seed=2)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d.windows(4),
        lambda d: d.pack(4),
        lambda d: d.shuffle(0),
        lambda d: d.slice(0, 4),
        lambda d: d.repeat(2),
        lambda d: cachelib.concat({"a": d, "b": d}),
        lambda d: cachelib.concat({"a": d, "b": d}).where([("tokens", "==", "")]),
    ],
)
def test_only_stored_rows_can_be_split(make):
    documents = DocumentCache([3] * 20)
    documents.fields["tokens"] = cachelib.Ragged(
        documents.fields["tokens"].values.astype(np.uint8), documents.fields["tokens"].offsets
    )
    with pytest.raises(ValueError, match="only rows of a cache in stored order"):
        make(dataset.of(documents)).split(0.1)


def test_refuses_other_fractions():
    rows = dataset.of(SimulatedCache(10))
    for bad in (0, 1, -0.5, 2, float("nan")):
        with pytest.raises(ValueError, match="above 0 and below 1"):
            rows.split(bad)
    wrong: list[Any] = [True, "0.1", None]
    for value in wrong:
        with pytest.raises(TypeError, match="fraction must be a number"):
            rows.split(value)


def test_the_order_tells_the_side():
    train, held = dataset.of(MemoryCache([1] * 50)).split(0.25, seed=7)
    assert train.describe() == {
        "kind": "split",
        "fraction": 0.25,
        "seed": 7,
        "held": False,
        "of": dataset.of(MemoryCache([1] * 50)).describe(),
    }
    assert held.describe()["held"] is True
    assert isinstance(train.node, Selected)


ROWS = dataset.of(MemoryCache([4] * 4000))
OTHER = dataset.of(MemoryCache([4] * 4000, content="b"))
OTHER.node.rows.url = "simulated://other"  # type: ignore[attr-defined]
TRAIN, HELD = ROWS.split(0.1)


@pytest.mark.parametrize(
    "apart",
    [
        (TRAIN, HELD),
        (TRAIN.shuffle(0).repeat(), HELD.windows(8)),
        (ROWS, OTHER),
        (cachelib.concat({"a": TRAIN, "b": OTHER}), HELD),
        (ROWS.where(thirds, columns=["label"]), ROWS.where([("label", "in", [10, 20, 40])])),
        (ROWS.shuffle(0).slice(0, 50), ROWS.shuffle(0).slice(50, 4000).shuffle(1).repeat()),
        (cachelib.then([(50, ROWS), (None, TRAIN)]), HELD.where([("label", ">=", 500)])),
        (HELD.split(0.5, 1)[0], cachelib.concat({"a": TRAIN, "b": HELD.split(0.5, 1)[1]})),
    ],
)
def test_apart(apart):
    one, two = apart
    one.check_apart(two)
    two.check_apart(one)


@pytest.mark.parametrize(
    ("train", "held", "message"),
    [
        (ROWS, HELD, r"training has all rows, evaluation split\(.*held=True\)"),
        (TRAIN, ROWS.split(0.1, seed=1)[1], r"split\(.*seed=0.*evaluation split\(.*seed=1"),
        (TRAIN, ROWS.split(0.2)[1], r"fraction=0\.1.*fraction=0\.2"),
        (TRAIN.windows(8).shuffle(0).repeat(), ROWS.windows(9), "simulated://"),
        (cachelib.concat({"b": OTHER, "a": TRAIN}).windows(4), TRAIN.slice(1, 2), "a slice of 1"),
        (
            cachelib.mix({"a": TRAIN.repeat(), "b": OTHER.repeat()}, {"a": 1, "b": 1}, seed=0),
            TRAIN.where([("label", "<", 100)]),
            r"where\(comparisons=\[\['label', '<', 100\]\]",
        ),
        (cachelib.then([(5, OTHER), (None, TRAIN)]), TRAIN, "row"),
        (ROWS.shuffle(0).slice(0, 51), ROWS.shuffle(0).slice(50, 80), "a slice of 51 rows"),
        (ROWS.windows(4).slice(0, 3), ROWS.windows(4).slice(5, 8), "all rows"),
        (dataset.of(MemoryCache([4] * 9)), ROWS, "row 0"),
    ],
)
def test_overlap_is_an_error(train, held, message):
    with pytest.raises(ValueError, match=message):
        held.check_apart(train)
    with pytest.raises(ValueError, match="share rows of"):
        held.evaluate(4, apart_from=train)


def test_sides_of_huge_caches_are_compared_by_arithmetic():
    train, held = dataset.of(SimulatedCache(10**15)).split(0.1)
    first, second = train.split(0.5)
    first.shuffle(0).check_apart(held)
    first.check_apart(second.repeat())


def test_a_cache_stands_for_all_its_rows():
    HELD.check_apart(OTHER.node.rows)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="training has all rows"):
        HELD.evaluate(4, apart_from=MemoryCache([4] * 4000))


def test_only_datasets_and_caches_are_compared():
    wrong: list[Any] = ["cache", None, HELD.loader(4)]
    for value in wrong:
        with pytest.raises(TypeError, match="compared with a dataset or a cache, got"):
            HELD.check_apart(value)


def test_a_url_of_this_machine_names_the_same_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_commit("cache", [[3, 4]])
    write_commit("cache", [[5]])
    old, new = cachelib.open(f"file://localhost{tmp_path}/cache", 0), cachelib.open("cache")
    assert old.url == new.url == f"{(tmp_path / 'cache').as_uri()}/"
    with pytest.raises(ValueError, match="share rows"):
        new.dataset().check_apart(old)


def test_a_copy_that_has_grown_shares_its_beginning(tmp_path):
    for name, shards in (("one", [[3] * 30, [4] * 70]), ("two", [[3] * 30, [4] * 70])):
        write_commit(tmp_path / name, shards)
    write_commit(tmp_path / "one", [[2] * 50])
    write_commit(tmp_path / "two", [[9] * 80])
    one, two = (cachelib.open(tmp_path / name) for name in ("one", "two"))
    later = two.dataset().slice(100, 180)
    later.check_apart(one)
    later.shuffle(0).repeat().check_apart(one)
    with pytest.raises(ValueError, match="row 99 for one: training has all rows, evaluation a sli"):
        two.dataset().slice(99, 180).check_apart(one)
    one.split(0.1)[0].check_apart(two.split(0.1)[1])
    with pytest.raises(ValueError, match=r"/one/ and .*/two/, row \d+ for one"):
        two.split(0.1, seed=1)[1].check_apart(one.split(0.1)[0])


def test_a_copy_of_other_shards_shares_its_beginning(tmp_path):
    write_commit(tmp_path / "one", [[3] * 30, [4] * 70])
    write_commit(tmp_path / "two", [[3] * 30 + [4] * 70])
    write_commit(tmp_path / "two", [[5]])
    write_commit(tmp_path / "three", [[4] * 30])
    one, two, three = (cachelib.open(tmp_path / name) for name in ("one", "two", "three"))
    with pytest.raises(ValueError, match="row 0 for one"):
        two.dataset().check_apart(one)
    two.dataset().slice(100, 101).check_apart(one)
    three.dataset().check_apart(one)


def test_evaluation_apart_from_training():
    assert next(HELD.evaluate(4, apart_from=TRAIN))["weight"].tolist() == [1] * 4
