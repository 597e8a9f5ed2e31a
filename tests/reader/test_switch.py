"""Going on in another order: what differs by value, and how many rows repeat or are missed."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cachelib
from cachelib import dataset, switch
from cachelib.errors import StateMismatch
from cachelib.order.fingerprint import fingerprint
from tests.reader.memory import MemoryCache, SimulatedCache
from tests.reader.stored import write_commit

CACHE = SimulatedCache(60)
pytestmark = pytest.mark.filterwarnings("ignore:nothing is left")

ROWS = dataset.of(CACHE)

ORDERS = [
    ROWS,
    ROWS.repeat(),
    ROWS.shuffle(1).repeat(),
    ROWS.shuffle(2).repeat(5),
    ROWS.shuffle(3, block=4, window=3).repeat(),
    ROWS.shuffle(3).slice(7, 50).shuffle(1).repeat(),
    ROWS.repeat(2).shuffle(4),
    cachelib.mix({"a": ROWS.shuffle(1).repeat(), "b": ROWS.repeat()}, {"a": 2, "b": 1}, seed=1),
    cachelib.concat({"a": ROWS.shuffle(6), "b": ROWS.slice(3, 30)}).shuffle(1).repeat(),
    cachelib.mix({"a": ROWS.shuffle(9).repeat(), "c": ROWS.repeat()}, {"a": 1, "c": 3}, seed=2),
]


def saved(loader):
    return json.loads(json.dumps([loader.state_dict(), loader.description()]))


def told(old, new, samples, described=True):
    """The warning of a loader of the new order that goes on where one of the old order stood."""
    state, description = saved(old.loader(1))
    state["samples"] = samples
    state["order"] = fingerprint(old.describe(samples))
    going_on = new.loader(1)
    with pytest.warns(UserWarning, match=f"going on at sample {samples:,} in another") as caught:
        going_on.load_state_dict(
            state, description=description if described else None, override=True
        )
    assert going_on.samples == samples
    (warning,) = [each for each in caught if "nothing is left" not in str(each.message)]
    assert warning.filename == __file__
    return str(warning.message)


@settings(max_examples=200)
@given(st.sampled_from(ORDERS), st.sampled_from(ORDERS), st.integers(0, 400))
def test_counts_what_is_served_again_and_left_out(old, new, samples):
    assume(old.describe(samples) != new.describe(samples))

    def served(ds):
        stop = samples if ds.size is None else min(samples, ds.size)
        return Counter(ds.take(range(stop))["label"].tolist())

    before, planned = served(old), served(new)
    again, missed = (before - planned).total(), (planned - before).total()
    message = told(old, new, samples)
    assert message.endswith(f" {again:,} rows are served once more and {missed:,} once less")


@settings(max_examples=200)
@given(st.sampled_from(ORDERS), st.sampled_from(ORDERS), st.integers(0, 400))
def test_where_it_does_not_count_it_gives_a_true_bound(old, new, samples):
    assume(old.describe(samples) != new.describe(samples))
    exact = [int(n) for n in re.findall(r"(\d+) (?:rows are|once less)", told(old, new, samples))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switch, "COUNTED", -1)
        message = told(old, new, samples)
    bounds = re.search(
        r"at most ([\d,]+) rows .* at most ([\d,]+) once less \(not counted", message
    )
    assert bounds is not None
    assert all(n <= int(most) for n, most in zip(exact, bounds.groups(), strict=True))


def test_a_bound_within_a_pass_is_that_of_the_pass(monkeypatch):
    monkeypatch.setattr(switch, "COUNTED", 9)
    old, new = (ROWS.shuffle(seed).repeat() for seed in (1, 2))
    assert "at most 10 rows" in told(old, new, 10 * 60 + 10)
    assert "at most 5 rows" in told(old, new, 10 * 60 + 55)
    assert "at most 655 rows" in told(old, ROWS.shuffle(1).slice(0, 50).repeat(), 655)


def test_says_that_it_cannot_count():
    windows = dataset.of(MemoryCache([30])).windows(3)
    changed = dataset.of(MemoryCache([30])).windows(5)
    message = "what the 4 samples served so far hold may come again, and what the first 4 of"
    same_rows = "the old order cannot be made again, from its description, over the same rows"
    assert message in told(windows, changed, 4)
    assert same_rows in told(windows, changed, 4)
    assert "there is no description of the old order" in told(windows, changed, 4, described=False)
    parts = {"a": dataset.of(MemoryCache([30])), "b": dataset.of(MemoryCache([30]))}
    joined = cachelib.concat(parts).windows(4)
    assert same_rows in told(joined, windows, 2)
    assert re.search(r"alone, \d rows are served once more", told(joined, joined.shuffle(2), 2))
    staged = cachelib.then([(5, ROWS), (9, ROWS)])
    assert same_rows in told(staged, ROWS, 4)
    assert same_rows in told(
        dataset.of(MemoryCache([30], version=7)), dataset.of(MemoryCache([9])), 1
    )


def test_counts_where_the_cache_has_grown(tmp_path):
    write_commit(tmp_path, [[3, 5, 7]])
    old = cachelib.open(tmp_path).shuffle(1)
    loader = old.loader(1)
    next(loader)
    state, description = saved(loader)
    write_commit(tmp_path, [[2, 2]])
    new = cachelib.open(tmp_path).shuffle(1)
    with pytest.raises(StateMismatch, match="open it with version=0"):
        new.loader(1, start=state)
    first = [ds[0]["label"] for ds in (old, new)]
    changed = 0 if first[0] == first[1] else 1
    with pytest.warns(UserWarning, match=f"{changed} rows are served once more"):
        new.loader(1).load_state_dict(state, description=description, override=True)


def test_an_order_that_is_the_same_needs_no_override(recwarn):
    loader = ROWS.shuffle(1).loader(2, start=3)
    state, description = saved(loader)
    loader.load_state_dict(state, description=description, override=True)
    assert not recwarn.list
    with pytest.raises(StateMismatch, match="format"):
        loader.load_state_dict({}, override=True)


LONG = MemoryCache([3, 5, 7, 9] * 5)


def mismatch(old, new, described=True):
    state, description = saved(old.loader(4, start=1))
    with pytest.raises(StateMismatch) as caught:
        new.loader(4).load_state_dict(state, description=description if described else None)
    return str(caught.value)


def test_with_a_description_a_mismatch_names_values():
    old, new = (
        cachelib.mix(
            {
                "web": dataset.of(LONG).windows(length).shuffle(1).repeat(),
                "code": dataset.of(LONG).windows(length).repeat(),
            },
            {"web": 3, "code": 1},
            seed=1,
            block=4,
        )
        for length in (4, 5)
    )
    blind = mismatch(old, new, False)
    assert re.search(r"mix\[web\] is '#\w{16}' in the state, but", blind)
    assert blind.endswith("load_state_dict(state, description=...) names values for digests")
    found = mismatch(old, new)
    assert "mix[web].windows.length is 4 in the state, but 5 here" in found
    assert "mix[web].windows.stride is 4 in the state, but 5 here" in found
    assert "mix[web].shuffle.rows is 30 in the state, but 24 here" in found
    assert "#" not in found


def test_stages_that_differ_are_shown_whole_on_both_sides():
    """Also those after the position that the state is of."""
    old, new = (
        cachelib.mix(
            {"a": ROWS.repeat(), "b": ROWS.repeat()},
            stages=[(0, {"a": first, "b": 1}), (8, {"b": 1}), (16, {"a": 1})],
            seed=1,
            block=4,
        )
        for first in (2, 3)
    )
    found = mismatch(old, new)
    late = "[8, {'b': 1}], [16, {'a': 1}]]"
    assert f"mix.stages is [[0, {{'a': 2, 'b': 1}}], {late} in its description, but" in found
    assert f"[[0, {{'a': 3, 'b': 1}}], {late} here" in found


def test_a_description_of_another_run_is_not_taken_for_the_state():
    old, other, new = (ROWS.shuffle(seed).shuffle(1) for seed in (1, 2, 3))
    state, _ = saved(old.loader(4))
    _, description = saved(other.loader(4))
    message = "shuffle2.seed is 2 in its description, but 3 here"
    with pytest.raises(StateMismatch, match=message):
        new.loader(4).load_state_dict(state, description=description)
    with pytest.warns(UserWarning, match="cannot be made again, from its description"):
        new.loader(4).load_state_dict(state, description=description, override=True)
