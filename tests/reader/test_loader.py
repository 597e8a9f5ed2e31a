"""The loader: the right rows at every step for every rank, and a state that brings them back."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib import dataset
from cachelib.errors import StateMismatch
from tests.reader.memory import FailingCache, GatedCache, MemoryCache, SimulatedCache

PREFETCH = [0, 1, 4]


def simulated(rows=100, seed=7):
    return dataset.of(SimulatedCache(rows)).shuffle(seed)


def drawn(loader, steps=None):
    """The labels of the next batches, one list a batch."""
    found = []
    for batch in loader:
        found.append(batch["label"].tolist())
        if len(found) == steps:
            break
    return found


def order_of(ds, count):
    return ds.take(range(count))["label"].tolist()


def flat(batches):
    return [label for batch in batches for label in batch]


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("forebay-loader")]


def wait_until(condition):
    """Wait for threads; a condition that never comes true fails instead of hanging."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_delivers_the_order_of_the_dataset(prefetch):
    ds = simulated(100)
    batches = drawn(ds.loader(8, prefetch=prefetch))
    assert [len(b) for b in batches] == [8] * 12
    assert flat(batches) == order_of(ds, 96)
    batches = drawn(ds.loader(8, last="short", prefetch=prefetch))
    assert flat(batches) == order_of(ds, 100)
    assert len(batches[-1]) == 4


@given(
    st.integers(1, 60), st.integers(1, 4), st.sampled_from([1, 2, 3, 4]), st.sampled_from([0, 3])
)
def test_ranks_together_hold_each_batch(rows, each, world, prefetch):
    ds = simulated(rows).repeat()
    ranks = [
        drawn(ds.loader(each * world, dp_rank=r, dp_world=world, prefetch=prefetch), 5)
        for r in range(world)
    ]
    for step in range(5):
        together = flat(rank[step] for rank in ranks)
        assert together == order_of(ds, 5 * each * world)[step * each * world :][: each * world]


@pytest.mark.filterwarnings("ignore:nothing is left")
@pytest.mark.parametrize("prefetch", PREFETCH)
def test_a_process_may_have_the_parts_of_several_ranks(prefetch):
    options = {"dp_world": 4, "micro_batches": 2, "prefetch": prefetch}
    several = simulated(100).loader(16, dp_rank=[3, 1], **options)
    each = [simulated(100).loader(16, dp_rank=rank, **options) for rank in (3, 1)]
    for pieces in several:
        others = [next(loader) for loader in each]
        assert [piece["label"].tolist() for piece in pieces] == [
            flat(other[micro]["label"].tolist() for other in others) for micro in range(2)
        ]
    assert pickle.loads(pickle.dumps(several)).dp_ranks == (3, 1)


def test_batches_run_across_epochs():
    ds = simulated(10).repeat()
    loader = ds.loader(4)
    batches = drawn(loader, 5)
    assert sorted(flat(batches)) == sorted([*range(10)] * 2)
    assert loader.state_dict()["epoch"] == 2
    assert loader.remaining is None


@pytest.mark.filterwarnings("ignore:nothing is left")
@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("stop", [0, 1, 5, 11, 12])
def test_resumes_where_it_stopped(prefetch, stop):
    ds = simulated(100)
    whole = drawn(ds.loader(8))
    loader = ds.loader(8, prefetch=prefetch)
    for _ in range(stop):
        next(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["samples"] == stop * 8
    assert state["step"] == stop
    for resumed in (
        ds.loader(8, start=state, prefetch=prefetch),
        ds.loader(8, start=stop, prefetch=prefetch),
    ):
        assert resumed.state_dict() == state
        assert resumed.remaining == 12 - stop
        assert drawn(resumed) == whole[stop:]
    loader.load_state_dict({**state, "samples": 16, "step": 2})
    assert drawn(loader) == whole[2:]


def test_the_end_and_beyond_hold_no_batch():
    ds = simulated(100)
    loader = ds.loader(8)
    drawn(loader)
    assert drawn(loader) == []
    state = loader.state_dict()
    assert (state["samples"], loader.remaining) == (96, 0)
    for samples in (96, 99, 100, 101, 10**18):
        with pytest.warns(UserWarning, match=f"nothing is left: at sample {samples} .* 100 rows"):
            again = ds.loader(8, start={**state, "samples": samples})
        assert drawn(again) == []
        assert again.remaining == 0
        assert again.state_dict() == {**state, "samples": samples}
    with pytest.warns(UserWarning, match="nothing is left: at sample 96"):
        loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="nothing is left"):
        assert drawn(ds.loader(8, start=12)) == []
    with pytest.raises(ValueError, match=r"start must be a step up to 12, .* 100 rows end, got 13"):
        ds.loader(8, start=13)
    with warnings.catch_warnings(action="error"):
        assert drawn(ds.loader(4, start=state)) == [order_of(ds, 100)[96:]]


