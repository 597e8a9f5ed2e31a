"""where(): the rows that a condition holds for."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib import dataset
from cachelib.ragged import Ragged
from cachelib.schema import Field, Schema
from tests.reader.functions_of_rows import numbers, thirds
from tests.reader.memory import MemoryCache
from tests.reader.stored import write_columns

ROWS = dataset.of(MemoryCache([3, 0, 5] * 500))


def labels(ds):
    return (ds.take(range(len(ds)))["label"] // 10).tolist()


COMPARE = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


@given(st.sampled_from(list(COMPARE)), st.lists(st.integers(-10, 16_000), max_size=4))
def test_comparisons_are_those_of_python(operator, values):
    value = values if "in" in operator else (values or [70])[0]
    found = labels(ROWS.where([("label", operator, value)]))
    assert found == [i for i in range(1500) if COMPARE[operator](i * 10, value)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A cache of rows with a language, a score and whether they are good."""
    path = tmp_path_factory.mktemp("texts")
    schema = Schema(
        (
            Field("tokens", "uint16", ragged=True, chunk=8),
            Field("lang", "uint8", ragged=True, text=True),
            Field("score", "float32"),
            Field("good", "bool"),
            Field("pair", "int32", shape=(2,)),
        )
    )
    rows = 3000
    drawn = np.random.default_rng(0)
    langs = drawn.choice(["en", "de", "", "zürich", "eng"], rows).tolist()
    lengths = drawn.integers(0, 9, rows)
    columns: dict[str, np.ndarray | Ragged] = {
        "tokens": Ragged.from_lengths(np.arange(lengths.sum(), dtype=np.uint16), lengths),
        "lang": Ragged.from_rows([np.frombuffer(s.encode(), np.uint8) for s in langs], np.uint8),
        "score": drawn.random(rows).astype(np.float32),
        "good": drawn.random(rows) < 0.5,
        "pair": np.zeros((rows, 2), np.int32),
    }
    write_columns(path, schema, columns)
    return cachelib.open(path), langs, columns


@pytest.mark.parametrize(
    ("comparisons", "expected"),
    [
        ([("lang", "==", "en")], lambda lang, score, good: lang == "en"),
        ([("lang", "!=", "en")], lambda lang, score, good: lang != "en"),
        ([("lang", "in", ["zürich", ""])], lambda lang, score, good: lang in ("zürich", "")),
        ([("lang", "not in", ["en", "de"])], lambda lang, score, good: lang not in ("en", "de")),
        ([("lang", "in", [])], lambda lang, score, good: False),
        ([("good", "==", True)], lambda lang, score, good: good),
        (
            [("score", ">=", 0.25), ("lang", "==", "de"), ("score", "<", np.float32(0.5))],
            lambda lang, score, good: 0.25 <= score < 0.5 and lang == "de",
        ),
    ],
)
def test_kept_columns_choose_rows(texts, comparisons, expected):
    cache, langs, columns = texts
    chosen = cache.where(comparisons)
    every = zip(langs, columns["score"].tolist(), columns["good"].tolist(), strict=True)
    wanted = [i for i, row in enumerate(every) if expected(*row)]
    assert chosen.trace(range(len(chosen)))["row"].tolist() == wanted
    if wanted:
        values = np.concatenate([columns["tokens"][i] for i in wanted])
        windows = chosen.windows(7, tail="short")
        found = windows.take(range(len(windows)))["tokens"]
        np.testing.assert_array_equal(found.values, values)
        packs = chosen.pack(16)
        found = packs.take(range(len(packs)))
        assert np.count_nonzero(found["segment_ids"]) == len(values)
        shuffled = windows.shuffle(0, block=4, window=2)
        assert shuffled.take(range(len(windows)))["tokens"].values.sum() == values.sum()


def test_only_the_columns_asked_about_are_read(texts):
    cache, langs, _ = texts
    tokens = dataset.of(cache, fields=["tokens"]).where([("lang", "==", "de")])
    assert list(tokens.take([0])) == ["tokens"]
    assert len(tokens) == langs.count("de")


def test_functions_choose_rows():
    ds = ROWS.where(thirds, columns=["label"])
    assert labels(ds) == list(range(0, 1500, 3))
    assert set(ds.describe()) == {"kind", "columns", "source", "rows", "of"}
    told = ROWS.where(thirds, columns=["label"], version="2").describe()
    assert (told["version"], told["columns"], told["rows"]) == ("2", ["label"], 500)


