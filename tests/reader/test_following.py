"""Followed caches: served by sealed eras, the same for everybody, and waited for."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import pickle
import random
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelib
from cachelib import aio
from cachelib.cache import Cache
from cachelib.dataset import Dataset
from cachelib.errors import (
    BuilderGone,
    BuildFailed,
    ForebayError,
    NotYetBuilt,
    StateMismatch,
    UnfinishedCache,
)
from cachelib.following import Followed, Patience, Waiting
from cachelib.format.canonical import seal as sealed_json
from cachelib.format.ledger import Ledger
from cachelib.format.shard import publish
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import follow
from cachelib.nodes.base import reach
from tests.cachelib import gaps
from tests.cachelib.helpers import (
    EVERY_KIND,
    append_commit,
    random_columns,
    take,
    write_cache,
    write_shard,
)
from tests.reader import functions_of_rows
from tests.reader.stored import seal, write_commit, write_simulated

Chain = Callable[[Followed], Dataset]

CHAINS: dict[str, Chain] = {
    "rows": lambda cache: cache.dataset(),
    "shuffled rows": lambda cache: cache.shuffle(3),
    "windows": lambda cache: cache.windows(4),
    "shuffled windows": lambda cache: cache.windows(4).shuffle(3),
    "overlapping windows": lambda cache: cache.windows(6, stride=5, documents=True).shuffle(3),
    "targets": lambda cache: cache.windows(4, targets="shifted").shuffle(3),
    "packs": lambda cache: cache.pack(8, seed=3, targets="aligned"),
}


def opened(path: Any, **patience: Any) -> Followed:
    return cachelib.open(path, follow=True, **{"timeout": 30, "stale": 20, **patience})


def impatient(path: Any) -> Followed:
    return opened(path, stale=0.2)


def rows_of(dataset: Dataset, start: int = 0) -> list[Any]:
    """All rows that are there, from one on, as plain values."""
    there = reach(dataset.node)
    assert there is not None
    columns = dataset.take(range(start, there))
    names = sorted(columns)
    return [[np.asarray(columns[name][i]).tolist() for name in names] for i in range(there - start)]


def grow(path: Path, draw: random.Random) -> None:
    """One more commit of a few short rows, sealed or not."""
    write_commit(path, [[draw.randint(0, 9) for _ in range(draw.randint(1, 5))] for _ in "ab"])
    if draw.random() < 0.6:
        seal(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A cache of three eras that is not complete, and one more row that is not sealed."""
    path = tmp_path / "cache"
    for lengths in ([9, 0, 12], [20], [3, 17]):
        write_commit(path, [lengths])
        seal(path)
    write_commit(path, [[30]])
    return path


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(sorted(CHAINS)))
def test_rows_that_were_served_never_move(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str
) -> None:
    """Whenever the cache is opened, and also when it is complete."""
    draw, path = random.Random(seed), tmp_path_factory.mktemp("growing") / "cache"
    grow(path, draw)
    early = opened(path)
    served: list[Any] = []
    for _ in range(draw.randint(1, 5)):
        grow(path, draw)
        early._look()
        mine = rows_of(CHAINS[name](early))
        late = rows_of(CHAINS[name](opened(path)))
        assert mine == late
        assert mine[: len(served)] == served
        served = mine
    seal(path, finished=True)
    early._look()
    whole = rows_of(CHAINS[name](opened(path)))
    assert rows_of(CHAINS[name](early)) == whole
    assert whole[: len(served)] == served
    assert CHAINS[name](early).size == len(whole)


@pytest.mark.parametrize("name", sorted(set(CHAINS) - {"targets", "packs", "overlapping windows"}))
def test_every_row_of_an_era_comes_once_before_the_next_era(path: Path, name: str) -> None:
    cache = opened(path)
    dataset = CHAINS[name](cache)
    rows = dataset.trace(range(reach(dataset.node) or 0))["row"]
    assert sorted(rows.tolist()) == list(range(len(rows)))
    node: Any = dataset.node
    ends = node.cut.ends(node.stored, cache.sealed).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        assert sorted(rows[start:end].tolist()) == list(range(start, end))