def test_skips_batches_without_reading():
    loader = simulated().loader([(0, 8), (16, 4)])
    whole = drawn(loader, 6)
    loader = simulated().loader([(0, 8), (16, 4)])
    loader.skip(3)
    assert (loader.samples, loader.step) == (20, 3)
    assert drawn(loader, 3) == whole[3:]


def test_a_run_may_be_prolonged():
    """A state after the last pass goes on with the next one."""
    once = simulated(100)
    loader = once.loader(10)
    drawn(loader)
    more = once.repeat(2).loader(10, start=loader.state_dict())
    assert flat(drawn(more)) == order_of(once.repeat(), 200)[100:]


def test_batch_size_and_world_may_change_at_a_resume():
    ds = simulated(100).repeat()
    loader = ds.loader(8, dp_rank=1, dp_world=2)
    drawn(loader, 3)
    state = loader.state_dict()
    ranks = [ds.loader(12, dp_rank=r, dp_world=3, start=state) for r in range(3)]
    parts = [drawn(rank, 1)[0] for rank in ranks]
    assert flat(parts) == order_of(ds, 36)[24:]
    assert [rank.state_dict()["samples"] for rank in ranks] == [36] * 3
    assert [rank.state_dict()["step"] for rank in ranks] == [4] * 3


@given(st.lists(st.tuples(st.sampled_from([1, 2, 5, 8]), st.integers(0, 4)), max_size=6))
def test_any_history_of_resumes_serves_the_same_samples(history):
    ds = simulated(13).repeat()
    state: dict | None = None
    served: list[int] = []
    for batch_size, steps in history:
        loader = ds.loader(batch_size, start=state, prefetch=2)
        served += flat(drawn(loader, steps)) if steps else []
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        loader.close()
    assert served == order_of(ds, len(served))


def test_state_counts_what_was_delivered_and_not_what_was_read():
    cache = GatedCache(100)
    cache.gate.set()
    loader = dataset.of(cache).loader(4, prefetch=3)
    next(loader)
    wait_until(lambda: cache.begun == 4)
    assert loader.state_dict()["samples"] == 4
    loader.close()


def test_state_is_small():
    ds = dataset.of(MemoryCache([50] * 100)).windows(8).shuffle(2**64 - 1).repeat()
    state = ds.loader(2**20, start=2**42).state_dict()
    assert len(json.dumps(state)) < 1024
    assert state["version"] == 1
    for seed in range(100):
        ds = dataset.of(MemoryCache([1])).shuffle(seed) if seed == 0 else ds.shuffle(seed)
    assert len(json.dumps(ds.loader(1).state_dict())) < 1024


def test_a_distant_position_is_reached_at_once():
    ds = dataset.of(SimulatedCache(10**13)).shuffle(1)
    started = time.monotonic()
    loader = ds.loader(8, start=10**12)
    assert (
        next(loader)["label"].tolist()
        == ds.take(range(8 * 10**12, 8 * 10**12 + 8))["label"].tolist()
    )
    assert loader.state_dict()["samples"] == 8 * 10**12 + 8
    # Anything that walks there would take hours.
    assert time.monotonic() - started < 10