def test_conditions_on_what_was_chosen():
    ds = ROWS.where(thirds, columns=["label"]).where([("label", "<", 100)])
    assert labels(ds) == [0, 3, 6, 9]
    assert ds.describe()["comparisons"] == [["label", "<", 100]]
    assert ds.describe()["of"]["rows"] == 500
    assert [o.row for o in ds.origins(2)] == [6]


def test_conditions_on_rows_of_several_caches():
    both = cachelib.concat({"a": ROWS, "b": dataset.of(MemoryCache([4] * 50))})
    told: list[tuple[int, int]] = []
    ds = both.where([("label", "<", 30)], progress=lambda *args: told.append(args))
    assert labels(ds) == [0, 1, 2, 0, 1, 2]
    assert told == [(1500, 1550), (1550, 1550)]
    assert ds.windows(5).take([1, 2])["tokens"].tolist() == [[5, 6, 7, 0, 1], [2, 3, 4, 5, 6]]


def test_nothing_is_chosen():
    ds = ROWS.where([("label", "<", 0)])
    assert len(ds) == 0
    assert len(ds.windows(4)) == 0
    assert ds.take([])["label"].tolist() == []


def test_what_was_found_goes_along_when_pickled():
    cache = MemoryCache([3] * 1000)
    ds = dataset.of(cache).where(thirds, columns=["label"]).shuffle(1)
    reads = cache.reads
    again = pickle.loads(pickle.dumps(ds))
    assert again.take([3])["label"] == ds.take([3])["label"]
    assert again.node.child.child.rows.reads == reads + 1


@pytest.mark.parametrize(
    ("condition", "error", "message"),
    [
        ([], TypeError, "takes a list of comparisons"),
        ("label", TypeError, "takes a list of comparisons"),
        ([("label", "==")], TypeError, r"a comparison is \(column, operator, value\)"),
        ([(1, "==", 2)], TypeError, "named by a string"),
        ([("label", "=", 2)], ValueError, "must be one of"),
        ([("label", "in", "ab")], TypeError, "takes a list of values"),
        ([("label", "==", None)], TypeError, "got None"),
        ([("label", "==", float("nan"))], ValueError, "a finite number"),
        ([("label", "==", "x")], TypeError, "of int64 cannot be compared with 'x'"),
        ([("missing", "==", 1)], KeyError, "missing"),
        ([("tokens", "==", 1)], TypeError, "no one value a row"),
    ],
)
def test_refuses(condition, error, message):
    with pytest.raises(error, match=message):
        ROWS.where(condition)
    if message == "no one value a row":
        return
    with pytest.raises(error, match=message):
        dataset.of(MemoryCache([])).where(condition)


def test_refuses_what_does_not_fit_text(texts):
    cache, _, _ = texts
    with pytest.raises(ValueError, match="has no order"):
        cache.where([("lang", "<", "de")])
    with pytest.raises(TypeError, match="of text cannot be compared with 3"):
        cache.where([("lang", "==", 3)])
    with pytest.raises(TypeError, match="'pair' has no one value a row"):
        cache.where([("pair", "==", 3)])
    with pytest.raises(TypeError, match="'tokens' has no one value a row"):
        cache.where([("tokens", "==", 3)])


def test_refuses_functions():
    wrong: list[Any] = [lambda columns: columns["label"] > 3, test_refuses.__call__, max]
    for function in wrong:
        with pytest.raises(TypeError, match="not a function that a module defines"):
            ROWS.where(function, columns=["label"])
    with pytest.raises(TypeError, match="columns must name what the function takes"):
        ROWS.where(thirds)
    with pytest.raises(TypeError, match=r"must give one truth value a row, bool .* gave int64"):
        ROWS.where(numbers, columns=["label"])
    for columns, message in (("label", r"say \['label'\]"), (3, "3"), ([3], r"\[3\]")):
        with pytest.raises(
            TypeError, match=f"columns must be a sequence of names, got .*{message}"
        ):
            ROWS.where(thirds, columns=columns)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"columns must name .*, at least one, got \[\]"):
        ROWS.where(thirds, columns=[])
    with pytest.raises(TypeError, match=r"progress must be a function of \(done, total\), got 1"):
        ROWS.where([("label", "==", 1)], progress=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="those of a function"):
        ROWS.where([("label", "==", 1)], columns=["label"])
    with pytest.raises(ValueError, match=r"not on its windows: call where\(\) first"):
        ROWS.windows(4).where([("tokens", "==", 1)])
