"""Gc on stored caches: what is kept, what goes, and who may be killed, late or at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
import pipelines
from cachelib.commands.history import missing_objects
from cachelib.errors import (
    AttemptRetired,
    BuildFailed,
    CacheNotFound,
    LedgerConflict,
    SnapshotExpired,
)
from cachelib.format.commit import commit_key
from cachelib.format.ledger import Ledger
from cachelib.format.pins import pinned, unpin
from cachelib.format.shard import publish
from cachelib.format.storage import Storage
from cachelib.format.succession import follow
from cachelib.verification import garbage, verify
from pipelines import tasks as build_tasks
from pipelines.entry import main
from pipelines.maintenance import gc as module
from pipelines.maintenance import tasks
from pipelines.maintenance.changes import Compaction
from pipelines.maintenance.gc import Collected, gc
from pipelines.maintenance.removal import delete_attempts
from pipelines.maintenance.tasks import Job
from pipelines.plan import shard_id
from tests.cachelib.gaps import compact, delete
from tests.cachelib.helpers import (
    EVERY_KIND,
    Columns,
    append_commit,
    assert_equal,
    random_columns,
    take,
    write_cache,
    write_shard,
)
from tests.maintenance.stored import stored
from tests.pipelines.conftest import sentences, tokenizer, write_jsonl

__all__ = ["tokenizer"]

LENGTHS = [2, 3, 1, 0, 4, 2, 2, 1]


@pytest.fixture
def columns() -> Columns:
    return random_columns(EVERY_KIND, LENGTHS, seed=1)


@pytest.fixture
def changed(tmp_path: Path, columns: Columns) -> Path:
    """Versions 0 and 1 append, 2 deletes rows 1 and 4, 3 compacts the first three shards."""
    path = tmp_path / "cache"
    storage = write_cache(path, EVERY_KIND, columns, [[3, 0, 3], [2]], rejects=["bad"])
    delete(storage, [1, 4], columns)
    compact(storage, 0, 3, "packed", columns)
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes without a pipeline, which is tested once and takes a second each time."""

    def run(storage: Storage, attempts: list[tuple[str, str]], *_: Any) -> None:
        delete_attempts(storage.url, attempts)

    monkeypatch.setattr(module, "_run", run)


def files(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}


def is_sound(path: Path, columns: Columns) -> None:
    assert [str(problem) for problem in verify(Storage.at(path))] == []
    cache = cachelib.open(path)
    rows = np.array([0, 2, 3, 5, 6, 7])
    assert_equal(cache.take(rows), take(columns, rows))


def settle(path: Path) -> Collected:
    return gc(path, keep=1, younger=0)


def test_what_only_old_versions_need_is_deleted(changed: Path, columns: Columns) -> None:
    before = files(changed)
    told = gc(changed, keep=1, younger=0, dry_run=True)
    assert files(changed) == before
    assert (told.dry_run, told.version, told.expired) == (True, 3, ((0, 3),))
    done = settle(changed)
    assert done == replace(told, dry_run=False, version=4)
    assert (done.attempts, done.newly_expired, done.kept) == (3, 3, 3)
    assert {f for f in before - files(changed) if not f.startswith("shards/0-")} == set()
    assert not list(changed.glob("shards/0-*"))
    is_sound(changed, columns)
    again = settle(changed)
    assert (again.version, again.attempts, again.newly_expired) == (4, 0, 0)


def test_rejects_and_failures_are_deleted_too(tmp_path: Path, columns: Columns, here: None) -> None:
    storage = write_cache(tmp_path, EVERY_KIND, columns, [[8]], rejects=["a secret"])
    storage.write("_status/x.failure.json", b"a secret")
    compact(storage, 0, 1, "packed", columns)
    settle(tmp_path)
    left = [file for file in files(tmp_path) if b"a secret" in (tmp_path / file).read_bytes()]
    assert [file.split("/")[0] for file in left] == ["_ledger"]  # the reason, which is counted