BASE = MemoryCache([3, 5, 7, 9] * 5)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: dataset.of(BASE).windows(4).shuffle(8), "shuffle.seed is 7 in .*, but 8 here"),
        (lambda: dataset.of(BASE).windows(4).shuffle(7).shuffle(7), "shuffle2.seed is missing"),
        (lambda: dataset.of(BASE).windows(5).shuffle(7), "windows.length is 4 .*, but 5 here"),
        (lambda: dataset.of(BASE).windows(4, stride=2).shuffle(7), "windows.stride is 4 .* 2 here"),
        (lambda: dataset.of(BASE).windows(4), "shuffle.seed is 7 .*, but missing here"),
        (lambda: dataset.of(BASE).shuffle(7), "windows.length is 4 .*, but missing here"),
        (
            lambda: dataset.of(MemoryCache([3, 5, 7, 9] * 6)).windows(4).shuffle(7),
            "windows.elements is 120 in the state, but 144 here; .*cache.rows is 20 .* 24 here",
        ),
        (
            lambda: dataset.of(MemoryCache([3, 5, 7, 9] * 5, content="b")).windows(4).shuffle(7),
            r"order: cache.digest is '\w{32}' in the state, but '\w{32}' here$",
        ),
        (
            lambda: dataset.of(MemoryCache([24] * 5, version=9)).windows(4).shuffle(7),
            "state is of cache version 1 and this is version 9: .* open it with version=1",
        ),
    ],
)
def test_refuses_the_state_of_another_order(other, message):
    state = dataset.of(BASE).windows(4).shuffle(7).loader(2, start=3).state_dict()
    with pytest.raises(StateMismatch, match=message):
        other().loader(2, start=state)
    loader = other().loader(2, start=1)
    before = loader.state_dict()
    with pytest.raises(StateMismatch, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_the_version_of_a_cache_is_information_only():
    """After a compaction rows and content are what they were."""
    state = dataset.of(BASE).shuffle(7).loader(2, start=3).state_dict()
    other = dataset.of(MemoryCache([3, 5, 7, 9] * 5, version=9)).shuffle(7)
    assert other.loader(2, start=state).samples == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 1, found 2"),
        ({"format": None}, "found None"),
        ({"format": True}, "format 1, found True"),
        ({"dataset": {}}, "state was expected, found a description"),
        ({"samples": -1}, "samples .* found -1"),
        ({"samples": 1.0}, "samples .* found 1.0"),
        ({"samples": True}, "samples .* found True"),
        ({"step": "3"}, "step .* found '3'"),
        ({"switched": -1}, "switched .* found -1"),
        ({"switched": None}, "switched .* found None"),
        ({"order": {}}, "missing in the state"),
        ({"order": None}, "order .* found None"),
    ],
)
def test_refuses_what_is_no_state(change, message):
    loader = simulated().loader(2)
    with pytest.raises(StateMismatch, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(StateMismatch):
        loader.load_state_dict({})


def test_refuses_what_is_no_mapping():
    loader = simulated().loader(2)
    state, description = loader.state_dict(), loader.description()
    for bad, message in (
        (None, "found NoneType$"),
        ([], "found list$"),
        (json.dumps(state), r"found str: json.loads makes one of text"),
    ):
        with pytest.raises(StateMismatch, match=f"state is a mapping, {message}"):
            loader.load_state_dict(bad)
        if bad is not None:
            with pytest.raises(StateMismatch, match=f"description is a mapping, {message}"):
                loader.load_state_dict(state, description=bad)
            with pytest.raises(TypeError, match=r"a saved state, which is a mapping: json.loads"):
                simulated().loader(2, start=bad)
    for wrong, kind in (({}, "something else"), (state, "a loader's state")):
        with pytest.raises(StateMismatch, match=f"description was expected, found {kind}"):
            loader.load_state_dict(state, description=wrong)
    with pytest.raises(StateMismatch, match="found a description"):
        loader.load_state_dict(description)
    with pytest.raises(TypeError, match="override must be True or False, got 'yes'"):
        loader.load_state_dict(state, override="yes")


def test_refuses_sizes_that_are_no_stages():
    for bad in ([8, 16], [(0, 8, 1)], ["ab"]):
        with pytest.raises(TypeError, match=r"stages as \(sample, rows\) pairs .* got \["):
            simulated().loader(bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be 1 or more, got 0"),
        ({"batch_size": 4, "dp_world": 3}, "batch_size 4 does not divide among 3 ranks"),
        ({"batch_size": 4, "dp_rank": 2, "dp_world": 2}, "dp_rank must be from 0 to 1, got 2"),
        ({"batch_size": 4, "dp_rank": -1}, "dp_rank must be from 0 to 0, got -1"),
        ({"batch_size": 4, "dp_rank": [0, 2], "dp_world": 2}, r"from 0 to 1, got \[0, 2\]"),
        ({"batch_size": 4, "dp_rank": [1, 1], "dp_world": 2}, r"several different ones, got \[1"),
        ({"batch_size": 4, "dp_rank": []}, r"must be a rank, or several different ones, got \[\]"),
        ({"batch_size": 4, "start": -1}, "got -1"),
        ({"batch_size": 4, "last": "all"}, "got 'all'"),
        ({"batch_size": 4, "prefetch": -1}, "got -1"),
        ({"batch_size": 4, "prefetch": 257}, "prefetch must be from 0 to 256 batches, .* got 257"),
        ({"batch_size": 4, "tell": True}, r"tell must be some of .* in a list, got True"),
        ({"batch_size": 101}, "no batch of 101 in 100 rows"),
        ({"batch_size": 8, "dp_rank": 0, "dp_world": 8, "last": "short"}, "batch has 4 samples"),
        ({"batch_size": 8, "dp_world": 2}, "dp_world=2 needs dp_rank, from 0 to 1"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        simulated(100).loader(**options)


@pytest.mark.parametrize("option", ["batch_size", "dp_rank", "dp_world", "start", "prefetch"])
def test_refuses_what_is_no_integer(option):
    for bad in (1.0, True, "1"):
        with pytest.raises(TypeError, match=f"{option} must be an integer, got {bad!r}"):
            simulated().loader(**{"batch_size": 4, option: bad})
    assert simulated().loader(np.int32(4), start=np.uint8(1)).state_dict()["samples"] == 4


def test_an_evaluation_needs_a_rank_of_several():
    with pytest.raises(ValueError, match="dp_world=2 needs dp_rank"):
        simulated().evaluate(8, dp_world=2)
    assert simulated().evaluate(8).dp_ranks == (0,)


def test_an_empty_dataset_has_no_loader():
    with pytest.raises(ValueError, match="no batch of 1 in 0 rows"):
        simulated(0).loader(1, last="short")


def test_a_short_last_batch_divides_among_ranks():
    ds = simulated(100)
    ranks = [drawn(ds.loader(8, dp_rank=r, dp_world=4, last="short"))[-1] for r in range(4)]
    assert [len(r) for r in ranks] == [1] * 4
    assert flat(ranks) == order_of(ds, 100)[96:]


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_batch_reads_any_step(prefetch):
    ds = simulated(100)
    whole = drawn(ds.loader(8))
    loader = ds.loader(8, prefetch=prefetch, start=5)
    assert [loader.batch(k)["label"].tolist() for k in (7, 0, 11, 5)] == [
        whole[k] for k in (7, 0, 11, 5)
    ]
    assert drawn(loader, 1) == [whole[5]]
    for step in (-1, 12):
        with pytest.raises(IndexError, match=f"step {step} of 100 rows"):
            loader.batch(step)


def test_steps_before_a_resume_are_told_only_where_they_are_known():
    """Batches before the state may have had other sizes."""
    ds = simulated().repeat()
    first = ds.loader(8)
    drawn(first, 10)
    loader = ds.loader(4, start=first.state_dict())
    served = drawn(loader, 3)
    assert [loader.batch(step)["label"].tolist() for step in (10, 11, 12)] == served
    for ask in (loader.batch, loader.span, lambda step: loader.explain(step, 0)):
        for step in (9, 0, -1):
            with pytest.raises(IndexError, match=r"before the state .* \(step 10, sample 80\)"):
                ask(step)
    whole = ds.loader([(0, 8), (80, 4)], start=loader.state_dict())
    assert [whole.span(step) for step in (3, 11)] == [range(24, 32), range(84, 88)]
    with pytest.raises(IndexError, match="no batch at step -1 of an endless dataset"):
        whole.span(-1)


def test_a_pickled_loader_knows_where_its_run_started():
    ds = simulated().repeat()
    loader = ds.loader(4, start=ds.loader(8, start=10).state_dict())
    served = drawn(loader, 3)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(loader))))
    assert [again.batch(step)["label"].tolist() for step in (10, 11, 12)] == served
    assert drawn(again, 1) == drawn(loader, 1)
    with pytest.raises(IndexError, match=r"before the state .* \(step 10, sample 80\)"):
        again.span(9)