def test_a_cache_of_one_era_has_the_order_of_the_whole(tmp_path: Path) -> None:
    write_commit(tmp_path, [[50, 60], [7, 80]])
    seal(tmp_path, finished=True)
    whole = cachelib.open(tmp_path).windows(4).shuffle(5).repeat(2)
    followed = opened(tmp_path).windows(4).shuffle(5).repeat(2)
    np.testing.assert_array_equal(
        whole.take(range(len(whole)))["tokens"], followed.take(range(len(followed)))["tokens"]
    )


def test_no_target_lies_beyond_the_era_of_a_window(tmp_path: Path) -> None:
    """Else a window would have other labels once the next era is there."""
    write_commit(tmp_path, [[8]])
    seal(tmp_path)
    cache = opened(tmp_path)
    before = cache.windows(4, targets="shifted").take([1])["labels"].tolist()
    assert before == [[5, 6, 7, -100]]
    write_commit(tmp_path, [[8]])
    seal(tmp_path, finished=True)
    after = opened(tmp_path).windows(4, targets="shifted").take([1])["labels"].tolist()
    assert after == before


def test_take_reads_all_that_is_committed_and_orders_serve_what_is_sealed(path: Path) -> None:
    cache = opened(path)
    assert len(cache) == 7
    assert list(cache.take([6])["label"]) == [60]
    assert cache.sealed.rows.tolist() == [3, 4, 6]
    assert reach(cache.dataset().node) == 6
    assert cache.provenance([6])[0].source == "numbers"


