"""mix(): datasets shared out by weight, read through loaders, and states that fit or do not."""

from __future__ import annotations

import json
import pickle
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib import dataset
from cachelib.errors import StateMismatch
from cachelib.nodes.mix import Mix
from tests.reader.memory import MemoryCache, SimulatedCache
from tests.reader.stored import write_commit

FAR = 10**9


class Numbered(SimulatedCache):
    """Row i is the number ``first`` + i, so that components can be told from one another."""

    def __init__(self, rows, first, version=1):
        super().__init__(rows)
        self.first, self.version = first, version

    def take(self, indices, fields=None):
        return {"label": indices + self.first}

    def identity(self):
        return {"version": self.version, "rows": self.rows, "digest": self.first}


def numbered(place, rows=1000):
    """A dataset whose row i is place * FAR + i."""
    return dataset.of(Numbered(rows, place * FAR))


WEB, CODE, BOOKS = (numbered(place).repeat() for place in range(3))
HALVES = {"web": 0.5, "code": 0.5}


def mixed(**options):
    return cachelib.mix(
        {"web": WEB, "code": CODE}, **{"weights": HALVES, "seed": 0, "block": 8, **options}
    )


def labels(ds, indices):
    return ds.take(indices)["label"].tolist()


def weights_of(ds):
    assert isinstance(ds.node, Mix)
    return ds.node.mixture.stages[0].weights


def drawn(loader, steps):
    return [label for _ in range(steps) for label in next(loader)["label"].tolist()]