def test_a_description_tells_since_when_batches_had_these_sizes():
    ds = simulated().repeat()
    loader = ds.loader(4, start=ds.loader(8, start=10).state_dict())
    description = json.loads(json.dumps(loader.description()))
    assert description["batches"]["start"] == [80, 10]
    drawn(loader, 3)
    assert loader.description() == description
    state = json.loads(json.dumps(loader.state_dict()))

    def resumed(sizes=4, state=state, description=description):
        made = ds.loader(sizes)
        made.load_state_dict(state, description=description)
        return made

    assert [resumed().span(step) for step in (10, 12)] == [range(80, 84), range(88, 92)]
    assert resumed().description() == description  # also of the next leg of the run
    batches = description["batches"]
    for untold in (
        resumed(sizes=2),
        resumed(state={**state, "samples": 96}),
        resumed(description={**description, "batches": {**batches, "start": [84, 14]}}),
        resumed(description={**description, "batches": {**batches, "start": None}}),
        resumed(description={k: v for k, v in description.items() if k != "batches"}),
        resumed(description={**description, "batches": {"sizes": [[0, 4]], "last": "drop"}}),
    ):
        with pytest.raises(IndexError, match=r"before the state .* \(step 13, sample 9[26]\)"):
            untold.span(12)


def test_another_order_has_served_no_steps_before():
    ds = simulated().repeat()
    loader = ds.loader(4, start=ds.loader(8, start=10).state_dict())
    description = loader.description()
    drawn(loader, 3)
    other = dataset.of(SimulatedCache(100)).shuffle(5).repeat().loader(4)
    with pytest.warns(UserWarning, match="in another order"):
        other.load_state_dict(loader.state_dict(), description=description, override=True)
    with pytest.raises(IndexError, match="step 12 lies before step 13, where the run went on"):
        other.span(12)


