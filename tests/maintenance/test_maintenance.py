"""Compact and delete on caches that were built: what is left stays as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
import pipelines
from cachelib.cache import Cache
from cachelib.commands.stats import statistics
from cachelib.errors import CorruptData, LedgerConflict, RowDeleted
from cachelib.format.digest import digest_rows
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from pipelines import tasks as build_tasks
from pipelines.entry import main
from pipelines.maintenance import tasks
from pipelines.maintenance.changes import Compaction, Deletion
from pipelines.maintenance.launcher import Changed
from pipelines.maintenance.tasks import Job
from tests.pipelines.conftest import sentences, tokenizer, write_jsonl

__all__ = ["tokenizer"]

SECRET = "Geheimnis"


@pytest.fixture(scope="module")
def built(tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sources in many small shards, by two builds; c.jsonl has rejects."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "in").mkdir()
    for number, name in enumerate("abc"):
        write_jsonl(folder / "in" / f"{name}.jsonl", sentences(60, number), first=100 * number)
    with (folder / "in" / "c.jsonl").open("a") as file:
        file.write(json.dumps({"id": "x", "score": 1.0, "text": 5, "note": SECRET}) + "\n")
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "to": str(folder / "cache"),
        "keep": {"id": "str", "score": "float32"},
        "split_bytes": 2048,
        "max_reject_rate": 1,
    }
    pipelines.build(inputs=[str(folder / "in" / "a.jsonl")], **options)
    pipelines.build(inputs=[str(folder / "in")], finish=True, **options)
    return folder


@pytest.fixture
def path(built: Path, tmp_path: Path) -> Path:
    """A copy of the cache, to be changed."""
    return Path(shutil.copytree(built / "cache", tmp_path / "cache"))


def everything(cache: Cache, rows: Sequence[int] | np.ndarray) -> list[tuple[Any, ...]]:
    """All that is known of rows."""
    columns = cache.take(rows)
    places = cache.provenance(rows)
    return [
        (*(bytes(np.asarray(column[i]).tobytes()) for column in columns.values()), places[i])
        for i in range(len(places))
    ]


def rows_of(cache: Cache, source: str) -> list[int]:
    return [i for i, p in enumerate(cache.provenance(range(len(cache)))) if p.source == source]


def test_compaction_changes_nothing_but_the_shards(path: Path) -> None:
    before = cachelib.open(path)
    order = before.windows(16).shuffle(3)
    changed = pipelines.compact(path, shard_bytes=16 << 10)
    after = cachelib.open(path)
    assert changed.version == after.version == before.version + 1
    assert len(after.snapshot.entries) == changed.shards < changed.shards_before / 3
    assert changed.left == 0
    assert after.snapshot.digest == before.snapshot.digest
    assert after.snapshot.eras.tolist() == before.snapshot.eras.tolist()
    assert after.snapshot.commit.finished
    rows = range(len(before))
    assert everything(after, rows) == everything(before, rows)
    assert after.windows(16).shuffle(3).describe() == order.describe()
    assert pipelines.compact(path, shard_bytes=16 << 10).version is None
    assert everything(cachelib.open(path, before.version), rows) == everything(before, rows)


def test_a_run_goes_on_after_a_compaction(path: Path) -> None:
    loader = cachelib.open(path).windows(16).shuffle(3).loader(8)
    batches = [next(loader)["tokens"].tolist() for _ in range(4)]
    first = cachelib.open(path).windows(16).shuffle(3).loader(8)
    next(first), next(first)
    pipelines.compact(path)
    again = cachelib.open(path).windows(16).shuffle(3).loader(8, start=first.state_dict())
    assert [next(again)["tokens"].tolist() for _ in range(2)] == batches[2:]


@pytest.mark.parametrize("packed_first", [False, True])
def test_rows_are_deleted_by_source(path: Path, packed_first: bool) -> None:
    before = cachelib.open(path)
    if packed_first:
        pipelines.compact(path)
    gone = rows_of(before, "b.jsonl")
    left = [row for row in range(len(before)) if row not in gone]
    changed = pipelines.delete(path, sources=["b.*"])
    after = cachelib.open(path)
    assert (changed.rows, changed.version) == (len(gone), after.version)
    assert changed.tokens == before.take(gone)["tokens"].lengths.sum()  # type: ignore[union-attr]
    check(after, before, left)
    pipelines.compact(path)
    check(cachelib.open(path), before, left)
    assert not any(p.source == "b.jsonl" for p in cachelib.open(path).provenance(np.array(left)))


@pytest.mark.parametrize(
    ("pattern", "meant", "others"),
    [
        ("data[1].jsonl", "data[1].jsonl", ["data1.jsonl", "data[2].jsonl"]),
        ("[!a]?", "[!a]b", ["bb", "[!a]"]),
        ("a[*", "a[/x]", ["a", "a/x"]),
        ("[[]", "[[]", ["["]),
        ("a]b*", "a]bc", ["ab"]),
        ("web/*.gz", "web/deep/a.gz", ["web/a.gz.tmp", "other/web/a.gz"]),
        ("what?", "what?", ["what", "What?"]),
    ],
)
def test_names_of_sources_stand_for_themselves_but_for_stars_and_question_marks(
    pattern: str, meant: str, others: list[str]
) -> None:
    deletion = Deletion(sources=(pattern,))
    assert deletion.forgets(meant)
    assert not any(deletion.forgets(other) for other in others)


def test_a_source_is_deleted_by_a_name_with_brackets(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "in").mkdir()
    for number, name in enumerate(["data1", "data[1]"]):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", sentences(3, number), first=10 * number)
    to = tmp_path / "cache"
    pipelines.build(inputs=[str(tmp_path / "in")], tokenizer=tokenizer, to=str(to))
    pipelines.delete(to, sources=["data[1].jsonl"])
    cache = cachelib.open(to)
    left = cache.provenance(cache.dataset().trace(range(3))["row"])
    assert [place.source for place in left] == ["data1.jsonl"] * 3


def check(after: Cache, before: Cache, left: list[int]) -> None:
    """A cache holds just these rows of the one before, by the same indices."""
    assert len(after) == len(before)
    assert everything(after, left) == everything(before, left)
    assert after.snapshot.commit.totals["rows"] == len(left) == len(after.dataset())
    assert after.snapshot.digest == digest_rows(before.schema, before.take(left))
    assert after.dataset().trace(range(len(left)))["row"].tolist() == left
    for row in set(range(len(before))) - set(left):
        with pytest.raises(RowDeleted):
            after.take([row])


def test_rows_are_deleted_by_what_their_columns_hold(path: Path) -> None:
    before = cachelib.open(path)
    scores = before.take(range(len(before)))["score"]
    assert isinstance(scores, np.ndarray)
    pipelines.delete(path, where=[("score", "<", 10)], sources=["a.jsonl", "c.jsonl"])
    own = set(rows_of(before, "b.jsonl"))
    left = [row for row in range(len(before)) if scores[row] >= 10 or row in own]
    check(cachelib.open(path), before, left)
    pipelines.delete(path, where=[("id", "in", ["r105", "r107"])])
    ids = [bytes(value).decode() for value in before.take(range(len(before)))["id"]]
    left = [row for row in left if ids[row] not in ("r105", "r107")]
    check(cachelib.open(path), before, left)


def test_rows_are_deleted_by_index(path: Path) -> None:
    before = cachelib.open(path)
    pipelines.delete(path, rows=[(3, 5), (50, 90)])
    left = [r for r in range(len(before)) if r not in (3, 4) and not 50 <= r < 90]
    check(cachelib.open(path), before, left)
    assert pipelines.delete(path, rows=[(3, 5)]).version is None


def test_a_deleted_source_is_not_taken_in_again(built: Path, path: Path, tokenizer: str) -> None:
    pipelines.delete(path, sources=["b.jsonl"])
    version = cachelib.open(path).version
    summary = pipelines.build(
        inputs=[str(built / "in")], tokenizer=tokenizer, to=str(path), split_bytes=2048,
        keep={"id": "str", "score": "float32"}, max_reject_rate=1,
    )  # fmt: skip
    assert (summary.version, summary.new_rows) == (version, 0)


def test_what_is_appended_follows_the_gaps(
    built: Path, path: Path, tokenizer: str, tmp_path: Path
) -> None:
    rows = len(cachelib.open(path))
    pipelines.delete(path, rows=[(rows - 3, rows)])
    write_jsonl(tmp_path / "d.jsonl", sentences(7, 9))
    pipelines.build(
        inputs=[str(built / "in"), str(tmp_path / "d.jsonl")], tokenizer=tokenizer, to=str(path),
        keep={"id": "str", "score": "float32"}, max_reject_rate=1, reopen=True,
    )  # fmt: skip
    cache = cachelib.open(path)
    assert len(cache) == rows + 7
    assert len(cache.dataset()) == rows + 4
    assert rows_of_left(cache, "d.jsonl") == list(range(rows, rows + 7))


def rows_of_left(cache: Cache, source: str) -> list[int]:
    assert cache.live is not None
    left = cache.live.rows(np.arange(cache.live.count))
    return [
        int(row)
        for row, place in zip(left, cache.provenance(left), strict=True)
        if place.source == source
    ]


def test_rejects_of_a_deleted_source_go_with_it(path: Path) -> None:
    entries = cachelib.open(path).snapshot.entries
    assert SECRET in rejects(path, entries)
    pipelines.delete(path, sources=["c.jsonl"])
    assert SECRET not in rejects(path, cachelib.open(path).snapshot.entries)


def test_rejects_of_other_sources_are_kept_by_a_compaction(path: Path) -> None:
    pipelines.delete(path, sources=["a.jsonl"])
    pipelines.compact(path)
    assert SECRET in rejects(path, cachelib.open(path).snapshot.entries)


def test_stats_shows_rejects_as_before_a_compaction(path: Path) -> None:
    before = statistics(Storage.at(path))
    (reject,) = before.rejects
    assert reject.example is not None
    pipelines.compact(path)
    after = statistics(Storage.at(path))
    assert (after.version, after.deletions) == (before.version + 1, 0)
    assert after.rejects == before.rejects
    pipelines.delete(path, sources=["a.jsonl"])
    pipelines.compact(path)
    assert statistics(Storage.at(path)).rejects == before.rejects


def test_stats_says_that_it_counts_what_was_read_of_deleted_sources(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "(records and rejects are all that were read, also what was deleted since)"
    assert main(["stats", str(path)]) == 0
    assert note not in capsys.readouterr().out
    pipelines.delete(path, sources=["c.jsonl"])
    assert main(["stats", str(path)]) == 0
    out = capsys.readouterr().out
    assert note in out
    assert "records    181" in out
    assert "1 x text is a number" in out
    assert SECRET not in out
    assert "\n      as " not in out


def rejects(path: Path, entries: Any) -> str:
    files = [
        path / "shards" / shard / attempt / "rejects.jsonl"
        for shard, attempt in zip(entries.shard, entries.attempt, strict=True)
    ]
    return "".join(file.read_text() for file in files if file.exists())


@pytest.mark.parametrize(
    ("runner", "arguments"),
    [("embedded", ["--direct_runner_bundle_repeat=1"]), ("bundles", [])],
)
def test_the_rows_are_the_same_by_any_engine(path: Path, runner: str, arguments: list[str]) -> None:
    before = cachelib.open(path)
    engine: dict[str, Any] = {"runner": runner, "beam_arguments": arguments}
    pipelines.delete(path, where=[("score", "<", 5)], **engine)
    pipelines.compact(path, **engine)
    after = cachelib.open(path)
    scores = before.take(range(len(before)))["score"]
    assert isinstance(scores, np.ndarray)
    check(after, before, np.flatnonzero(scores >= 5).tolist())
    commits = Ledger(Storage.at(path)).commits(before.version + 1, after.version + 1)
    assert [commit.operation for commit in commits] == ["delete", "compact"]


def job_of(path: Path, change: Any) -> Job:
    storage = Storage.at(path)
    return Job(storage.url, Ledger(storage).snapshot().version, change)


def test_a_commit_made_twice_changes_nothing(path: Path) -> None:
    job = job_of(path, Compaction(64 << 20))
    results = [tasks.work(job, unit) for unit in tasks.units(job)]
    first = tasks.commit(job, results)
    assert tasks.commit(job, results) == first
    assert cachelib.open(path).version == first["version"]


def test_a_compaction_leaves_alone_what_was_deleted_from_meanwhile(path: Path) -> None:
    before = cachelib.open(path)
    job = job_of(path, Compaction(8 << 10))
    results = [tasks.work(job, unit) for unit in tasks.units(job)]
    pipelines.delete(path, rows=[(60, 61)])  # the first shard is an era, and stays as it is
    outcome = tasks.commit(job, results)
    assert outcome["left"] == 1
    check(cachelib.open(path), before, [*range(60), *range(61, len(before))])


def test_a_deletion_begins_anew_where_shards_were_compacted_meanwhile(path: Path) -> None:
    before = cachelib.open(path)
    job = job_of(path, Deletion(rows=((60, 62),)))
    results = [tasks.work(job, unit) for unit in tasks.units(job)]
    pipelines.compact(path)
    assert tasks.commit(job, results) == {"version": None, "left": 1}
    check(cachelib.open(path), before, list(range(len(before))))


def test_changes_go_on_after_an_append_meanwhile(
    built: Path, path: Path, tokenizer: str, tmp_path: Path
) -> None:
    before = cachelib.open(path)
    job = job_of(path, Deletion(rows=((0, 2),)))
    results = [tasks.work(job, unit) for unit in tasks.units(job)]
    write_jsonl(tmp_path / "d.jsonl", sentences(7, 9))
    pipelines.build(
        inputs=[str(tmp_path / "d.jsonl")], tokenizer=tokenizer, to=str(path),
        keep={"id": "str", "score": "float32"}, reopen=True,
    )  # fmt: skip
    outcome = tasks.commit(job, results)
    cache = cachelib.open(path)
    assert outcome == {"version": cache.version, "left": 0}
    assert len(cache.dataset()) == len(before) + 5


def test_damaged_rows_are_not_packed(path: Path) -> None:
    entries = cachelib.open(path).snapshot.entries
    (chunk,) = (path / "shards" / entries.shard[1] / entries.attempt[1] / "tokens/data/c").iterdir()
    data = bytearray(chunk.read_bytes())
    data[0] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(CorruptData, match=entries.shard[1]):
        pipelines.compact(path)
    assert not list((path / "_status").glob("*.outcome.json"))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, ValueError, "nothing says what"),
        ({"sources": "a"}, TypeError, "list of patterns"),
        ({"where": [("nothing", "==", 1)]}, KeyError, "nothing"),
        ({"where": [("score", "==", "a")]}, TypeError, "'a'"),
        ({"rows": [(5, 5)]}, ValueError, "5 to 5"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    path: Path, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    version = cachelib.open(path).version
    with pytest.raises(error, match=said):
        pipelines.delete(path, **options)
    assert cachelib.open(path).version == version


def test_the_commands_tell_what_they_did(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.jsonl"
    before = cachelib.open(path)
    arguments = ["delete", str(path), "--source", "b.jsonl", "--where", "score < 3"]
    assert main([*arguments, "--report", str(report)]) == 0
    said = capsys.readouterr().out
    assert "6 rows and" in said
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line["row"] for line in lines] == rows_of(before, "b.jsonl")[:6]
    assert {line["source"] for line in lines} == {"b.jsonl"}
    assert [p.position for p in before.provenance([line["row"] for line in lines])] == [
        line["position"] for line in lines
    ]
    assert main(["compact", str(path)]) == 0
    assert f"instead of {len(before.snapshot.entries)}" in capsys.readouterr().out
    assert main(["compact", str(path)]) == 0
    assert "nothing to pack" in capsys.readouterr().out
    assert main(["delete", str(path), "--where", "id == r1"]) == 0
    assert "1 row and" in capsys.readouterr().out
    assert main(["delete", str(path)]) == 1
    assert "nothing says what" in capsys.readouterr().err


def test_a_plan_is_gone_on_with_after_a_change_meanwhile(
    built: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that stopped in mid-plan finds its plan again below a deletion and a compaction."""
    options: dict[str, Any] = {
        "inputs": [str(built / "in")], "tokenizer": tokenizer, "to": str(tmp_path / "cache"),
        "keep": {"id": "str", "score": "float32"}, "split_bytes": 2048, "max_reject_rate": 1,
    }  # fmt: skip
    commit_wave = build_tasks.commit_wave

    def stop_at_the_third(storage: Storage, plan: Any, name: str, wave: int, *rest: Any) -> Any:
        if wave == 2:
            raise LedgerConflict("stopped by the test")
        return commit_wave(storage, plan, name, wave, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(build_tasks, "commit_wave", stop_at_the_third)
        with pytest.raises(LedgerConflict, match="stopped by the test"):
            pipelines.build(**options)
    pipelines.delete(tmp_path / "cache", rows=[(0, 1)])
    pipelines.compact(tmp_path / "cache")
    summary = pipelines.build(**options)
    assert summary.earlier_tokens > 0  # parts that the first run wrote
    assert len(list((tmp_path / "cache/_plans").iterdir())) == 1
    whole, cache = cachelib.open(built / "cache"), cachelib.open(tmp_path / "cache")
    assert everything(cache, range(1, len(cache))) == everything(whole, range(1, len(whole)))


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_deleted_where_the_report_cannot_be_written(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    version = cachelib.open(path).version
    report = tmp_path / "folder" / "report.jsonl"
    if there:
        report.mkdir(parents=True)
    assert main(["delete", str(path), "--source", "b.jsonl", "--report", str(report)]) == 1
    err = capsys.readouterr().err
    assert f"--report: {report} cannot be written (" in err
    assert "nothing was deleted" in err
    assert cachelib.open(path).version == version


def test_a_report_that_fails_after_the_deletion_is_told(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = ["delete", str(path), "--source", "b.jsonl", "--report", "/dev/full"]
    assert main(full) == 1
    out, err = capsys.readouterr()
    assert "60 rows and" in out
    version = cachelib.open(path).version
    assert "the rows were deleted, but /dev/full cannot be written: No space" in err
    assert f"forebay diff file://{path}/ {version - 1} {version}" in err
    assert main(full) == 0  # there is nothing more to delete or to name


def test_a_report_of_nothing_is_empty(path: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    report.write_text('{"row": 7}\n')  # of an earlier deletion
    assert main(["delete", str(path), "--source", "none", "--report", str(report)]) == 0
    assert report.read_text() == ""


@pytest.mark.parametrize("size", ["0", "0KB", "-1"])
def test_a_shard_of_no_bytes_is_a_usage_error(
    path: Path, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compact", str(path), f"--shard-bytes={size}"])
    assert ended.value.code == 2
    assert f"argument --shard-bytes: '{size}' is no size" in capsys.readouterr().err


def test_a_compaction_that_packed_nothing_for_others_says_so(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = Changed(f"file://{path}/", 5, None, 9, 9, 0, 0, left=13)
    monkeypatch.setattr("pipelines.maintenance.cli.compact", lambda *_, **__: changed)
    assert main(["compact", str(path)]) == 0
    out = capsys.readouterr().out
    assert "nothing was packed at version 5" in out
    assert "others changed them meanwhile: 13 runs of shards; run compact again for them" in out


def test_a_number_for_text_is_told_how_to_quote(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["delete", str(path), "--where", "id == 5"]) == 1
    said = "column 'id' of text cannot be compared with 5; text stands in quotes, as in \"5\""
    assert said in capsys.readouterr().err
    assert main(["delete", str(path), "--where", 'id == "5"']) == 0


def test_a_truth_value_for_a_number_deletes_nothing(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = cachelib.open(path)
    for comparison, literal in (("score < true", "True"), ("score in [0, false]", "False")):
        assert main(["delete", str(path), "--where", comparison]) == 1
        said = f"column 'score' of float32 cannot be compared with {literal}: it holds numbers"
        assert said in capsys.readouterr().err
    assert cachelib.open(path).version == before.version
