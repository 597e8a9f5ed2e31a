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
from cachelib.errors import CorruptData, StateMismatch
from cachelib.format.canonical import seal, unseal
from cachelib.format.schema import Field, Schema
from cachelib.ragged import Ragged
from tests.reader.functions_of_rows import numbers, thirds
from tests.reader.memory import MemoryCache
from tests.reader.stored import write_columns, write_commit

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


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        (("score", "<", True), "'score' of float32 cannot be compared with True: it holds numbers"),
        (("score", "==", np.True_), "'score' of float32 cannot be compared with True"),
        (("score", "in", [0.5, False]), "'score' of float32 cannot be compared with False"),
        (("score", "not in", [True]), "'score' of float32 cannot be compared with True"),
        (("good", "==", 1), "'good' of bool cannot be compared with 1: it holds truth values"),
        (("good", ">", 0.5), "'good' of bool cannot be compared with 0.5"),
        (("good", "in", [True, np.int64(0)]), "'good' of bool cannot be compared with 0"),
        (("good", "==", "true"), "'good' of bool cannot be compared with 'true'"),
        (
            ("lang", "==", True),
            "'lang' of text cannot be compared with True; text stands in quotes, as in \"true\"",
        ),
    ],
)
def test_refuses_truth_values_for_numbers_and_numbers_for_truth_values(texts, comparison, said):
    cache, _, _ = texts
    with pytest.raises(TypeError, match=said):
        cache.where([comparison])
    with pytest.raises(TypeError, match="'label' of int64 cannot be compared with True"):
        ROWS.where([("label", ">", True)])
    assert len(cache.where([("good", "in", [np.True_, False])])) == len(cache)


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


SOME: list[tuple[str, str, Any]] = [("label", ">=", 30), ("label", "not in", [50, 90])]


def kept(path, plan, condition=SOME, version=None, **options):
    """Labels of chosen rows, and how many rows were asked."""
    asked = [0]

    def tell(done, total):
        asked.append(done)

    ds = cachelib.open(path, version).where(condition, plan=plan, progress=tell, **options)
    steps = np.diff(asked)
    return labels(ds), int(steps[-1]) if len(steps) else 0, ds.describe()


def test_a_kept_choice_is_read_instead_of_all_rows(tmp_path):
    write_commit(tmp_path / "web", [[3] * 30, [], [2] * 11])
    made = kept(tmp_path / "web", tmp_path / "plans" / "some")
    assert made[0] == [i for i in range(3, 41) if i not in (5, 9)]
    assert made[1] == 41
    again = kept(tmp_path / "web", tmp_path / "plans" / "some")
    assert again == (made[0], 0, made[2])
    assert made[2] == cachelib.open(tmp_path / "web").where(SOME).describe()


def test_only_rows_added_since_are_asked(tmp_path):
    write_commit(tmp_path / "web", [[3] * 30, [2] * 11])
    plan = tmp_path / "some"
    before, _, _ = kept(tmp_path / "web", plan)
    write_commit(tmp_path / "web", [[1] * 20])
    write_commit(tmp_path / "web", [[1] * 500])
    after, asked, told = kept(tmp_path / "web", plan)
    assert after[: len(before)] == before  # a row stays where it was
    assert after == [i for i in range(3, 561) if i not in (5, 9)]
    assert asked == 561 - 40  # whole bytes of bits are taken over
    assert told == cachelib.open(tmp_path / "web").where(SOME).describe()
    assert kept(tmp_path / "web", plan, version=0)[:2] == (before, 0)
    assert kept(tmp_path / "web", plan, version=1)[1] == 61 - 40
    assert sorted(p.name for p in plan.iterdir()) == [f"{v:020d}.json" for v in range(3)]


def test_a_function_and_its_rows_are_kept(tmp_path):
    write_commit(tmp_path / "web", [[3] * 30])
    options = {"condition": thirds, "columns": ["label"]}
    before, _, _ = kept(tmp_path / "web", tmp_path / "thirds", **options)
    write_commit(tmp_path / "web", [[3] * 30])
    after, asked, _ = kept(tmp_path / "web", tmp_path / "thirds", **options)
    assert (after, after[:10], asked) == (list(range(0, 60, 3)), before, 60 - 24)
    with pytest.raises(StateMismatch, match=r"where.version is missing in the plan, but '2' here"):
        cachelib.open(tmp_path / "web").where(
            thirds, columns=["label"], version="2", plan=tmp_path / "thirds"
        )


