"""Streams on Beam's BundleBasedDirectRunner, whose TestStream decides what comes when."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream as Scenario
from apache_beam.transforms.window import TimestampedValue

import cachelib
from cachelib.errors import AttemptRetired, BuildFailed, CacheNotFound, IncompatibleCache
from cachelib.format.coverage import merge
from cachelib.format.ledger import Ledger
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.verification import verify
from pipelines.commit import finish, seal
from pipelines.config import ConfigError, growing_config
from pipelines.launcher import build
from pipelines.maintenance.gc import gc
from pipelines.quarantine import read_quarantine
from pipelines.streams.finding import AGAIN_SECONDS, Finder, Sealer
from pipelines.streams.following import Following
from pipelines.streams.launcher import describe
from pipelines.streams.launcher import stream as run_stream
from pipelines.streams.news import forget
from pipelines.streams.sequencing import Sequenced, sequence
from pipelines.streams.transforms import (
    CommitStream,
    FindFiles,
    SealEras,
    StreamMessages,
    StreamShards,
    of_kafka,
    of_pubsub,
)
from pipelines.streams.units import Stream, Unit, write_messages, write_or_set_aside, write_unit
from tests.pipelines.conftest import sentences, write_jsonl

FILES = 4
ROWS = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(FILES):
        write_jsonl(folder / f"{number}.jsonl", sentences(ROWS, number), 1000 * number)
    return folder


@pytest.fixture
def stream(folder: Path, tokenizer: str, tmp_path: Path) -> Stream:
    values = {"inputs": [str(folder)], "to": str(tmp_path / "cache"), "tokenizer": tokenizer}
    config, _ = growing_config({**values, "keep": {"id": "str"}, "split_bytes": 2048})
    return describe(config)


@pytest.fixture
def units(stream: Stream, folder: Path) -> list[Unit]:
    """The units of the files; each file is several of them."""
    return Finder(stream, [str(folder)], None, 0).look()[0]


def play(stream: Stream, scenario: Any) -> None:
    options = PipelineOptions([])
    options.view_as(StandardOptions).streaming = True
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        _ = pipeline | scenario | StreamShards(stream) | CommitStream(stream, 10)


def at(seconds: float, units: Sequence[Unit]) -> list[TimestampedValue]:
    return [TimestampedValue(unit, seconds) for unit in units]


def ids(stream: Stream) -> list[str]:
    """The ids of all rows, in the order of their indices."""
    cache = cachelib.open(stream.storage.local_path or "")
    return [bytes(value).decode() for value in cache.take(np.arange(len(cache)))["id"]]


def snapshot(stream: Stream) -> Snapshot:
    return Ledger(stream.storage).snapshot()


def check_whole(stream: Stream) -> None:
    """Every record is there once, indices have no gap, and the coverage is that of the files."""
    found = ids(stream)
    assert sorted(found) == sorted(f"r{1000 * n + i}" for n in range(FILES) for i in range(ROWS))
    whole = snapshot(stream)
    assert whole.rows == whole.entries.rows_left == len(found)
    taken = merge(Ledger(stream.storage).coverage_deltas(whole))
    assert {name: (t.ranges, t.extent) for name, t in taken.items()} == {
        path.name: (((0, path.stat().st_size),), path.stat().st_size)
        for path in (stream.storage.local_path or Path()).parent.glob("in/*.jsonl")
    }
    assert [str(problem) for problem in verify(stream.storage)] == []


def test_in_order_and_idle(stream: Stream, units: list[Unit]) -> None:
    scenario = Scenario()
    for number in range(FILES):
        own = [unit for unit in units if unit.source.name == f"{number}.jsonl"]
        scenario = scenario.advance_watermark_to(20 * number).add_elements(at(20 * number, own))
        scenario = scenario.advance_processing_time(5)
    play(stream, scenario.advance_watermark_to(500).advance_watermark_to_infinity())
    check_whole(stream)
    assert snapshot(stream).version == FILES - 1  # idle windows make no commit
    assert ids(stream) == sorted(ids(stream), key=lambda name: int(name[1:]))


def test_the_order_within_a_window_does_not_depend_on_arrival(
    stream: Stream, units: list[Unit]
) -> None:
    mixed = random.Random(3).sample(units, len(units))
    scenario = Scenario().advance_watermark_to(0)
    for unit in mixed:
        scenario = scenario.add_elements(at(5, [unit]))
    play(stream, scenario.advance_watermark_to(50).advance_watermark_to_infinity())
    check_whole(stream)
    assert snapshot(stream).version == 0
    assert ids(stream) == sorted(ids(stream), key=lambda name: int(name[1:]))


def test_out_of_order_late_and_twice(stream: Stream, units: list[Unit]) -> None:
    mixed = random.Random(4).sample(units, len(units))
    half = len(mixed) // 2
    scenario = (
        Scenario()
        .advance_watermark_to(0)
        .add_elements(at(25, mixed[:half]))
        .add_elements(at(5, mixed[: half // 2]))
        .advance_watermark_to(100)
        .add_elements(at(5, mixed[half:]))  # late
        .add_elements(at(25, mixed[:half]))  # late, and known
        .advance_watermark_to(200)
        .add_elements(at(150, mixed))  # also late, all known
        .advance_watermark_to_infinity()
    )
    play(stream, scenario)
    check_whole(stream)


def test_what_is_open_is_flushed_in_the_end(stream: Stream, units: list[Unit]) -> None:
    scenario = Scenario().advance_watermark_to(0).add_elements(at(5, units))
    play(stream, scenario.advance_watermark_to_infinity())
    check_whole(stream)


def test_a_new_job_without_state_goes_on_from_the_ledger(
    stream: Stream, units: list[Unit], folder: Path
) -> None:
    play(stream, Scenario().add_elements(at(5, units[:3])).advance_watermark_to_infinity())
    before = snapshot(stream).rows
    assert 0 < before < FILES * ROWS
    play(stream, Scenario().add_elements(at(5, units)).advance_watermark_to_infinity())
    check_whole(stream)
    assert Finder(stream, [str(folder)], None, 0).look()[0] == []  # nothing is read again


def test_a_replayed_unit_adopts_what_is_published(stream: Stream, units: list[Unit]) -> None:
    assert write_unit(stream, units[0]) == write_unit(stream, units[0])


def test_what_is_covered_in_part_is_cut(stream: Stream, units: list[Unit], tmp_path: Path) -> None:
    """Units of another job with other borders: rows come once, whichever comes first."""
    size = units[0].source.size
    first = replace(units[0], start=0, stop=size // 2)
    other = replace(units[0], start=size // 3, stop=size)
    wide = replace(stream, making=replace(stream.making, split_bytes=1 << 20))
    assert sequence(stream, write_unit(wide, first)).taken == 1
    found = sequence(stream, write_unit(wide, other))
    assert (found.taken, found.cut) == (0, 1)
    again = sequence(stream, write_unit(wide, other))
    assert (again.commit, again.known) == (None, 1)
    for unit in units:
        sequence(stream, write_unit(stream, unit))
    check_whole(stream)


def test_commits_go_on_over_seals_and_other_appends(
    stream: Stream, units: list[Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another committer and a seal come in between reading the head and appending."""
    sequence(stream, write_unit(stream, units[0]))
    shards = {number: write_unit(stream, units[number]) for number in range(1, 4)}
    real = Ledger.append
    between: list[Callable[[], object]] = [
        lambda: seal(stream.storage),
        lambda: sequence(stream, [*shards[1], *shards[2]]),
    ]

    def append(self: Ledger, commit: Any) -> Any:
        if between:
            between.pop()()
        return real(self, commit)

    monkeypatch.setattr(Ledger, "append", append)
    found = sequence(stream, [*shards[1], *shards[2], *shards[3]])
    assert (found.taken, found.known) == (1, 2)
    for unit in units[4:]:
        sequence(stream, write_unit(stream, unit))
    check_whole(stream)