def test_steps_before_a_switch_are_not_told_of_the_new_order():
    """Also where the batch sizes lead to it, and after the run was saved and resumed again."""
    old, new = simulated(seed=7).repeat(), simulated(seed=8).repeat()
    first = old.loader(8, start=10)
    loader = new.loader(8)
    with pytest.warns(UserWarning, match="in another order"):
        loader.load_state_dict(first.state_dict(), override=True)
    served = drawn(loader, 3)
    state, description = json.loads(json.dumps([loader.state_dict(), loader.description()]))
    assert state["switched"] == 10
    described = new.loader(8)
    described.load_state_dict(state, description=description)
    resumed = [loader, pickle.loads(pickle.dumps(loader)), new.loader(8, start=state), described]
    for again in resumed:
        again.skip(2)
        assert [again.batch(step)["label"].tolist() for step in (10, 11, 12)] == served
        for ask in (again.batch, again.span, lambda step, of=again: of.explain(step, 0)):
            for step in (9, 0, -1):
                with pytest.raises(IndexError, match=f"step {step} lies before step 10, where"):
                    ask(step)
    loader.load_state_dict(new.loader(8, start=5).state_dict())
    assert loader.span(4) == range(32, 40)
    assert "switched" not in loader.state_dict()


@pytest.mark.parametrize("step", [2**61, 2**80])
def test_steps_beyond_all_samples_are_not_there(step):
    for ds, rows in (
        (simulated(), "100 rows"),
        (simulated().repeat(), "an endless dataset, whose"),
    ):
        loader = ds.loader(4)
        for ask in (loader.batch, loader.span, lambda step, of=loader: of.explain(step, 0)):
            with pytest.raises(IndexError, match=f"there is no batch at step {step} of {rows}"):
                ask(step)
    last = 2**61 - 1  # ends with the last sample that is counted
    assert loader.batch(last)["label"].tolist() == ds.take(loader.span(last))["label"].tolist()