def test_passes_begin_when_it_is_known_where_the_first_one_ended(path: Path) -> None:
    cache = opened(path)
    loader = cache.windows(4).shuffle(1).repeat().loader(5, prefetch=2)
    for _ in range(3):
        next(loader)
    there = threading.Timer(0.3, seal, (path, True))
    there.start()
    batches = [next(loader) for _ in range(6)]
    there.join()
    size = 91 // 4
    rows = np.concatenate([batch["tokens"][:, 0] for batch in batches])[size - 15 :]
    assert sorted(rows[:size].tolist()) == [4 * i for i in range(size)][: len(rows)]
    again = opened(path).windows(4).shuffle(1).repeat()
    np.testing.assert_array_equal(batches[-1]["tokens"], again.take(range(40, 45))["tokens"])
    assert loader.state_dict()["epoch"] == 2 if size <= 22 else 1


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize(
    ("last", "sizes"), [("drop", [8, 8]), ("short", [8, 8, 3]), ("pad", [8] * 3)]
)
def test_the_last_batch_is_cut_once_the_cache_is_complete(
    tmp_path: Path, last: Any, sizes: list[int], prefetch: int
) -> None:
    write_commit(tmp_path, [[40]])
    seal(tmp_path)
    loader = opened(tmp_path).windows(4).loader(8, last=last, prefetch=prefetch)
    found = [len(next(loader)["tokens"])]
    write_commit(tmp_path, [[36]])
    seal(tmp_path, finished=True)
    found += [len(batch["tokens"]) for batch in loader]
    assert found == sizes
    assert loader.remaining == 0
    with pytest.raises(ValueError, match="does not divide among 2 ranks"):
        opened(tmp_path).windows(4).loader(8, last="short", dp_rank=0, dp_world=2)


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_a_run_goes_on_in_a_cache_that_has_grown(path: Path, name: str) -> None:
    loader = CHAINS[name](opened(path)).loader(2, prefetch=0)
    for _ in range(2):
        next(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    expected = next(loader)
    write_commit(path, [[5, 40]])
    seal(path, finished=True)
    again = CHAINS[name](opened(path)).loader(2, start=state)
    columns = next(again)
    for column, values in expected.items():
        np.testing.assert_array_equal(
            getattr(columns[column], "values", columns[column]), getattr(values, "values", values)
        )
    assert len(json.dumps(state)) < 1024


def test_a_state_waits_for_the_eras_that_it_has_entered(path: Path, tmp_path: Path) -> None:
    """A process that sees the ledger later than the others agrees with them."""
    import shutil

    copy = tmp_path / "copy"
    loader = opened(path).windows(4).shuffle(1).loader(5)
    for _ in range(3):
        next(loader)
    state = loader.state_dict()
    shutil.copytree(path, copy)
    for version in range(4, 7):
        (copy / f"_ledger/{version:020d}.json").rename(copy / f"{version}")
    (copy / "_ledger/head").unlink()
    late = opened(copy)
    assert late.sealed.rows.tolist() == [3, 4]

    def appear() -> None:
        time.sleep(0.2)
        for version in range(4, 7):
            (copy / f"{version}").rename(copy / f"_ledger/{version:020d}.json")

    thread = threading.Thread(target=appear)
    thread.start()
    again = late.windows(4).shuffle(1).loader(5, start=state)
    thread.join()
    assert again.state_dict() == state


def test_a_state_of_other_eras_is_refused_naming_them(path: Path, tmp_path: Path) -> None:
    loader = opened(path).windows(4).shuffle(1).loader(5)
    for _ in range(3):
        next(loader)
    state = loader.state_dict()
    other = tmp_path / "other"
    for lengths in ([9, 0, 12, 20], [3, 17]):
        write_commit(other, [lengths])
        seal(other)
    with pytest.raises(StateMismatch, match=r"eras\.entered is 3 in the state, but 2 here"):
        opened(other).windows(4).shuffle(1).loader(5, start=state)
    with pytest.raises(StateMismatch, match="of a followed cache: open it with follow=True"):
        cachelib.open(path).windows(4).shuffle(1).loader(5, start=state)
    pinned = cachelib.open(path).windows(4).shuffle(1).loader(5).state_dict()
    with pytest.raises(StateMismatch, match="eras"):
        opened(path).windows(4).shuffle(1).loader(5, start={**pinned, "samples": 5, "step": 1})


def test_a_state_is_small_and_fast_also_after_thousands_of_eras(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    write_simulated(tmp_path, shards=5000, rows=64)
    snapshot = ledger.snapshot()
    commit = snapshot.commit
    eras = (64 * np.arange(1, 5001)).tolist()
    cache = opened(tmp_path)
    many = Snapshot.of(commit, snapshot.entries, eras)
    from cachelib.following import _seen

    cache._seen = _seen(None, Cache(Storage.at(tmp_path), snapshot=many))
    dataset = cache.windows(64).shuffle(1)
    assert reach(dataset.node) == 5000 * 64
    loader = dataset.loader(64, prefetch=0)
    loader.skip(4900)
    assert len(json.dumps(loader.state_dict())) < 1024
    names = "abcdefgh"
    parts = {name: dataset.repeat() for name in names}
    mixed = cachelib.mix(parts, dict.fromkeys(names, 1), seed=1).loader(64, prefetch=0)
    mixed.skip(900)
    assert len(json.dumps(mixed.state_dict())) < 1024


def test_workers_and_other_processes_see_the_same(path: Path) -> None:
    dataset = opened(path).windows(4).shuffle(1)
    expected = rows_of(dataset)
    assert rows_of(pickle.loads(pickle.dumps(dataset))) == expected
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(rows_of, (dataset,)) == expected


def test_ranks_agree_whatever_each_has_seen(path: Path) -> None:
    from cachelib.agreement import check_processes

    early = opened(path).windows(4).loader(4, dp_rank=0, dp_world=2)
    write_commit(path, [[9]])
    seal(path)
    late = opened(path).windows(4).loader(4, dp_rank=1, dp_world=2)
    for _ in range(3):
        next(early)
        next(late)
    check_processes([(early.state_dict(), [0]), (late.state_dict(), [1])])


# Waiting


def test_a_builder_that_died_is_named(path: Path) -> None:
    Storage.at(path).write("_status/000000-abc.json", sealed_json({"state": "running", "n": 1}))
    with pytest.raises(
        BuilderGone,
        match=r"waiting .* for sample 1,000 of .*: era 3 is to come after 6 rows in 3 sealed eras, "
        r"7 rows are committed; _status/000000-abc\.json says 'running', unchanged for "
        r".*Its builder is gone: there was no sign of life for stale=0\.2 s",
    ):
        impatient(path).dataset().take([1000])


def test_a_stream_of_which_nothing_comes_is_told_of(path: Path) -> None:
    status = {"state": "running", "seconds": 500.0, "idle": 400.0, "waiting": 3}
    Storage.at(path).write("_status/stream.json", sealed_json(status))
    Storage.at(path).write("_status/stream-1/news.json", sealed_json({"became": "found"}))
    with pytest.raises(
        BuilderGone,
        match=r"3 files were found of which nothing is committed, and nothing was committed for "
        r"400 s, unchanged for",
    ):
        impatient(path).dataset().take([1000])


def test_a_builder_that_shows_life_is_waited_for_until_the_timeout(path: Path) -> None:
    cache = opened(path, stale=0.6, timeout=2)
    ended = threading.Event()

    def live() -> None:
        number = 0
        while not ended.wait(0.1):
            number += 1
            status = sealed_json({"state": "running", "n": number})
            Storage.at(path).write("_status/000000-abc.json", status)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(NotYetBuilt, match="longer than timeout=2") as raised:
            cache.dataset().take([1000])
    finally:
        ended.set()
        thread.join()
    assert not isinstance(raised.value, BuilderGone)


@pytest.mark.parametrize("state", ["ended", "failed"])
def test_a_build_that_ended_without_completing_the_cache_is_named(path: Path, state: str) -> None:
    status = sealed_json({"state": state, "message": "" if state == "ended" else "SourceError: x"})
    Storage.at(path).write("_status/000000-abc.json", status)
    with pytest.raises(
        BuilderGone, match=f"The build {state} and the cache was not marked complete; 1 rows are in"
    ):
        impatient(path).dataset().take([1000])


def test_a_status_of_an_earlier_build_says_nothing_of_one_that_is_known_to_run(path: Path) -> None:
    status = sealed_json({"state": "failed", "message": "BuildFailed: too many"})
    Storage.at(path).write("_status/000000-abc.json", status)
    told: list[Waiting] = []
    runs = Patience(timeout=0.3, stale=0, waiting=told.append, building=lambda: True)
    with pytest.raises(NotYetBuilt, match="a build was started and has no status yet") as raised:
        Followed(Storage.at(path), runs).dataset().take([1000])
    assert not isinstance(raised.value, BuilderGone)
    with pytest.raises(NotYetBuilt, match="a build was started") as raised:
        Followed(Storage.at(path / "none"), runs)
    assert not isinstance(raised.value, BuilderGone)
    ended = Patience(stale=0, building=lambda: len(told) > 1000)
    with pytest.raises(BuilderGone, match="The build failed"):
        Followed(Storage.at(path), ended).dataset().take([1000])


def test_who_waits_hears_of_a_builder_before_it_is_given_up(path: Path) -> None:
    def tell(waiting: Waiting) -> None:
        raise BuildFailed("the build in the background ended")

    with pytest.raises(BuildFailed):
        Followed(Storage.at(path), Patience(stale=0, waiting=tell)).dataset().take([1000])


def test_a_cache_that_nobody_builds_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuilderGone, match=r"for the first commit of .*Nobody builds it"):
        impatient(tmp_path / "none")


def test_what_is_waited_for_is_shown(tmp_path: Path) -> None:
    told: list[Waiting] = []

    def appear() -> None:
        time.sleep(0.2)
        write_commit(tmp_path, [[8]])
        time.sleep(0.2)
        seal(tmp_path)

    thread = threading.Thread(target=appear)
    thread.start()
    cache = opened(tmp_path, waiting=told.append)
    assert cache.windows(4).take([1])["tokens"].tolist() == [[4, 5, 6, 7]]
    thread.join()
    assert {each.wanted for each in told} == {"the first commit", "sample 1"}
    assert "no builder has a status there" in str(told[-1])


def test_closing_a_loader_ends_the_waiting_of_others(path: Path) -> None:
    loader = opened(path).windows(4).loader(1000)
    found: list[BaseException] = []

    def ask() -> None:
        try:
            next(loader)
        except ForebayError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    loader.close()
    thread.join(10)
    assert time.monotonic() - began < 5
    assert "given up" in str(found[0])


def test_what_a_followed_cache_does_not_have_is_refused_in_words(path: Path) -> None:
    cache = opened(path)
    pinned = {name for name in dir(cachelib.open(path, partial=True)) if not name.startswith("_")}
    # `beginnings` would make it one of those whose content is known.
    assert pinned - {"beginnings"} <= set(dir(cache))
    for refused in (
        lambda: cache.split(0.1),
        lambda: cache.where([("label", ">", 3)]),
        lambda: cache.where(any, columns=["label"]),
    ):
        with pytest.raises(ValueError, match="needs a pinned cache: a followed one has windows"):
            refused()
    for index in (0, -1):
        with pytest.raises(TypeError, match=r"no \[i\]: take\(\[i\]\) gives .* dataset\(\)\[i\]"):
            cache[index]
    with pytest.raises(TypeError, match=r"no \[i\]"):
        list(cache)  # type: ignore[call-overload]


def test_an_index_from_an_end_that_is_to_come_is_told(path: Path) -> None:
    windows = opened(path).windows(4)
    for dataset in (windows, windows.shuffle(1), windows.repeat(2)):
        for act in (dataset.take, dataset.trace):
            with pytest.raises(IndexError, match=r"index -1 counts from the end.*once it is comp"):
                act([-1])
        for asked in (dataset.__getitem__, dataset.origins):
            with pytest.raises(IndexError, match=r"index -2 counts from the end"):
                asked(-2)
    with pytest.raises(IndexError, match="outside an endless dataset"):
        windows.repeat().take([-1])


def test_patience_is_checked() -> None:
    for wrong in ({"timeout": -1}, {"stale": "long"}, {"timeout": float("nan")}):
        with pytest.raises(ValueError, match="must be a number of seconds"):
            Patience(**wrong)
    with pytest.raises(TypeError, match="waiting must be a function"):
        Patience(waiting="print")  # type: ignore[arg-type]


# What goes with it


def test_a_component_of_a_mixture_is_waited_for_by_name(path: Path, tmp_path: Path) -> None:
    pinned = tmp_path / "pinned"
    write_commit(pinned, [[4000]])
    told: list[Waiting] = []
    web = opened(path, stale=1.0, waiting=told.append).windows(4).shuffle(0).repeat()
    code = cachelib.open(pinned).windows(4).shuffle(0).repeat()
    mixed = cachelib.mix({"web": web, "code": code}, {"web": 1, "code": 1}, seed=0, block=4)
    loader = mixed.loader(4)
    batches = [next(loader) for _ in range(7)]
    with pytest.raises(BuilderGone, match="of 'web' "):
        next(loader)
    assert told[-1].through == "web"
    state = loader.state_dict()
    seal(path, finished=True)
    batches += [next(loader) for _ in range(20)]
    parts = {"web": opened(path).windows(4).shuffle(0).repeat(), "code": code}
    again = cachelib.mix(parts, {"web": 1, "code": 1}, seed=0, block=4)
    for number, batch in enumerate(again.loader(4)):
        if number == len(batches):
            break
        np.testing.assert_array_equal(batch["tokens"], batches[number]["tokens"])
    assert again.loader(4, start=state).step == 7


def test_rules_that_need_lengths_need_a_pinned_cache(path: Path) -> None:
    web = opened(path).windows(4).shuffle(0)
    for part in (web, web.repeat(4)):
        with pytest.raises(ValueError, match=r"'web' is of a followed cache.*let it repeat"):
            cachelib.mix({"web": part}, {"web": 1}, seed=0)
    rows = opened(path).dataset().repeat()
    with pytest.raises(ValueError, match="mean length of rows of a followed cache is not known"):
        cachelib.mix({"web": rows}, {"web": 1}, by="tokens", seed=0)
    cachelib.mix({"web": web.repeat()}, {"web": 1}, by="tokens", seed=0)  # all of one length


@pytest.mark.parametrize(
    "make",
    [
        lambda cache: cache.dataset().split(0.1),
        lambda cache: cache.dataset().where([("label", ">", 3)]),
        lambda cache: cache.dataset().slice(0, 2),
        lambda cache: cache.dataset().evaluate(2),
        lambda cache: cache.windows(4).blocks(4),
        lambda cache: cache.windows(4).shuffle(0, block=4),
        lambda cache: cache.windows(4, tail="short"),
        lambda cache: cache.windows(4).windows(4),
        lambda cache: cache.shuffle(0).windows(4),
        lambda cache: cache.shuffle(0).shuffle(0),
        lambda cache: cache.pack(8).shuffle(0),
        lambda cache: cache.windows(4).pack(8),
        lambda cache: cache.windows(4).repeat().shuffle(0),
        lambda cache: cache.dataset().repeat().repeat(),
        lambda cache: cachelib.concat({"a": cache}),
        lambda cache: cachelib.then([(4, cache.windows(4))]),
    ],
)
def test_what_cannot_be_followed_is_refused(path: Path, make: Any) -> None:
    with pytest.raises(ValueError, match=r"version|first|seed|endless|once"):
        make(opened(path))


def test_a_field_that_is_not_there_is_told_at_once(path: Path) -> None:
    cache = opened(path)
    with pytest.raises(KeyError):
        cache.windows(4, field="none")
    with pytest.raises(ValueError, match="not ragged"):
        cache.windows(4, field="label")
    with pytest.raises(ValueError, match="no column"):
        cache.pack(8, pad_id={"none": 1})


def test_rows_are_mapped_as_they_come(path: Path) -> None:
    mapped = opened(path).shuffle(2).map(functions_of_rows.doubled, seed=1)
    expected = opened(path).shuffle(2)
    count = reach(mapped.node)
    assert count == reach(expected.node)
    np.testing.assert_array_equal(
        mapped.take(range(count or 0))["label"], 2 * expected.take(range(count or 0))["label"]
    )


def test_plans_of_packs_are_kept_era_by_era(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    first = opened(path).pack(8, seed=1, plan=folder)
    expected = rows_of(first)
    assert len(list(folder.iterdir())) == 3
    again = opened(path).pack(8, seed=1, plan=folder)
    assert rows_of(again) == expected
    with pytest.raises(StateMismatch, match="seed"):
        reach(opened(path).pack(8, seed=2, plan=folder).node)


def test_a_description_makes_the_dataset_again(path: Path) -> None:
    loader = opened(path).windows(4, documents=True).shuffle(1).repeat().loader(5)
    description = json.loads(json.dumps(loader.description()))
    for _ in range(3):
        next(loader)
    write_commit(path, [[9]])
    seal(path)
    again = cachelib.rebuild(description)
    np.testing.assert_array_equal(again.take(range(10, 15))["tokens"], loader.batch(2)["tokens"])
    other = opened(path).windows(5).shuffle(1).repeat().loader(5)
    with pytest.raises(StateMismatch, match=r"windows\.length is 4 in the state, but 5 here"):
        other.load_state_dict(loader.state_dict(), description=description)
    assert again.loader(5, start=loader.state_dict()).explain(0, 0)


def test_the_asynchronous_face_tells_how_far_it_is(path: Path) -> None:
    face = aio.dataset(opened(path).windows(4))
    endless = aio.dataset(opened(path).windows(4).repeat())
    assert (face.is_finite(), endless.is_finite()) == (True, False)
    assert asyncio.run(face.current_len()) == 61 // 4
    assert asyncio.run(endless.current_len()) == 61 // 4
    assert not asyncio.run(face.final_length_is_known())

    async def wait() -> int:
        waiting = asyncio.create_task(face.wait_until_len_at_least(20))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(seal, path, True)
        return await waiting

    assert asyncio.run(wait()) == 91 // 4
    assert asyncio.run(face.final_length_is_known())
    assert asyncio.run(face.async_len()) == 91 // 4


# Deletions and compactions


@pytest.fixture
def gapped(tmp_path: Path) -> tuple[Storage, Any]:
    """A cache of every kind of field in two eras, and its columns."""
    columns = random_columns(EVERY_KIND, [5] * 12, seed=1)
    storage = write_cache(tmp_path / "gapped", EVERY_KIND, take(columns, slice(0, 6)), [[3, 3]])
    seal(tmp_path / "gapped")
    manifest = write_shard(storage, EVERY_KIND, "more", take(columns, slice(6, 12)))
    append_commit(storage, EVERY_KIND, [publish(storage, manifest)])
    seal(tmp_path / "gapped")
    return storage, columns


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_rows_deleted_before_are_left_out_and_compactions_change_nothing(
    gapped: tuple[Storage, Any], name: str, tmp_path: Path
) -> None:
    storage, columns = gapped
    gaps.delete(storage, [0, 4, 5, 6, 11], columns)
    kept = np.setdiff1d(np.arange(12), [0, 4, 5, 6, 11])
    other = tmp_path / "other"
    storage_of_kept = write_cache(other, EVERY_KIND, take(columns, kept[:3]), [[3]])
    seal(other)
    manifest = write_shard(storage_of_kept, EVERY_KIND, "more", take(columns, kept[3:]))
    append_commit(storage_of_kept, EVERY_KIND, [publish(storage_of_kept, manifest)])
    seal(other)
    cache, expected = opened(storage.url), opened(other)
    assert cache.sealed.rows.tolist() == expected.sealed.rows.tolist() == [3, 7]
    assert cache.sealed.digests == expected.sealed.digests
    found = CHAINS[name](cache)
    loader = found.loader(2, prefetch=0)
    next(loader)
    assert repr(rows_of(found)) == repr(rows_of(CHAINS[name](expected)))
    gaps.compact(storage, 0, 2, "packed", columns)
    cache._look()
    assert cache.version == 5
    assert repr(rows_of(found)) == repr(rows_of(CHAINS[name](expected)))
    next(CHAINS[name](opened(storage.url)).loader(2, start=loader.state_dict()))


def test_rows_that_are_deleted_while_they_are_followed_are_told(
    gapped: tuple[Storage, Any],
) -> None:
    storage, columns = gapped
    cache = opened(storage.url)
    loader = cache.windows(4).loader(2)
    next(loader)
    gaps.delete(storage, [7], columns)
    with pytest.raises(StateMismatch, match="deleted between versions 3 and 4"):
        cache._look()
    opened(storage.url).windows(4).loader(2, start=loader.state_dict())  # of the first era alone
    gaps.delete(storage, [1], columns)
    with pytest.raises(StateMismatch, match=r"eras\.rows is 6 in the state, but 5 here"):
        opened(storage.url).windows(4).loader(2, start=loader.state_dict())


# Opening the middle of a build


def commit_of_a_plan(path: Path, wave: int, waves: int) -> None:
    ledger = Ledger(Storage.at(path))
    parent = ledger.snapshot()
    task = {"plan": "000000-abc", "wave": wave, "waves": waves}
    commit = follow(ledger, parent, operation="append", task=task, schema=parent.commit.schema,
                    identity={})  # fmt: skip
    ledger.append(commit)


def test_the_middle_of_a_build_is_an_error_that_says_how_to_read_it(path: Path) -> None:
    commit_of_a_plan(path, 0, 3)
    with pytest.raises(UnfinishedCache, match=r"1 of 3 waves .*follow=True.*partial=True"):
        cachelib.open(path)
    newest = cachelib.open(path, partial=True).version
    assert cachelib.open(path, version=newest).version == newest
    assert opened(path).version == newest
    commit_of_a_plan(path, 1, 3)
    commit_of_a_plan(path, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cachelib.open(path).version == newest + 2
    with pytest.raises(ValueError, match="not pinned to a version"):
        cachelib.open(path, version=1, follow=True)  # type: ignore[call-overload]


def test_growth_is_read_by_the_commits_that_are_new(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened(path)
    before = Ledger(Storage.at(path)).snapshot()
    for _ in range(70):  # over a checkpoint
        write_commit(path, [[1]])
    seal(path)
    read: list[str] = []
    plain = Storage.read_many

    def counted(self: Storage, keys: Any) -> Any:
        keys = list(keys)
        read.extend(keys)
        return plain(self, keys)

    monkeypatch.setattr(Storage, "read_many", counted)
    cache._look()
    assert len(set(read)) <= 71 + 8
    grown = Ledger(Storage.at(path)).snapshot()
    assert cache.snapshot.commit.digest == grown.commit.digest
    assert cache.snapshot.eras.tolist() == grown.eras.tolist()
    assert cache.sealed.digests[-1] == str(grown.digest)
    read.clear()
    cache._look()
    assert len(read) == 1
    assert Ledger(Storage.at(path)).grown(before).version == grown.version


def test_a_followed_cache_ends_where_it_was_first_complete(path: Path) -> None:
    cache = opened(path)
    seal(path, finished=True)
    write_commit(path, [[9, 9]])
    seal(path)
    cache._look()
    assert cache.finished
    assert len(cache) == 7
    assert not opened(path).finished