def test_a_cache_marked_complete_takes_no_more(stream: Stream, units: list[Unit]) -> None:
    sequence(stream, write_unit(stream, units[0]))
    finish(stream.storage)
    assert sequence(stream, write_unit(stream, units[0])).known == 1
    with pytest.raises(IncompatibleCache, match="marked complete"):
        sequence(stream, write_unit(stream, units[1]))


def test_damaged_changed_and_vanished_files_are_counted_and_stop_nothing(
    stream: Stream, folder: Path
) -> None:
    (folder / "broken.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 not gzip at all")
    finder = Finder(stream, [str(folder)], None, 0)
    (folder / "utf16.txt").write_bytes("text".encode("utf-16"))
    units, counts = finder.look()
    assert counts["damaged"] == 1
    (folder / "0.jsonl").unlink()
    with (folder / "1.jsonl").open("a") as file:
        file.write('{"text": "more", "id": "x"}\n')
    play(stream, Scenario().add_elements(at(5, units)).advance_watermark_to_infinity())
    assert len(ids(stream)) == (FILES - 2) * ROWS
    assert set(read_quarantine(stream.storage)) == {"broken.jsonl.gz", "utf16.txt"}
    again, counts = finder.look()
    assert {unit.source.name for unit in again} == {"1.jsonl"}
    for unit in again:
        sequence(stream, write_unit(stream, unit))
    with (folder / "1.jsonl").open("a") as file:
        file.write('{"text": "after", "id": "y"}\n')
    again, counts = finder.look()
    assert (again, counts["changed"]) == ([], 1)
    assert finder.look()[1]["changed"] == 0