def test_steps_and_rows_are_integers():
    loader = simulated().loader(4)
    for bad in (True, 1.0, "1"):
        for ask in (loader.batch, loader.span, lambda step: loader.explain(step, 0)):
            with pytest.raises(TypeError, match=f"step must be an integer, got {bad!r}"):
                ask(bad)
        with pytest.raises(TypeError, match=f"row must be an integer, got {bad!r}"):
            loader.explain(0, bad)


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_an_error_is_raised_at_its_step_and_can_be_tried_again(prefetch):
    cache = FailingCache(40, {9, 30})
    loader = dataset.of(cache).loader(4, prefetch=prefetch)
    assert drawn(loader, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(2):
        with pytest.raises(OSError, match="row 9 cannot be read"):
            next(loader)
        assert loader.state_dict()["samples"] == 8
    cache.bad.clear()
    assert flat(drawn(loader)) == list(range(8, 40))


@pytest.mark.parametrize("submission", [1, 2, 3, 4, 5])
def test_an_interrupt_anywhere_loses_no_batch(monkeypatch, submission):
    """Ctrl-C may come after a batch was taken from the threads and before it was delivered."""
    ds = simulated(100)
    loader = ds.loader(10, prefetch=3)
    submissions = itertools.count(1)
    submit = ThreadPoolExecutor.submit

    def interrupted(pool, *args):
        if next(submissions) == submission:
            raise KeyboardInterrupt
        return submit(pool, *args)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        drawn(loader, 3)
    monkeypatch.undo()
    samples = loader.state_dict()["samples"]
    assert flat(drawn(loader)) == order_of(ds, 100)[samples:]


def test_reads_a_bounded_number_of_batches_ahead():
    cache = GatedCache(1000)
    loader = dataset.of(cache).loader(1, prefetch=3)
    cache.gate.set()
    for step in range(20):
        next(loader)
        assert cache.begun <= step + 1 + 3
    loader.close()


def test_several_batches_are_read_at_once():
    cache = GatedCache(1000)
    loader = dataset.of(cache).loader(1, prefetch=3)
    consumer = threading.Thread(target=next, args=(loader,))
    consumer.start()
    wait_until(lambda: cache.begun == 3)
    cache.gate.set()
    consumer.join()
    loader.close()


def test_nothing_is_read_before_the_first_batch_is_asked_for():
    cache = GatedCache(100)
    dataset.of(cache).loader(4)
    assert cache.begun == 0


@pytest.mark.parametrize("ending", ["close", "with", "forget", "end"])
def test_threads_end(ending):
    gc.collect()
    wait_until(lambda: not loader_threads())
    loader = simulated(100).loader(10)
    next(loader)
    assert loader_threads()
    if ending == "close":
        loader.close()
        loader.close()
    elif ending == "with":
        with loader:
            next(loader)
    elif ending == "end":
        assert len(list(loader)) == 9
    else:
        del loader
    wait_until(lambda: not loader_threads())


def test_goes_on_after_close_and_after_breaking_off():
    ds = simulated(100)
    loader = ds.loader(10)
    found = drawn(loader, 2)
    loader.close()
    found += drawn(loader, 3)
    found += drawn(loader)
    assert flat(found) == order_of(ds, 100)


def test_pickles_with_its_position():
    ds = simulated(100)
    loader = ds.loader(10, dp_rank=1, dp_world=2, last="short", prefetch=2)
    drawn(loader, 3)
    again = pickle.loads(pickle.dumps(loader))
    assert again.state_dict() == loader.state_dict()
    assert drawn(again) == drawn(loader)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_goes_on_after_a_fork():
    ds = simulated(100)
    loader = ds.loader(10)
    next(loader)
    child = os.fork()
    if child == 0:
        right = flat(drawn(loader, 2)) == order_of(ds, 100)[10:30]
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert flat(drawn(loader)) == order_of(ds, 100)[10:]


def test_several_threads_share_one_loader():
    loader = simulated(1000).loader(2)
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.extend(drawn(loader))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(flat(found)) == list(range(1000))
    assert loader.state_dict()["samples"] == 1000


def test_batches_are_columns():
    ds = dataset.of(MemoryCache([3, 5, 7, 9])).windows(4)
    batch = next(ds.loader(2))
    assert list(batch) == ["tokens"]
    assert batch["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batch["tokens"].dtype == np.uint32


def test_micro_batches_are_the_pieces_of_a_rank():
    ds = simulated(100)
    whole = ds.loader(24, dp_rank=1, dp_world=2)
    pieces = ds.loader(24, dp_rank=1, dp_world=2, micro_batches=3)
    for batch, micro in zip(whole, pieces, strict=True):
        assert [len(m["label"]) for m in micro] == [4, 4, 4]
        assert np.concatenate([m["label"] for m in micro]).tolist() == batch["label"].tolist()
    assert pieces.batch(1)[2]["label"].tolist() == whole.batch(1)["label"][8:].tolist()


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_padding_is_counted_by_weight_and_repeats_the_last_row(prefetch):
    ds = simulated(10)
    options = {"dp_world": 2, "last": "pad", "prefetch": prefetch}
    left = list(ds.loader(8, dp_rank=0, **options))
    right = list(ds.loader(8, dp_rank=1, **options))
    assert [b["weight"].tolist() for b in left] == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert [b["weight"].tolist() for b in right] == [[1, 1, 1, 1], [0, 0, 0, 0]]
    order = order_of(ds, 10)
    assert right[1]["label"].tolist() == [order[9]] * 4
    assert left[0]["weight"].dtype == np.float32
    assert "weight" not in next(ds.loader(2))


def test_uneven_batches_are_padded_for_any_world():
    ds = simulated(30)
    for world in (1, 2, 4):
        ranks = [list(ds.loader(5, dp_rank=r, dp_world=world, uneven="pad")) for r in range(world)]
        for step in range(6):
            held = [
                label
                for rank in ranks
                for label, weight in zip(rank[step]["label"], rank[step]["weight"], strict=True)
                if weight
            ]
            assert held == order_of(ds, 30)[5 * step : 5 * step + 5]


def test_a_schedule_of_batch_sizes_keeps_the_order_and_its_place():
    ds = simulated(100)
    stages = [(0, 4), (10, 8), (40, 2)]
    loader = ds.loader(stages, prefetch=2)
    batches = drawn(loader, 12)
    assert [len(b) for b in batches] == [4] * 3 + [8] * 4 + [2] * 5
    assert flat(batches) == order_of(ds, 54)
    state = loader.state_dict()
    assert (state["samples"], state["step"], state["batch_size"]) == (54, 12, 2)
    assert flat(drawn(ds.loader(stages, start=state))) == order_of(ds, 100)[54:]
    assert drawn(ds.loader(stages, start=12), 1) == drawn(ds.loader(stages, start=state), 1)
    assert loader.batch(4)["label"].tolist() == batches[4]
    assert loader.remaining == 23
    again = pickle.loads(pickle.dumps(loader))
    assert flat(drawn(again)) == order_of(ds, 100)[54:]


def test_reads_ahead_no_more_bytes_than_allowed():
    ds = simulated(64)
    loader = ds.loader(4, prefetch=4, prefetch_bytes=1)
    drawn(loader, 5)  # the first ones are asked for before the size of any is known
    assert loader._ahead is not None
    assert len(loader._ahead._reads) == 1
    wide = ds.loader(4, prefetch=4)
    next(wide)
    assert len(wide._ahead._reads) == 4
    loader.close()
    wide.close()


def test_the_time_spent_waiting_is_told():
    loader = simulated(100).loader(8, prefetch=0)
    assert loader.stalled == 0
    next(loader)
    assert 0 < loader.stalled < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 3}, "batch_size 8 does not divide among 1 ranks of 3 micro-batches"),
        ({"prefetch_bytes": -1}, "prefetch_bytes must be 0 or more, got -1"),
        ({"uneven": "drop"}, "uneven must be one of"),
    ],
)
def test_refuses_batches(options, message):
    with pytest.raises(ValueError, match=message):
        simulated(100).loader(8, **options)