@given(st.permutations(["web", "code", "books"]), st.integers(0, 9))
def test_components_are_served_their_own_rows(names, seed):
    weights = {"web": 5, "code": 3, "books": 1}
    parts = {"web": WEB, "code": CODE, "books": BOOKS}
    ds = cachelib.mix(
        {name: parts[name] for name in names},
        {name: weights[name] for name in reversed(names)},
        seed=seed,
        block=16,
    )
    assert ds.size is None
    found = labels(ds, range(160))
    for place, (name, part) in enumerate(parts.items()):
        mine = [label for label in found if label // FAR == place]
        assert abs(len(mine) - 160 * weights[name] / 9) <= 2
        assert sorted(mine) == labels(part, range(len(mine)))
        assert ds.counts(160)[name] == len(mine)
    assert [labels(ds, [i])[0] for i in (7, 0, 159)] == [found[i] for i in (7, 0, 159)]
    again = cachelib.mix(parts, weights, seed=seed, block=16)
    assert labels(again, range(160)) == found


def test_other_components_change_nothing_inside_one():
    shuffled = numbered(0).shuffle(3).repeat()

    def rows_of(parts, weights):
        ds = cachelib.mix(parts, weights, seed=1, block=1)
        return [label for label in labels(ds, range(3000)) if label < FAR]

    alone = labels(shuffled, range(3000))
    for parts in (
        {"a": shuffled, "b": CODE},
        {"a": shuffled, "b": CODE, "c": BOOKS},
        {"z": shuffled, "b": CODE},
        {"a": shuffled, "c": BOOKS},
    ):
        found = rows_of(parts, dict.fromkeys(parts, 1))
        assert found == alone[: len(found)]
        assert len(found) >= 1000


def test_every_rank_sees_every_component_at_equal_weights():
    for ds in (mixed(block=16), mixed(block=64)):
        ranks = [ds.loader(16, dp_rank=r, dp_world=16) for r in range(16)]
        for rank in ranks:
            web = sum(label < FAR for label in drawn(rank, 64))
            assert 10 < web < 54


def test_any_position_is_reached_at_once():
    far = 2**63 - 1000
    assert len(mixed().take([far, 0])["label"]) == 2
    assert sum(mixed().counts(far).values()) == far


def test_items_of_whole_rows_are_woven():
    parts = {"a": dataset.of(MemoryCache([3, 1, 2])), "b": dataset.of(MemoryCache([4, 4]))}
    ds = cachelib.mix(parts, {"a": 3, "b": 2}, seed=0, block=1, exhausted="renormalise")
    assert len(ds) == 5
    rows = [row.tolist() for row in ds.take(range(len(ds)))["tokens"]]
    assert sorted(rows) == [[0, 1, 2], [0, 1, 2, 3], [3], [4, 5], [4, 5, 6, 7]]
    assert [row.tolist() for row in ds.take([3, 1])["tokens"]] == [rows[3], rows[1]]
    assert ds.take([])["tokens"].values.dtype == np.uint32


def test_stages():
    ds = cachelib.mix(
        {"web": WEB, "code": CODE, "books": BOOKS},
        stages=[(0, {"web": 3, "code": 1}), (64, {"books": 1, "web": 0}), (80, {"code": 1})],
        seed=0,
        block=16,
    )
    assert ds.counts(64) == {"books": 0, "code": 16, "web": 48}
    assert ds.counts(80) == {"books": 16, "code": 16, "web": 48}
    assert sorted(labels(ds, range(64, 96))) == [
        *range(FAR + 16, FAR + 32),
        *range(2 * FAR, 2 * FAR + 16),
    ]


def test_what_becomes_of_finite_components():
    parts = {"web": WEB, "code": numbered(1, 10).repeat(2)}
    with pytest.raises(ValueError, match="component 'code' has 20 rows and runs out at sample 4"):
        cachelib.mix(parts, HALVES, seed=0)
    assert len(cachelib.mix(parts, HALVES, seed=0, exhausted="stop")) in (40, 41)
    ds = cachelib.mix(parts, HALVES, seed=0, exhausted="renormalise", block=10)
    assert ds.size is None
    assert ds.counts(100) == {"code": 20, "web": 80}
    finite = {"web": numbered(0, 30), "code": numbered(1, 10)}
    assert len(cachelib.mix(finite, HALVES, seed=0, exhausted="renormalise")) == 40


def test_passes_differ_and_go_on_in_what_never_ends():
    parts = {"web": WEB, "code": numbered(1, 20).shuffle(1)}
    once = cachelib.mix(parts, HALVES, seed=0, exhausted="stop", block=4)
    ds = once.repeat()
    size = len(once)
    passes = [labels(ds, range(e * size, (e + 1) * size)) for e in range(3)]
    assert passes[0] == labels(once, range(size))
    web = [label for found in passes for label in found if label < FAR]
    assert sorted(web) == list(range(len(web)))
    codes = [[label for label in found if label >= FAR] for found in passes]
    assert all(sorted(code) == list(range(FAR, FAR + 20)) for code in codes)
    assert len({tuple(code) for code in codes}) == 3


def test_mixtures_of_mixtures():
    inner = mixed(block=1)
    ds = cachelib.mix({"old": inner, "books": BOOKS}, {"old": 3, "books": 1}, seed=0, block=8)
    found = labels(ds, range(80))
    assert sum(label >= 2 * FAR for label in found) == 20
    assert sorted(label for label in found if label < 2 * FAR) == sorted(labels(inner, range(60)))


def test_weights_by_tokens_use_exact_mean_lengths():
    long = dataset.of(MemoryCache([30] * 7))
    short = dataset.of(MemoryCache([1, 2, 0, 5] * 3))
    for a, b in ((long, short), (long.shuffle(0), short.shuffle(0, block=4))):
        ds = cachelib.mix({"a": a.repeat(), "b": b.repeat()}, {"a": 1, "b": 1}, seed=0, by="tokens")
        # 2 tokens a row against 30.
        assert weights_of(ds) == (1, 15)
    short = dataset.of(MemoryCache([18])).windows(4, tail="short").repeat()
    long = dataset.of(MemoryCache([18])).windows(9, tail="short").repeat()
    ds = cachelib.mix({"a": long, "b": short}, {"a": 1, "b": 1}, seed=0, by="tokens")
    assert weights_of(ds) == (2, 5)
    fixed = dataset.of(MemoryCache([30] * 7)).windows(4).repeat()
    ds = cachelib.mix({"a": fixed, "b": fixed}, {"a": 1, "b": 2}, seed=0, by="tokens")
    assert weights_of(ds) == (1, 2)


def test_weights_are_the_numbers_they_are():
    weights = {"web": np.float32(0.1), "code": Fraction(1, 3)}
    exact = Fraction(float(np.float32(0.1))) * 3
    found = weights_of(mixed(weights=weights))
    assert Fraction(found[1], found[0]) == exact
    assert weights_of(mixed(weights={"web": np.int64(3), "code": 1})) == (1, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"web": -1, "code": 1}}, "'web', must be 0 or more, got -1"),
        ({"weights": {"web": float("nan"), "code": 1}}, "'web', must be finite, got nan"),
        ({"weights": {"web": float("inf"), "code": 1}}, "'web', must be finite, got inf"),
        ({"weights": {"web": 0, "code": 0}}, "from sample 0 on are all 0"),
        ({"weights": {"web": 1}}, "component 'code' has no weight in any stage"),
        ({"weights": {**HALVES, "cod": 1}}, "name 'cod', which is no component: .*'code', 'web'"),
        ({"stages": [(0, HALVES)]}, "either weights or stages"),
        ({"weights": None}, "either weights or stages"),
        ({"weights": None, "stages": []}, r"first stage begins at sample 0, got stages at \[\]"),
        ({"weights": None, "stages": [(8, HALVES)]}, r"got stages at \[8\]"),
        ({"weights": None, "stages": [(0, HALVES), (0, HALVES)]}, "got sample 0 after sample 0"),
        ({"weights": None, "stages": [(0, HALVES), (12, HALVES)]}, "block=8 .*12: use 8 or 16"),
        ({"block": 0}, "block must be 1 or more, got 0"),
        ({"exhausted": "first"}, "exhausted must be one of .*, got 'first'"),
        ({"by": "tokens"}, r"by='tokens' is no field of component 'code': \['label'\]"),
        ({"by": "label"}, "by='label' is one value in each row"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        mixed(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"web": True, "code": 1}}, "'web', must be a number, got True"),
        ({"weights": {"web": "1", "code": 1}}, "'web', must be a number, got '1'"),
        ({"weights": [0.5, 0.5]}, "must be numbers by component"),
        ({"seed": 1.0}, "seed must be an integer"),
        ({"block": 8.0}, "block must be an integer"),
        ({"weights": None, "stages": [(0.0, HALVES)]}, "sample at which a stage begins must be"),
    ],
)
def test_refuses_other_types(options, message):
    with pytest.raises(TypeError, match=message):
        mixed(**options)