def test_what_cannot_be_used_does_not_hold_up_the_rest(stream: Stream, folder: Path) -> None:
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jsonl")).write_bytes(b'{"text": "a"}\n')
    finder = Finder(stream, [str(folder)], None, 0)
    units, counts = finder.look()
    assert {unit.source.name for unit in units} == {f"{n}.jsonl" for n in range(FILES)}
    assert counts["unusable"] == 2
    assert finder.look()[1]["unusable"] == 0


def test_files_are_named_to_who_began_the_stream(stream: Stream, folder: Path) -> None:
    stream = replace(stream, run="stream-1")
    (folder / "cut.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 not gzip at all")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    lines: list[str] = []
    following = Following(stream, lines.append)
    finder = Finder(stream, [str(folder), str(folder / "none*")], None, 0)
    units, _ = finder.look()
    following.look()
    assert following.status()["waiting"] == FILES + 1
    with (folder / "1.jsonl").open("a") as file:
        file.write('{"text": "more", "id": "x"}\n')
    (folder / "0.jsonl").unlink()
    for unit in units:
        sequence(stream, write_or_set_aside(stream, unit)[0])
    following.look()
    assert following.status()["waiting"] == 0
    (folder / "2.jsonl").write_text('{"text": "other", "id": "y"}\n')
    finder.look()
    following.look()
    following.look()
    seen = following.seen
    told = {line.split(":")[0] for line in lines}
    assert told == {
        "nothing yet",
        "set aside cut.jsonl.gz",
        "set aside loop.jsonl",
        "vanished 0.jsonl",
        "waiting for 1.jsonl",
        "left out 2.jsonl",
        f"version {seen.version}",
    }
    assert (seen.taken, seen.new_rows) == ({"2.jsonl", "3.jsonl"}, 2 * ROWS)
    assert (set(seen.damaged), seen.changed) == ({"cut.jsonl.gz", "loop.jsonl"}, {"2.jsonl"})
    assert read_quarantine(stream.storage).keys() == {"cut.jsonl.gz"}
    again = Following(stream, lines.append)
    Finder(stream, [str(folder)], None, 0).look()
    again.look()
    assert "set aside before cut.jsonl.gz" in {line.split(":")[0] for line in lines}
    forget(stream.storage, stream.run)
    assert stream.storage.list("_status/") == []


def test_a_cache_that_goes_while_a_stream_fills_it_is_an_error(
    stream: Stream, units: list[Unit]
) -> None:
    sequence(stream, write_unit(stream, units[0]))
    following = Following(stream, lambda line: None)
    assert stream.storage.local_path is not None
    shutil.rmtree(stream.storage.local_path / "_ledger")
    with pytest.raises(CacheNotFound, match="deleted or replaced"):
        following.look()
    sequence(stream, write_unit(stream, units[-1]))  # another cache in its place
    with pytest.raises(CacheNotFound, match="deleted or replaced"):
        following.look()


