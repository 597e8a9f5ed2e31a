"""Keys of rows: they order as the values do, and samples find a row's place."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.format.schema import Field, Schema
from cachelib.ragged import Ragged
from pipelines.order.keys import Keys, Names, Sampler, ascending, keys_of, row_sizes, run_size
from pipelines.order.orders import SOURCE, Order, parse_order
from tests.reader import randomness

SCHEMA = Schema(
    (
        Field("tokens", "uint16", ragged=True),
        Field("id", "uint8", ragged=True, text=True),
        Field("score", "float32"),
        Field("frame", "int32", shape=(2,)),
    )
)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("source", SOURCE),
        ("shuffle(0)", Order("shuffle")),
        (" shuffle( 18446744073709551615 ) ", Order("shuffle", seed=2**64 - 1)),
        ("by(score)", Order("by", field="score")),
        ("by(loss/mean)", Order("by", field="loss/mean")),
    ],
)
def test_orders_are_named(text: str, order: Order) -> None:
    assert parse_order(text) == order
    assert parse_order(str(order)) == order


@pytest.mark.parametrize(
    "text",
    ["", "shuffle", "shuffle()", "shuffle(-1)", "shuffle(18446744073709551616)", "shuffle(²)",
     "by", "by()", "source(1)", "random(1)", "by score"],
)  # fmt: skip
def test_what_names_no_order_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected source, shuffle\(SEED\)"):
        parse_order(text)


@pytest.mark.parametrize(
    ("field", "said"),
    [("lost", "'lost' is not kept; .* the kept ones: id, score"), ("frame", "neither a number")],
)
def test_fields_that_give_no_order_are_refused(field: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Order("by", field=field).check(SCHEMA)
    for fine in ("tokens", "id", "score"):
        Order("by", field=fine).check(SCHEMA)


FLOATS = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]))


@given(st.lists(FLOATS, min_size=2), st.sampled_from(["float32", "float64"]))
def test_floats_ascend_and_nans_come_last(values: list[float], dtype: str) -> None:
    array = np.array(values, dtype)
    array[::2] = np.where(np.isnan(array[::2]), -array[::2], array[::2])  # NaNs of both signs
    words = ascending(array)
    for (a, one), (b, other) in itertools.combinations(zip(words, array, strict=True), 2):
        if np.isnan(one) or np.isnan(other):
            assert (a <= b) == np.isnan(other)
        else:
            assert (a < b) == (one < other)
            assert (a == b) == (one == other)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2))
def test_integers_ascend(values: list[int]) -> None:
    words = ascending(np.array(values, np.int64))
    assert np.argsort(words, kind="stable").tolist() == sorted(
        range(len(values)), key=values.__getitem__
    )
    assert ascending(np.array([True, False])).tolist() == [1, 0]


TEXTS = st.text(st.sampled_from("ab\0ÿ€😀"), max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[str, str, int]]:
    """Texts, names of sources and positions; no two of one source and position."""
    places = draw(st.lists(st.tuples(TEXTS, st.integers(0, 9)), unique=True, min_size=1))
    return [(draw(TEXTS), *place) for place in places]


def text_keys(found: list[tuple[str, str, int]], names: Names) -> Keys:
    texts = Ragged.from_rows([np.frombuffer(t.encode(), np.uint8) for t, _, _ in found], np.uint8)
    ranks = names.ranks([name for _, name, _ in found])
    positions = np.array([position for *_, position in found], np.int64)
    return keys_of(Order("by", field="id"), texts, ranks, positions, names)


@given(rows(), rows())
def test_texts_ascend_by_their_bytes(
    found: list[tuple[str, str, int]], others: list[tuple[str, str, int]]
) -> None:
    names = Names([name for _, name, _ in found])
    expected = sorted(found, key=lambda row: (row[0].encode(), row[1], row[2]))
    keys = text_keys(found, names)
    order = keys.argsort()
    assert [found[row] for row in order.tolist()] == expected
    keys = Keys(tuple(column[order] for column in keys.columns))
    assert keys.ascend()
    assert [keys.stored(row, names) for row in range(len(keys))] == expected
    for other in others:  # also of sources that have no row here
        for key in (other, other[:1], (*other[:2], 0)):
            count = sum((r[0].encode(), *r[1:]) < (key[0].encode(), *key[1:]) for r in expected)
            assert keys.before(names.comparable(key, 1)) == count
    for row in range(len(keys)):
        assert keys.through(keys.at(row)) == row + 1


def shuffled(seed: int, sources: int, each: int) -> np.ndarray:
    """The order of rows at positions 0, 100, 200, ... of sources."""
    names = Names([f"part-{i:04d}.jsonl" for i in range(sources)])
    ranks = np.repeat(np.arange(sources), each)
    positions = np.tile(np.arange(each, dtype=np.int64) * 100, sources)
    return keys_of(Order("shuffle", seed=seed), None, ranks, positions, names).argsort()


@pytest.mark.parametrize(("sources", "each"), [(1, 1 << 14), (256, 64), (1 << 14, 1)])
def test_a_shuffle_is_random(sources: int, each: int) -> None:
    one, other = shuffled(0, sources, each), shuffled(1, sources, each)
    for check in randomness.ONE_ORDER:
        check(one, len(one))
    randomness.unrelated(one, other, len(one))


def test_a_shuffle_depends_on_nothing_but_seed_name_and_position() -> None:
    order = Order("shuffle", seed=7)
    one, two = Names(["a", "b"]), Names(["0", "b", "c"])
    at = np.array([5], np.int64)
    alone = keys_of(order, None, one.ranks(["b"]), at, one).columns[:2]
    beside = keys_of(order, None, two.ranks(["b"]), at, two).columns[:2]
    assert [c.tolist() for c in alone] == [c.tolist() for c in beside]
    assert len({int(column[0]) for column in alone}) == 2


@given(st.lists(st.integers(1, 100), min_size=1, max_size=500), st.integers(1, 100))
def test_samples_are_rows_in_order_however_they_come(sizes: list[int], block: int) -> None:
    names = Names(["a"])
    count = len(sizes)
    ranks, positions = np.zeros(count, np.int64), np.arange(count, dtype=np.int64)
    keys = keys_of(Order("by", field="n"), positions * 2, ranks, positions, names)
    found = []
    for step in (count, block):
        samples = Sampler(count, sum(sizes))
        for first in range(0, count, step):
            part = np.array(sizes[first : first + step])
            samples.add(keys.slice(first, first + len(part)), part, names)
        found.append(samples.to_json())
    assert found[0] == found[1]
    told: dict[str, Any] = found[0]
    assert told["rows"][0] == 0
    assert told["rows"] == sorted(set(told["rows"]))
    assert told["bytes"] == [sum(sizes[:row]) for row in told["rows"]]
    assert [key[-1] for key in told["keys"]] == told["rows"]


def test_sizes_of_rows_are_those_of_their_values() -> None:
    lengths = {"tokens": np.array([3, 0]), "id": np.array([1, 2])}
    sizes = row_sizes(SCHEMA, lengths, 2)
    assert sizes.tolist() == [6 + 1 + 4 + 8 + 12, 0 + 2 + 4 + 8 + 12]
    assert run_size(SCHEMA, 2, {"tokens": 3, "id": 3}) == sizes.sum()
    assert run_size(SCHEMA, 0, {}) == 0