def test_refuses_components_that_do_not_go_together():
    cache = dataset.of(MemoryCache([4] * 20))
    a, b = cache.windows(4), cache.windows(8)
    for parts, message in (
        ({"a": a, "b": b}, r"'a' and component 'b' .*'tokens' is uint32\[4\] .* uint32\[8\] in"),
        ({"a": a, "b": cache}, "'label' is missing in the first, int64 in the second"),
        ({"a": dataset.of(MemoryCache([])), "b": cache}, "component 'a' is empty"),
        ({}, "datasets by name, at least one"),
        (
            {"a": cachelib.then([(4, a), (4, b)]), "b": a},
            "component 'a' changes its columns at sample 4",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            cachelib.mix(parts, dict.fromkeys(parts, 1), seed=0)
    wrong: list[tuple[Any, str]] = [
        ({"a": a, 1: b}, "names of datasets must be strings, got 1"),
        ({"a": a, "b": [1, 2]}, r"component 'b' must be a dataset or a cache, got \[1, 2\]"),
        ([a, b], "datasets by name"),
    ]
    for bad, message in wrong:
        with pytest.raises(TypeError, match=message):
            cachelib.mix(bad, HALVES, seed=0)


def test_counts_are_of_mixtures_and_inside_them():
    with pytest.raises(TypeError, match="a repeat has no components to count"):
        WEB.counts(0)
    ds = cachelib.mix({"a": numbered(0, 10)}, {"a": 1}, seed=0, exhausted="stop")
    assert ds.counts(10) == {"a": 10}
    for bad in (-1, 11):
        with pytest.raises(IndexError, match=f"{bad} is outside the 10 rows"):
            ds.counts(bad)


def test_pickles():
    again = pickle.loads(pickle.dumps(mixed()))
    assert labels(again, range(20)) == labels(mixed(), range(20))


def test_caches_on_disk(tmp_path):
    write_commit(tmp_path / "a", [[3, 5], [4]], tokenizer="x")
    write_commit(tmp_path / "b", [[2, 2, 2]], tokenizer="x")
    write_commit(tmp_path / "b", [[1]], tokenizer="x")
    write_commit(tmp_path / "c", [[2, 2, 2]], tokenizer="y")
    write_commit(tmp_path / "d", [[2, 2, 2]])
    a, b, c, d = (cachelib.open(tmp_path / name) for name in "abcd")
    ds = cachelib.mix({"a": a, "b": b}, {"a": 1, "b": 1}, seed=0, exhausted="renormalise")
    assert sorted(labels(ds, range(len(ds)))) == [0, 0, 10, 10, 20, 20, 30]
    state = json.loads(json.dumps(ds.loader(2).state_dict()))
    assert state["version"] == {"a": 0, "b": 1}
    pairs: list[tuple[Any, Any]] = [(a, c), (a.windows(2), c.windows(2).shuffle(0).repeat())]
    for mine, other in pairs:
        with pytest.raises(ValueError, match=r"'a' and component 'c' have .* content x and y"):
            cachelib.mix({"a": mine, "c": other}, {"a": 1, "c": 1}, seed=0, exhausted="stop")
    inner = cachelib.mix({"c": c}, {"c": 1}, seed=0, exhausted="stop")
    with pytest.raises(ValueError, match="'a' and component 'b' have tokens of different"):
        cachelib.mix({"a": a, "b": inner}, {"a": 1, "b": 1}, seed=0, exhausted="stop")
    cachelib.mix({"a": a, "d": d}, {"a": 1, "d": 1}, seed=0, exhausted="stop")


def test_caches_of_other_edge_tokens_are_refused(tmp_path):
    none: dict[str, Any] = {"bos": None, "bos_id": None, "eos": None, "eos_id": None}
    marks: dict[str, Any] = {
        "a": none,
        "b": {**none, "eos": "</s>", "eos_id": 2},
        "c": none,
        "d": None,
    }
    for name, edges in marks.items():
        write_commit(tmp_path / name, [[3, 5]], tokenizer="x", edges=edges)
    a, b, c, d = (cachelib.open(tmp_path / name).windows(2) for name in "abcd")
    told = r"'a' and .* 'b' mark the edges .*: no bos, no eos and no bos, eos '</s>' \(id 2\)"
    with pytest.raises(ValueError, match=told):
        cachelib.mix({"a": a, "b": b}, {"a": 1, "b": 1}, seed=0, exhausted="stop")
    with pytest.raises(ValueError, match=told):
        cachelib.concat({"a": a, "b": b})
    with pytest.raises(ValueError, match="stage 0 and stage 1 mark the edges"):
        cachelib.then([(2, a), (None, b)])
    cachelib.concat({"a": a, "c": c, "d": d})


def resumed(ds, state, batch_size=8):
    return ds.loader(batch_size, start=json.loads(json.dumps(state)))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_state_goes_on(steps):
    ds = mixed(weights={"web": 7, "code": 2})
    loader = ds.loader(8)
    drawn(loader, steps)
    again = resumed(ds, loader.state_dict(), batch_size=4)
    assert drawn(again, 8) == labels(ds, range(8 * steps, 8 * steps + 32))


def staged(*stages, **parts):
    return cachelib.mix({"web": WEB, "code": CODE, **parts}, stages=list(stages), seed=0, block=8)


FIRST, SECOND = (0, {"web": 3, "code": 1}), (64, {"web": 1, "code": 1})


def test_a_stage_may_be_appended_at_or_after_the_position_of_a_state():
    loader = staged(FIRST, SECOND).loader(8)
    drawn(loader, 4)
    state = loader.state_dict()
    assert state["samples"] == 32
    for others in ([], [SECOND], [(32, {"code": 1})], [(40, {"books": 1, "web": 1}), (48, HALVES)]):
        parts = {"books": BOOKS} if "books" in str(others) else {}
        ds = staged(FIRST, *others, **parts)
        assert labels(ds, range(32)) == labels(staged(FIRST), range(32))
        assert drawn(resumed(ds, state), 4) == labels(ds, range(32, 64))


def test_a_change_before_the_position_of_a_state_is_refused():
    loader = staged(FIRST, SECOND).loader(8)
    drawn(loader, 9)
    state = loader.state_dict()
    for ds, message in (
        (staged(FIRST), "mix.stages is '#"),
        (staged(FIRST, (56, SECOND[1])), "mix.stages is '#"),
        (staged((0, {"web": 2, "code": 1}), SECOND), "mix.stages is '#"),
        (staged(FIRST, SECOND, (64 + 8, HALVES), (80, FIRST[1])), None),
        (staged(FIRST, SECOND, web=WEB, code=numbered(1, 999).repeat()), "mix[code] is '#"),
        (mixed(weights=FIRST[1], seed=1), "mix.seed is 0 in the state, but 1 here"),
        (mixed(weights=FIRST[1], block=4), "mix.block is 8 in the state, but 4 here"),
        (WEB, "mix.seed is 0 in the state, but missing here"),
    ):
        if message is None:
            resumed(ds, state)
            continue
        with pytest.raises(StateMismatch, match=re.escape(message)):
            resumed(ds, state)


def test_a_position_inside_a_block_counts_as_the_whole_of_it():
    loader = staged(FIRST).loader(4)
    drawn(loader, 9)
    state = loader.state_dict()
    assert state["samples"] == 36
    resumed(staged(FIRST, (40, HALVES)), state, batch_size=4)
    with pytest.raises(StateMismatch, match=r"mix\.stages"):
        resumed(staged(FIRST, (32, HALVES)), state, batch_size=4)


def test_a_finite_mixture_may_be_prolonged_unless_its_last_block_would_change():
    def capped(passes):
        parts = {"web": WEB, "code": numbered(1, 10).repeat(passes)}
        return cachelib.mix(parts, HALVES, seed=0, exhausted="stop", block=8)

    short, long = capped(1), capped(2)
    whole = len(short) // 8 * 8
    assert whole < len(short)
    state = short.loader(whole, start=1).state_dict()
    assert drawn(resumed(long, state), 1) == labels(long, range(whole, whole + 8))
    state = {**state, **short.loader(1, start=whole + 1).state_dict()}
    with pytest.raises(StateMismatch, match=f"mix.rows is {len(short)} in the state, but missing"):
        resumed(long, state)


def test_the_stages_of_a_component_may_go_on_as_well():
    outer = [
        cachelib.mix({"in": inner, "books": BOOKS}, {"in": 1, "books": 1}, seed=0, block=8)
        for inner in (staged(FIRST), staged(FIRST, (16, HALVES)))
    ]
    for steps, fits in ((4, True), (5, False)):
        loader = outer[0].loader(8)
        drawn(loader, steps)
        if fits:
            assert drawn(resumed(outer[1], loader.state_dict()), 1) != drawn(loader, 1)
        else:
            with pytest.raises(StateMismatch, match=r"mix\[in\]"):
                resumed(outer[1], loader.state_dict())


def test_the_order_in_a_state_is_small_for_many_components():
    parts = {f"component {i}": numbered(i).repeat() for i in range(1000)}
    ds = cachelib.mix(parts, dict.fromkeys(parts, 1), seed=0)
    state = ds.loader(512, start=3).state_dict()
    assert len(json.dumps(state["order"])) < 640
    assert state["order"].keys() == {"mix.seed", "mix.block", "mix.stages", "mix.parts"}
    few = mixed().loader(8, start=3).state_dict()
    assert len(json.dumps(few)) < 1024


def test_a_mismatch_names_the_component_whose_version_differs():
    def at(version):
        other = dataset.of(Numbered(1000 + version, FAR, version)).repeat()
        return cachelib.mix({"web": WEB, "code": other}, HALVES, seed=0, block=8)

    state = at(3).loader(8, start=1).state_dict()
    assert state["version"] == {"code": 3, "web": 1}
    with pytest.raises(StateMismatch, match=r"version \{'code': 3\} .* version \{'code': 4\}: "):
        resumed(at(4), state)


def test_refuses_stages_that_are_no_list_of_pairs():
    wrong: list[tuple[Any, str]] = [
        (5, r"stages must be a list of \(sample, weights\) pairs, got 5"),
        (HALVES, r"stages must be a list of \(sample, weights\) pairs, got \{"),
        ([HALVES], r"stage 0 must be a pair \(sample, weights\), got \{"),
        ([(0, HALVES), (8, HALVES, 1)], r"stage 1 must be a pair .*, got \(8, "),
    ]
    for stages, message in wrong:
        with pytest.raises(TypeError, match=message):
            cachelib.mix({"web": WEB, "code": CODE}, seed=0, stages=stages)