def test_what_keeps_a_stream_from_committing_ends_it_without_tracebacks(
    stream: Stream, units: list[Unit]
) -> None:
    sequence(stream, write_unit(stream, units[0]))
    finish(stream.storage)
    stream = replace(stream, run="stream-1")
    play(stream, Scenario().add_elements(at(5, units)).advance_watermark_to_infinity())
    with pytest.raises(BuildFailed, match=r"IncompatibleCache: .* was marked complete"):
        Following(stream, lambda line: None).look()


@pytest.mark.parametrize("runner", ["embedded", "bundles", "dask"])
def test_runners_that_end_with_their_input_are_refused(
    folder: Path, tokenizer: str, tmp_path: Path, runner: str
) -> None:
    values = {"inputs": [str(folder)], "to": str(tmp_path / "cache"), "tokenizer": tokenizer}
    configs = growing_config({**values, "runner": runner})
    with pytest.raises(ConfigError, match=f"--runner.*{runner} ends with its input"):
        run_stream(*configs, stopped=threading.Event())
    assert not (tmp_path / "cache").exists()


def test_what_an_engine_lost_is_handed_out_again(stream: Stream, folder: Path) -> None:
    """The units of a look come to nothing; after a while those of uncommitted files come again."""
    now = 0.0
    finder = Finder(stream, [str(folder)], None, 0, clock=lambda: now)
    lost = finder.look()[0]
    for unit in lost:
        if unit.source.name != "2.jsonl":
            sequence(stream, write_unit(stream, unit))
    now = AGAIN_SECONDS - 1
    assert finder.look()[0] == []
    now = AGAIN_SECONDS
    again = finder.look()[0]
    assert {unit.source.name for unit in again} == {"2.jsonl"}
    now = 3 * AGAIN_SECONDS - 1
    assert finder.look()[0] == []  # the next time after twice as long
    for unit in again:
        sequence(stream, write_unit(stream, unit))
    now = 100 * AGAIN_SECONDS
    assert finder.look()[0] == []
    check_whole(stream)


def test_what_a_gc_gave_up_before_it_was_committed_is_written_anew(
    stream: Stream, folder: Path
) -> None:
    finder = Finder(stream, [str(folder)], None, 0)
    first, *others = finder.look()[0]
    sequence(stream, write_unit(stream, first))
    lost = [shard for unit in others for shard in write_unit(stream, unit)]
    gc(stream.cache, keep=1, younger=0)
    assert sequence(stream, lost) == Sequenced(None, 0, 0, 0, 0, 0, len(lost))
    again = [shard for unit in finder.look()[0] for shard in write_unit(stream, unit)]
    assert not {s.manifest["shard"] for s in again} & {s.manifest["shard"] for s in lost}
    found = sequence(stream, [*lost, *again])
    assert (found.taken, found.known + found.given_up) == (len(again), len(lost))
    assert finder.look()[0] == []
    check_whole(stream)


def test_messages_that_a_gc_gave_up_stop_the_stream(stream: Stream, units: list[Unit]) -> None:
    sequence(stream, write_unit(stream, units[0]))
    data = b'{"text": "lost?", "id": "m"}'
    shards = write_messages(stream, "topic/0", [(0, data)], "jsonl")
    gc(stream.cache, keep=1, younger=0)
    with pytest.raises(AttemptRetired, match=r"messages of topic/0 .* Begin the stream anew"):
        sequence(stream, shards)


def test_bad_records_are_rejects(stream: Stream, folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "bad.jsonl").write_text('nothing\n{"text": "good", "id": "1"}\n{"text": 1}\n')
    for unit in Finder(stream, [str(folder)], None, 0).look()[0]:
        sequence(stream, write_unit(stream, unit))
    commit = snapshot(stream).commit
    assert (commit.records, sum(commit.rejects.values()), ids(stream)) == (3, 2, ["1"])