def test_versions_that_newer_ones_take_nothing_from_do_not_expire(
    tmp_path: Path, columns: Columns, here: None
) -> None:
    storage = write_cache(tmp_path, EVERY_KIND, columns, [[3], [3], [2]])
    assert gc(tmp_path, keep=1, younger=0).version == 2
    compact(storage, 0, 2, "packed", columns)
    append_commit(storage, EVERY_KIND, [])
    compact(storage, 1, 2, "more", columns)
    found = settle(tmp_path)
    assert found.expired == ((0, 5),)  # the first shards until 3, the third one from 2 to 5
    assert len(cachelib.open(tmp_path, 5)) == 8


def test_young_versions_are_kept(changed: Path, here: None) -> None:
    assert gc(changed, keep=1).version == 3
    old = time.time() - 3600
    for version in range(3):
        os.utime(changed / commit_key(version), (old, old))
    assert gc(changed, keep=1, younger=7200).expired == ()
    assert gc(changed, keep=1, younger=1800).expired == ((0, 3),)


def test_the_newest_versions_are_kept_whatever_gcs_add(
    changed: Path, columns: Columns, here: None
) -> None:
    assert gc(changed, keep=2, younger=0).expired == ()
    compact(Storage.at(changed), 0, 2, "all", columns)
    assert gc(changed, keep=2, younger=0).expired == ((0, 3),)
    found = gc(changed, keep=2, younger=0)
    assert (found.version, found.expired, found.kept) == (5, ((0, 3),), 3)
    assert gc(changed, keep=1, younger=0).expired == ((0, 4),)
    newest = Ledger(Storage.at(changed)).snapshot().commit
    assert newest.collected is not None
    assert newest.collected["expired"] == [[0, 3, 5], [3, 4, 6]]


# Readers


def test_an_expired_version_is_refused_by_name(changed: Path, here: None) -> None:
    old = cachelib.open(changed, 1)
    settle(changed)
    said = r"version 1 has expired: commit 4 \(retire\)"
    with pytest.raises(SnapshotExpired, match=said):
        cachelib.open(changed, 1)
    with pytest.raises(SnapshotExpired, match=said):
        old.take([0])
    with pytest.raises(SnapshotExpired, match=said):
        old.provenance([0])
    with pytest.raises(SnapshotExpired, match=said):
        old.at(1)
    with pytest.raises(SnapshotExpired, match=said):
        list(verify(Storage.at(changed), 1))
    assert len(cachelib.open(changed, 3)) == len(LENGTHS)
    with pytest.raises(CacheNotFound):
        cachelib.open(changed, 17)


def test_an_old_hint_hides_nothing_for_long(changed: Path, here: None) -> None:
    settle(changed)
    (changed / "_ledger/head").write_bytes(b"1")
    cache = cachelib.open(changed, 1)
    with pytest.raises(SnapshotExpired, match="version 1 has expired: commit 4"):
        cache.take([0])
    with pytest.raises(SnapshotExpired):
        cachelib.open(changed, 1, pin="run17")
    assert not (changed / "_refs/run17.json").exists()


def test_a_pinned_version_stays_readable(changed: Path, columns: Columns, here: None) -> None:
    assert cachelib.open(changed, 1, pin="run17").version == 1
    found = settle(changed)
    # Version 2 needs the same arrays: what a pin keeps, others may read as well.
    assert (found.expired, found.pins, found.broken) == ((), {"run17": 1}, ())
    cache = cachelib.open(changed, pin="run17")
    assert_equal(cache.take(range(8)), columns)
    assert missing_objects(cache)[1] == []
    is_sound(changed, columns)
    unpin(Storage.at(changed), "run17")
    assert settle(changed).expired == ((0, 3),)
    with pytest.raises(SnapshotExpired):
        cachelib.open(changed, 1)