@pytest.mark.parametrize("grown", [False, True])
def test_a_changed_condition_never_reads_an_old_plan(tmp_path, grown):
    write_commit(tmp_path / "web", [[3] * 30])
    kept(tmp_path / "web", tmp_path / "some")
    if grown:
        write_commit(tmp_path / "web", [[3] * 30])
    before = {p.name: p.read_bytes() for p in (tmp_path / "some").iterdir()}
    for condition in ([("label", ">=", 31), SOME[1]], SOME[:1], [("label", ">", 30), SOME[1]]):
        with pytest.raises(StateMismatch, match=r"is the plan of other chosen rows: where\.c"):
            kept(tmp_path / "web", tmp_path / "some", condition)
    assert {p.name: p.read_bytes() for p in (tmp_path / "some").iterdir()} == before


def test_a_plan_of_other_rows_is_refused(tmp_path):
    write_commit(tmp_path / "web", [[3] * 30])
    write_commit(tmp_path / "code", [[3] * 29, [1]])
    plan = tmp_path / "some"
    kept(tmp_path / "web", plan)
    with pytest.raises(StateMismatch, match=r"other chosen rows: cache.elements"):
        kept(tmp_path / "code", plan)
    write_commit(tmp_path / "code", [[3] * 30])
    with pytest.raises(StateMismatch, match="of 30 rows that are no beginning of the 60 rows here"):
        kept(tmp_path / "code", plan)


@pytest.mark.parametrize("grown", [False, True])
def test_what_is_no_kept_choice_is_refused_and_left(tmp_path, grown):
    write_commit(tmp_path / "web", [[3] * 30])
    kept(tmp_path / "web", tmp_path / "some")
    place = tmp_path / "some" / f"{0:020d}.json"
    whole = place.read_bytes()
    line = unseal(whole, "")
    if grown:
        write_commit(tmp_path / "web", [[3] * 30])
    for data, kind, message in (
        (whole[:-9], CorruptData, "0.json: .* cut short or damaged; delete it, and"),
        (whole.replace(b"30", b"31", 1), CorruptData, "cut short or damaged"),
        (seal([1]), StateMismatch, "0.json is no plan of chosen rows: name another place"),
        (seal({**line, "kind": "plan of packs"}), StateMismatch, "is no plan of chosen rows"),
        (seal({**line, "format": 9}), StateMismatch, "a plan of format 9, and .* reads format 1"),
        (
            seal({**line, "bits": "AAA="}),
            CorruptData,
            "2 bytes of bits, which are not 30 rows; delete",
        ),
    ):
        place.write_bytes(data)
        with pytest.raises(kind, match=message):
            kept(tmp_path / "web", tmp_path / "some")
        assert [p.read_bytes() for p in (tmp_path / "some").iterdir()] == [data]


def test_only_choices_of_the_rows_of_one_cache_are_kept(tmp_path):
    train, _ = ROWS.split(0.1)
    for rows in (train, ROWS.where(SOME), cachelib.concat({"a": ROWS, "b": ROWS})):
        with pytest.raises(ValueError, match="plan= keeps which rows of one cache are chosen"):
            rows.where(SOME, plan=tmp_path / "some")
    with pytest.raises(TypeError, match="plan must be the path or URL of a folder, got 3"):
        ROWS.where(SOME, plan=3)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="missing"):
        ROWS.where([("missing", "==", 1)], plan=tmp_path / "some")
    assert not list(tmp_path.iterdir())


def test_the_first_of_several_that_make_a_plan_stays(tmp_path):
    """Processes that start together find nothing, and each asks all rows."""
    write_commit(tmp_path / "web", [[3] * 30])
    plan = tmp_path / "some"
    inside: list[Any] = []

    def tell(done, total):
        inside.append(kept(tmp_path / "web", plan))

    ds = cachelib.open(tmp_path / "web").where(SOME, plan=plan, progress=tell)
    assert labels(ds) == inside[0][0]
    assert len(list(plan.iterdir())) == 1


def test_an_empty_cache_keeps_no_rows(tmp_path):
    write_commit(tmp_path / "web", [])
    assert kept(tmp_path / "web", tmp_path / "some")[0] == []
    write_commit(tmp_path / "web", [[3] * 10])
    assert kept(tmp_path / "web", tmp_path / "some")[:2] == ([3, 4, 6, 7, 8], 10)