def test_the_rows_are_those_of_a_build(
    stream: Stream, units: list[Unit], folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    play(stream, Scenario().add_elements(at(5, units)).advance_watermark_to_infinity())
    build(inputs=[str(folder)], to=str(tmp_path / "built"), tokenizer=tokenizer, keep={"id": "str"})
    assert snapshot(stream).digest == cachelib.open(tmp_path / "built").snapshot.digest
    build(inputs=[str(folder)], to=stream.cache, tokenizer=tokenizer, keep={"id": "str"})
    assert snapshot(stream).version == 0  # a build finds nothing to do


def test_eras_end_while_nothing_comes(stream: Stream, units: list[Unit]) -> None:
    sealer = Sealer(stream.storage, 3600, 1)
    sealer.look()  # there is no cache yet
    sequence(stream, write_unit(stream, units[0]))
    sealer.look()
    assert snapshot(stream).eras.tolist() == [snapshot(stream).rows]
    sealer.look()
    assert snapshot(stream).version == 1


def test_an_era_is_never_shorter_than_it_is_to_be(stream: Stream, units: list[Unit]) -> None:
    """Rows that come between a seal and the next look begin an era of their own."""
    now = 0.0
    sealer = Sealer(stream.storage, 20, 1 << 40, clock=lambda: now)
    sequence(stream, write_unit(stream, units[0]))
    sealer.look()
    now = 20.0
    sealer.look()
    first = snapshot(stream).eras.tolist()
    assert first == [snapshot(stream).rows]
    sequence(stream, write_unit(stream, units[1]))
    for now in (21.0, 40.9):  # noqa: B007
        sealer.look()
        assert snapshot(stream).eras.tolist() == first
    now = 41.0
    sealer.look()
    assert snapshot(stream).eras.tolist() == [*first, snapshot(stream).rows]


def test_messages_come_once_in_any_order_and_overlap(stream: Stream) -> None:
    """Partitions with gaps in their offsets, redelivered in other groups, also by a new job."""
    there = [(f"topic/{p}", at) for p in (0, 1) for at in (*range(10), *range(13, 20))]

    def body(place: tuple[str, int]) -> tuple[str, int, bytes]:
        return (*place, json.dumps({"text": "water", "id": f"{place[0]}:{place[1]}"}).encode())

    def play_messages(scenario: Any) -> None:
        options = PipelineOptions([])
        options.view_as(StandardOptions).streaming = True
        with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
            messages = pipeline | scenario | StreamMessages(stream, 10)
            _ = messages | CommitStream(stream, 10)

    def some(seconds: float, places: Sequence[tuple[str, int]]) -> list[TimestampedValue]:
        return [TimestampedValue(body(place), seconds) for place in places]

    mixed = random.Random(1).sample(there, len(there))
    play_messages(
        Scenario()
        .advance_watermark_to(0)
        .add_elements(some(25, mixed[:12]))
        .add_elements(some(5, mixed[6:20]))
        .advance_watermark_to(100)
        .add_elements(some(5, mixed[10:25]))  # late, some of them again
        .add_elements([TimestampedValue(("topic/0", 11, b"nothing"), 120)])
        .advance_watermark_to_infinity()
    )
    again = random.Random(2).sample(there, len(there))
    play_messages(Scenario().add_elements(some(5, again)).advance_watermark_to_infinity())
    assert sorted(ids(stream)) == sorted(f"{partition}:{at}" for partition, at in there)
    taken = merge(Ledger(stream.storage).coverage_deltas(snapshot(stream)))
    assert taken["topic/0"].ranges == ((0, 10), (11, 12), (13, 20))
    assert taken["topic/1"].ranges == ((0, 10), (13, 20))
    assert [str(problem) for problem in verify(stream.storage)] == []


def test_messages_of_connectors() -> None:
    kafka = SimpleNamespace(topic="t", partition=3, offset=7, value=b"x")
    assert of_kafka(kafka) == ("t/3", 7, b"x")
    published = datetime(2026, 12, 3, 5, 59)
    message = SimpleNamespace(message_id="123", publish_time=published, data=b"x")
    assert of_pubsub("s", message) == ("s/2026-12-03T05", 123, b"x")
    message.message_id = "not a number"
    assert 0 <= of_pubsub("s", message)[1] < 1 << 62


def test_constructors_check(stream: Stream) -> None:
    with pytest.raises(ValueError, match="inputs must be"):
        FindFiles(stream, "data/")
    with pytest.raises(ValueError, match="settle_seconds"):
        FindFiles(stream, ["data/"], settle_seconds=-1)
    with pytest.raises(ValueError, match="seconds"):
        CommitStream(stream, 0)
    with pytest.raises(ValueError, match="format"):
        StreamMessages(stream, 1, "csv")
    with pytest.raises(ValueError, match="size"):
        SealEras(stream, 1, 0)
    assert Storage(stream.cache).local_path is not None