def test_a_version_that_is_pinned_while_a_gc_commits_is_kept(
    changed: Path, columns: Columns, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pin is stored after the gc has looked for pins, and has seen no retire commit yet."""
    give_up = module._give_up
    pins = iter(["late"])

    def pin_first(ledger: Ledger, *rest: Any) -> None:
        for name in pins:
            pinned(ledger.storage, name, 0)
        give_up(ledger, *rest)

    monkeypatch.setattr(module, "_give_up", pin_first)
    found = settle(changed)
    assert found.pins == {"late": 0}
    assert found.broken == ()
    cache = cachelib.open(changed, pin="late")
    assert_equal(cache.take(range(6)), take(columns, slice(0, 6)))


def test_a_pin_of_an_expired_version_is_refused(changed: Path, here: None) -> None:
    settle(changed)
    with pytest.raises(SnapshotExpired):
        cachelib.open(changed, 0, pin="late")
    assert not (changed / "_refs/late.json").exists()
    newest = Ledger(Storage.at(changed)).commit(0)
    Storage.at(changed).put_json("_refs/by-hand.json", {"version": 0, "digest": newest.digest})
    assert settle(changed).broken == ("by-hand",)


# Gcs that are killed, or run at once


@pytest.mark.parametrize("moment", ["before", "manifest", "middle"])
def test_a_gc_that_was_killed_is_ended_by_the_next(
    changed: Path, columns: Columns, moment: str, monkeypatch: pytest.MonkeyPatch, here: None
) -> None:
    def killed(storage: Storage, attempts: list[tuple[str, str]], *_: Any) -> None:
        shard, attempt = attempts[-1]
        if moment != "before":
            storage.delete(f"shards/{shard}/manifest.json")
        if moment == "middle":
            storage.delete(f"shards/{shard}/{attempt}/zarr.json")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_run", killed)
        with pytest.raises(KeyboardInterrupt):
            settle(changed)
    is_sound(changed, columns)
    with pytest.raises(SnapshotExpired):
        cachelib.open(changed, 1)
    # Also by one that would have kept more.
    found = gc(changed)
    assert (found.version, found.attempts, found.expired) == (4, 3, ((0, 3),))
    assert not list(changed.glob("shards/0-*"))
    is_sound(changed, columns)


def test_a_pin_of_what_a_killed_gc_has_not_deleted_is_respected(
    changed: Path, columns: Columns, monkeypatch: pytest.MonkeyPatch, here: None
) -> None:
    """The pin was made in time, but nobody lived to see it: its rows are whole, so it counts."""
    value = {"version": 0, "digest": Ledger(Storage.at(changed)).commit(0).digest}

    def killed(storage: Storage, *_: Any) -> None:
        storage.put_json("_refs/late.json", value)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_run", killed)
        with pytest.raises(KeyboardInterrupt):
            settle(changed)
    assert settle(changed).broken == ()
    cache = cachelib.open(changed, pin="late")
    assert_equal(cache.take(range(6)), take(columns, slice(0, 6)))


@pytest.mark.parametrize("keep", [1, 10])
def test_two_gcs_at_once(
    changed: Path, columns: Columns, keep: int, monkeypatch: pytest.MonkeyPatch, here: None
) -> None:
    """One does all its work between the other's look and its commit, or before its deletes."""
    for name in ("_give_up", "_run"):
        path = Path(shutil.copytree(changed, changed.parent / name))
        own: Callable[..., None] = getattr(module, name)
        others = iter([keep])

        def interrupted(
            *arguments: Any,
            path: Path = path,
            own: Callable[..., None] = own,
            others: Any = others,
        ) -> None:
            for each in others:
                gc(path, keep=each, younger=0)
            own(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            settle(path)
        is_sound(path, columns)
        assert not list(path.glob("shards/0-*"))
        assert cachelib.open(path).version == 4


def test_a_commit_of_another_writer_comes_first(
    changed: Path, columns: Columns, monkeypatch: pytest.MonkeyPatch, here: None
) -> None:
    storage = Storage.at(changed)
    give_up = module._give_up
    more = iter([0])

    def late(*arguments: Any) -> None:
        for _ in more:
            delete(storage, [7], columns)
        give_up(*arguments)

    monkeypatch.setattr(module, "_give_up", late)
    found = settle(changed)
    assert (found.version, found.kept, found.expired) == (5, 4, ((0, 3),))
    assert cachelib.open(changed, 3).take([7])


# Writers


def test_what_nobody_named_is_deleted_once_it_is_old(changed: Path, here: None) -> None:
    storage = Storage.at(changed)
    columns = random_columns(EVERY_KIND, [1, 2], seed=2)
    publish(storage, write_shard(storage, EVERY_KIND, "left-behind", columns))
    write_shard(storage, EVERY_KIND, "1-0", columns)  # a zombie beside what counts
    write_shard(storage, EVERY_KIND, "unpublished", columns)
    (changed / "shards/unpublished/manifest.json.__0123456789abcdef.__lock").write_bytes(b"x")
    assert garbage(storage) == 3
    before = files(changed)
    found = gc(changed, keep=10)
    assert (found.attempts, found.waiting, found.version) == (0, 3, 3)
    assert files(changed) == before
    old = time.time() - 8 * 24 * 3600
    for file in changed.rglob("*"):
        os.utime(file, (old, old))
    found = gc(changed, keep=10)
    assert (found.attempts, found.waiting, found.version) == (3, 0, 4)
    assert found.expired == ()
    assert {name.split("/")[1] for name in before - files(changed)} == {
        "left-behind", "1-0", "unpublished",
    }  # fmt: skip
    assert garbage(storage) == 0
    assert [str(problem) for problem in verify(storage)] == []


def test_what_was_given_up_cannot_be_committed(changed: Path, here: None) -> None:
    storage = Storage.at(changed)
    ledger = Ledger(storage)
    columns = random_columns(EVERY_KIND, [1, 2], seed=2)
    manifest = publish(storage, write_shard(storage, EVERY_KIND, "asleep", columns))
    settle(changed)
    parent = ledger.snapshot()
    commit = follow(
        ledger, parent, operation="append", task={}, schema=EVERY_KIND, identity={},
        manifests=[manifest],
    )  # fmt: skip
    with pytest.raises(AttemptRetired, match="of shard asleep"):
        ledger.append(commit)
    # Nor after it was published once more, as by a writer that was stopped before it did.
    publish(storage, manifest)
    assert settle(changed).attempts == 1
    assert not (changed / "shards/asleep").exists()
    # Written anew it can.
    again = publish(storage, write_shard(storage, EVERY_KIND, "asleep", columns))
    append_commit(storage, EVERY_KIND, [again])
    settle(changed)
    assert len(cachelib.open(changed)) == len(LENGTHS) + 2


def test_what_was_given_up_stays_so_through_many_gcs(
    tmp_path: Path, columns: Columns, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachelib.format.succession.RETIREMENTS", 3)
    storage = write_cache(tmp_path, EVERY_KIND, columns, [[8]])
    for number in range(8):
        compact(storage, 0, 1, f"packed-{number}", columns)
        settle(tmp_path)
    newest = Ledger(storage).snapshot().commit
    assert newest.collected is not None
    assert len(newest.collected["attempts"]) <= 3
    shards = {shard for shard, _ in Ledger(storage).retired_attempts(newest.collected)}
    assert shards == {"0-0", *(f"packed-{number}" for number in range(7))}
    assert [str(problem) for problem in verify(storage)] == []


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number, name in enumerate("abc"):
        write_jsonl(folder / f"{name}.jsonl", sentences(60, number), first=100 * number)
    return folder


@pytest.fixture
def options(sources: Path, tokenizer: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "inputs": [str(sources)],
        "tokenizer": tokenizer,
        "to": str(tmp_path / "cache"),
        "split_bytes": 2048,
        "workers": 1,
    }


def stop_at(wave: int, patch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """A build that stops when all is written, and waves below this one are committed."""
    commit_wave = build_tasks.commit_wave

    def stop(storage: Storage, plan: Any, name: str, number: int, *rest: Any) -> Any:
        if number == wave:
            raise LedgerConflict("stopped by the test")
        return commit_wave(storage, plan, name, number, *rest)

    patch.setattr(build_tasks, "commit_wave", stop)
    with pytest.raises(LedgerConflict, match="stopped by the test"):
        pipelines.build(**options)


def test_a_plan_in_progress_keeps_what_it_has_written(
    options: dict[str, Any], here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(options["to"])
    with monkeypatch.context() as patch:
        stop_at(2, patch, options)
    (plan,) = (file.stem for file in (path / "_plans").iterdir())
    split = build_tasks.load_plan(Storage.at(path).url, plan).splits_of(range(2, 3))[0]
    shard = shard_id(plan, split, 0)
    (path / f"shards/{shard}/manifest.json").unlink()  # as if it were being written
    before = files(path)
    pipelines.delete(path, rows=[(0, 1)])
    pipelines.compact(path)
    found = settle(path)
    assert found.waiting > 0
    assert {f for f in before - files(path) if shard in f} == set()
    summary = pipelines.build(**options)
    assert summary.earlier_tokens > 0
    assert len(list((path / "_plans").iterdir())) == 1
    assert settle(path).waiting == 0
    assert [str(problem) for problem in verify(Storage.at(path))] == []


def test_a_plan_that_nobody_can_go_on_with_keeps_nothing(
    options: dict[str, Any], sources: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(options["to"])
    with monkeypatch.context() as patch:
        stop_at(2, patch, options)
    inputs = [str(sources / "a.jsonl"), str(sources / "b.jsonl")]
    one = {**options, "inputs": inputs, "split_bytes": 4096}
    pipelines.build(**one)  # goes on by another plan
    rows = len(cachelib.open(path))
    found = settle(path)
    assert found.attempts > 5
    assert found.waiting == 0
    assert garbage(Storage.at(path)) == 0
    pipelines.build(**options)
    assert len(cachelib.open(path)) == 180 > rows
    assert [str(problem) for problem in verify(Storage.at(path))] == []


def test_a_builder_whose_parts_were_given_up_writes_them_anew(
    options: dict[str, Any], here: None, monkeypatch: pytest.MonkeyPatch, sources: Path
) -> None:
    """It read their manifests, slept, and commits when they are gone."""
    path = Path(options["to"])
    commit_wave = build_tasks.commit_wave
    given_up: list[int] = []

    def asleep(storage: Storage, plan: Any, name: str, number: int, *rest: Any) -> Any:
        if number == 2 and not given_up:
            with monkeypatch.context() as patch:
                patch.setattr(module, "_plans_in_progress", lambda *_: {})
                given_up.append(settle(path).attempts)
        return commit_wave(storage, plan, name, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(build_tasks, "commit_wave", asleep)
        summary = pipelines.build(**options)
    assert given_up[0] > 0
    assert summary.rows == len(cachelib.open(path)) == 180
    assert [str(problem) for problem in verify(Storage.at(path))] == []


def test_a_compaction_whose_shards_were_given_up_is_refused(
    options: dict[str, Any], here: None
) -> None:
    pipelines.build(**options)
    storage = Storage.at(options["to"])
    job = Job(storage.url, Ledger(storage).snapshot().version, Compaction(64 << 20))
    results = [tasks.work(job, unit) for unit in tasks.units(job)]
    settle(Path(options["to"]))
    assert tasks.commit(job, results)["failure"] == "AttemptRetired"
    assert pipelines.compact(options["to"]).shards < 3
    assert [str(problem) for problem in verify(storage)] == []


def test_the_command_tells_what_it_did(changed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cachelib.open(changed, 2, pin="old")
    arguments = ["gc", str(changed), "--keep", "1", "--younger", "0"]
    assert main([*arguments, "--dry-run"]) == 0
    assert "3: 0 attempts would be deleted" in capsys.readouterr().out
    unpin(Storage.at(changed), "old")
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "version 4: 3 attempts deleted" in said
    assert "expired    0 to 2: 3 new" in said
    assert main([*arguments, "--json"]) == 0
    assert '"attempts": 0' in capsys.readouterr().out
    for wrong in ("--younger=7", "--younger=x", "--younger=-1d", "--keep=0", "--keep=-1"):
        with pytest.raises(SystemExit) as ended:
            main(["gc", str(changed), wrong])
        assert ended.value.code == 2
    assert "argument --keep: '0' is no whole number from 1 on" in capsys.readouterr().err
    with pytest.raises(ValueError, match="keep must be at least 1"):
        gc(changed, keep=0)
    assert main(["gc", str(changed / "nothing")]) == 1
    assert "there is no cache here" in capsys.readouterr().err


# What was deleted is gone


SECRET = "Geheimnis im Tal"


@pytest.mark.parametrize("by", ["source", "id"])
def test_no_byte_of_what_was_deleted_is_left(
    sources: Path, tokenizer: str, tmp_path: Path, by: str, here: None
) -> None:
    folder = Path(shutil.copytree(sources, tmp_path / "in"))
    lines = [
        {"id": "the secret id", "text": f"water {SECRET} wheel", "score": 1},
        {"id": "the secret id", "text": 7, "note": SECRET},
    ]
    (folder / "secret.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options: dict[str, Any] = {
        "inputs": [str(folder)], "tokenizer": tokenizer, "to": str(tmp_path / "cache"),
        "keep": {"id": "str"}, "workers": 1,
    }  # fmt: skip
    with pytest.raises(BuildFailed, match=SECRET):  # which leaves its parts behind
        pipelines.build(**options, max_reject_rate=0)
    pipelines.build(**options, max_reject_rate=1)
    path = tmp_path / "cache"
    (path / "_status/old.failure.json").write_text(SECRET)
    cache = cachelib.open(path)
    places = [place.source for place in cache.provenance(range(len(cache)))]
    ids = np.asarray(cache.take([places.index("secret.jsonl")])["tokens"][0]).tobytes()
    # Rejects belong to sources: their records have no ids to be found by.
    needles = [ids, b"the secret id", *([SECRET.encode()] if by == "source" else [])]
    assert all(any(needle in data for data in stored(path)) for needle in needles)
    rows = len(cache)
    if by == "source":
        pipelines.delete(path, sources=["secret.jsonl"])
    else:
        pipelines.delete(path, where=[("id", "==", "the secret id")])
    pipelines.compact(path)
    settle(path)
    assert len(cachelib.open(path).dataset()) == rows - 1
    for data in stored(path):
        for needle in needles:
            assert needle not in data or (by == "id" and b'"reason"' in data)
    assert [str(problem) for problem in verify(Storage.at(path))] == []


@pytest.mark.slow
def test_a_writer_that_sleeps_while_all_else_goes_on(
    sources: Path, tokenizer: str, tmp_path: Path, here: None
) -> None:
    """Stopped in the middle of a part; another build, a compaction and a gc end; and woken."""
    path = tmp_path / "cache"
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        write_jsonl(folder / f"{number}.jsonl", sentences(4000, number), 10_000 * number)
    arguments = [sys.executable, "-m", "pipelines.entry", "build", str(folder), "--quiet",
                 "--tokenizer", tokenizer, "--to", str(path), "--split-bytes", "16384",
                 "--workers", "2"]  # fmt: skip
    sleeper = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while len(list(path.glob("shards/*/manifest.json"))) < 10 and sleeper.poll() is None:
        time.sleep(0.005)
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert sleeper.poll() is None
    subprocess.run(arguments, check=True)
    pipelines.compact(path)
    found = settle(path)
    assert found.attempts > 20
    before = cachelib.open(path)
    tokens = before.take(range(len(before)))
    os.kill(sleeper.pid, signal.SIGCONT)
    output = sleeper.communicate()[0]
    assert sleeper.returncode == 0, output
    after = cachelib.open(path)
    assert after.version == before.version
    assert_equal(after.take(range(len(after))), tokens)
    settle(path)
    assert garbage(Storage.at(path)) == 0
    assert [str(problem) for problem in verify(Storage.at(path))] == []
