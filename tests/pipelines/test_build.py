"""Builds from real files: the same content on every path, nothing twice, nothing silently."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cachelib
import pipelines
from cachelib.errors import (
    BuildFailed,
    CacheNotFound,
    CorruptData,
    IncompatibleCache,
    LedgerConflict,
    SourceChanged,
    SourceError,
)
from cachelib.format import schema
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from pipelines import early, launcher, plan, planning, progress, tasks
from pipelines.commit import commit_wave, finish, seal
from pipelines.config import build_config
from pipelines.early import committing
from pipelines.launcher import build
from pipelines.progress import Progress, alive
from tests.pipelines.conftest import EOS, sentences, write_jsonl

SMALL = 4096


@pytest.fixture
def options(corpus: Path, tokenizer: str, tmp_path: Path) -> dict[str, Any]:
    """A build of the corpus in many splits; tests change what they are about."""
    return {
        "inputs": [str(corpus)],
        "to": str(tmp_path / "cache"),
        "tokenizer": tokenizer,
        "keep": {"id": "str", "score": "float32"},
        "split_bytes": SMALL,
    }


def rows_of(path: str) -> dict[str, list[Any]]:
    cache = cachelib.open(path)
    columns = cache.take(np.arange(len(cache)))
    return {
        name: [row.tolist() for row in column] if isinstance(column, Ragged) else column.tolist()
        for name, column in columns.items()
    }


def digest_of(path: str) -> str:
    return str(cachelib.open(path).snapshot.digest)


def objects(path: str) -> dict[str, bytes]:
    """All stored objects but the advisory ones."""
    root = Path(path)
    files = (f for f in root.rglob("*") if f.is_file() and "_status" not in f.parts)
    return {str(f.relative_to(root)): f.read_bytes() for f in files}


def test_rows_are_the_records_in_source_order(
    options: dict[str, Any], encode: Callable[[str], list[int]]
) -> None:
    summary = build(**options, bos=None, eos=EOS)
    found = rows_of(options["to"])
    texts = sentences(500, 1)
    assert summary.rows == summary.new_rows == 500
    assert found["tokens"] == [[*encode(text), 0] for text in texts]
    assert [bytes(i).decode() for i in found["id"]] == [f"r{i}" for i in range(500)]
    assert found["score"][200:204] == [0.0, 0.5, 1.0, 1.5]
    provenance = cachelib.open(options["to"]).provenance([0, 250, 310, 499])
    assert [p.source for p in provenance] == ["a.jsonl", "b.jsonl.gz", "c.parquet", "deep/d.jsonl"]
    assert provenance[0].position == 0
    assert provenance[2].position == 10


@pytest.mark.parametrize(
    ("runner", "arguments"),
    [
        ({"runner": "embedded", "workers": 1}, ()),
        ({"runner": "embedded", "workers": 3}, ()),
        ({"runner": "embedded"}, ("--direct_runner_bundle_repeat=1",)),
        ({"runner": "embedded", "workers": 2, "processes": True}, ()),
        ({"runner": "bundles"}, ()),
    ],
    ids=["one thread", "three threads", "bundles repeated", "processes", "BundleBasedDirectRunner"],
)
def test_every_runner_gives_the_same_content(
    options: dict[str, Any], runner: dict[str, Any], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    build(**{**options, "to": str(tmp_path / "plain"), "split_bytes": 1 << 20})
    build(**{**options, **runner}, beam_arguments=arguments)
    assert digest_of(options["to"]) == digest_of(str(tmp_path / "plain"))
    assert rows_of(options["to"]) == rows_of(str(tmp_path / "plain"))


@pytest.mark.parametrize("damaged", [False, True])
def test_the_first_splits_are_written_while_beam_is_imported(
    options: dict[str, Any], corpus: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    if damaged:
        packed = corpus / "b.jsonl.gz"
        packed.write_bytes(packed.read_bytes()[:-12])
    dealt: list[tuple[int, list[tuple[int, ...]]]] = []
    deal = tasks.lanes

    def telling(job: tasks.Job, count: int) -> list[tuple[int, ...]]:
        dealt.append((job.begun, deal(job, count)))
        return dealt[-1][1]

    monkeypatch.setattr(tasks, "lanes", telling)
    imported = importlib.import_module("pipelines.runners")
    monkeypatch.setattr(pipelines, "runners", imported)  # what is imported anew goes afterwards
    monkeypatch.delitem(sys.modules, "pipelines.runners")
    import_module = importlib.import_module

    def import_slowly(name: str) -> ModuleType:
        while not any(Path(options["to"]).glob("shards/*/manifest.json")):
            time.sleep(0.001)
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", import_slowly)
    if damaged:
        with pytest.raises(SourceError, match=r"b\.jsonl\.gz"):
            build(**options, workers=1)
    else:
        assert build(**options, workers=1).new_rows == 500
        ((begun, (lane,)),) = dealt
        assert begun > 0
        assert lane == (*range(begun, len(lane)), *range(begun))


@pytest.mark.parametrize("split_bytes", [1024, 5000, 1 << 20])
def test_the_content_does_not_depend_on_splits_or_the_listing(
    options: dict[str, Any], corpus: Path, split_bytes: int, tmp_path: Path
) -> None:
    build(**options)
    files = sorted(str(f) for f in corpus.rglob("*") if f.is_file())
    names = [f"all={file}" for file in reversed(files)]
    one_by_one = {**options, "to": str(tmp_path / "other"), "split_bytes": split_bytes}
    build(**{**one_by_one, "inputs": names})
    assert digest_of(options["to"]) == digest_of(str(tmp_path / "other"))


def test_building_again_does_nothing(
    options: dict[str, Any], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(**options)
    before = objects(options["to"])
    assert build(**options).records == 0
    assert build(**{**options, "split_bytes": 999_999}).records == 0
    moved = tmp_path / "elsewhere"
    shutil.copytree(corpus, moved)
    shutil.rmtree(corpus)
    assert build(**{**options, "inputs": [str(moved)]}).records == 0
    assert objects(options["to"]) == before


def test_more_files_are_appended(options: dict[str, Any], corpus: Path) -> None:
    build(**options)
    first = rows_of(options["to"])
    write_jsonl(corpus / "aa.jsonl", sentences(7, 2), 900)
    summary = build(**options)
    assert summary.new_rows == 7
    assert summary.rows == 507
    both = rows_of(options["to"])
    assert both["tokens"][:500] == first["tokens"]
    assert [bytes(i).decode() for i in both["id"][500:]] == [f"r{i}" for i in range(900, 907)]


def test_an_empty_source_may_be_filled_later(options: dict[str, Any], corpus: Path) -> None:
    (corpus / "later.jsonl").touch()
    build(**options)
    write_jsonl(corpus / "later.jsonl", sentences(3, 2))
    assert build(**options).new_rows == 3
    assert build(**options).records == 0
    write_jsonl(corpus / "later.jsonl", sentences(4, 2))
    with pytest.raises(SourceChanged, match=r"later\.jsonl"):
        build(**options)


def test_content_under_another_name_is_taken_in_and_told(
    options: dict[str, Any], corpus: Path
) -> None:
    build(**options)
    summary = build(**{**options, "inputs": [f"again={corpus}"]})
    assert summary.new_rows == 500
    assert any("'again/a.jsonl' is 'a.jsonl'" in note for note in summary.notes)
    assert build(**options).notes == ()


def test_a_cache_among_its_sources_is_no_source(options: dict[str, Any], corpus: Path) -> None:
    inside = {**options, "to": str(corpus / "cache")}
    assert build(**inside).rows == 500
    again = build(**inside)
    assert again.records == 0
    assert again.rows == 500
    with pytest.raises(SourceError, match="part of a Forebay cache"):
        build(**{**inside, "inputs": [str(corpus / "cache" / "shards")]})
    with pytest.raises(SourceError, match="belong to the cache"):
        build(**{**inside, "to": str(corpus)})


def test_a_file_in_the_place_of_the_cache_is_named(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for to in ("file", "file/cache", "file/deep/cache"):
        with pytest.raises(SourceError, match="file: the cache needs a folder, and this is a file"):
            build(**{**options, "to": str(tmp_path / to)})


def test_an_append_keeps_the_chunks_of_the_cache(
    options: dict[str, Any], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(**options)
    first = rows_of(options["to"])
    monkeypatch.setattr(schema, "CHUNK_BYTES", schema.CHUNK_BYTES // 2)
    write_jsonl(corpus / "z.jsonl", sentences(7, 2), 900)
    build(**options)
    assert rows_of(options["to"])["tokens"][:500] == first["tokens"]


def test_the_order_of_kept_fields_does_not_matter(options: dict[str, Any]) -> None:
    build(**options)
    turned = dict(reversed(options["keep"].items()))
    assert build(**{**options, "keep": turned}).records == 0


def test_a_changed_source_is_refused_or_left_out(options: dict[str, Any], corpus: Path) -> None:
    build(**options)
    write_jsonl(corpus / "a.jsonl", sentences(200, 9))
    with pytest.raises(SourceChanged, match=r"a\.jsonl.*; changed: skip \(--changed skip\) leaves"):
        build(**options)
    summary = build(**options, changed="skip")
    assert summary.rows == 500
    assert any("changed" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"eos": EOS}, "eos"),
        (
            {"keep": {"id": "str"}},
            r"keep \(--keep\) is id:str, the cache has id:str, score:float32$",
        ),
        ({"keep": {}}, r"keep \(--keep\) is nothing, the cache has id:str"),
        (
            {"invalid_unicode": "replace"},
            r"invalid_unicode \(--invalid-unicode\) is 'replace', the cache has 'reject'",
        ),
    ],
)
def test_appending_in_another_way_is_refused(
    options: dict[str, Any], other: dict[str, Any], said: str
) -> None:
    build(**options)
    with pytest.raises(IncompatibleCache, match=said):
        build(**{**options, **other})


def test_appending_with_another_tokenizer_is_refused(
    options: dict[str, Any], tokenizer: str, tmp_path: Path
) -> None:
    build(**options)
    changed = json.loads(Path(tokenizer).read_text())
    changed["model"]["merges"] = changed["model"]["merges"][:-1]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(changed))
    with pytest.raises(IncompatibleCache, match=r"tokenizer\.json"):
        build(**{**options, "tokenizer": str(other)})


def test_a_finished_cache_takes_no_more_unless_reopened(
    options: dict[str, Any], corpus: Path
) -> None:
    build(**options, finish=True)
    commit = Ledger(Storage.at(options["to"])).snapshot().commit
    assert commit.finished
    assert build(**options, finish=True).version == commit.version
    write_jsonl(corpus / "z.jsonl", sentences(3, 2))
    with pytest.raises(
        IncompatibleCache, match=r"marked complete.*; reopen: true \(--reopen\) adds"
    ):
        build(**options)
    summary = build(**options, reopen=True)
    assert summary.rows == 503
    assert summary.notes == (
        f"the cache was marked complete at version {commit.version}; adding to it leaves it "
        "unfinished, until finish: true (--finish) marks it complete again",
    )
    assert build(**options, finish=True).notes == ()
    write_jsonl(corpus / "zz.jsonl", sentences(3, 3))
    assert build(**options, finish=True, reopen=True).notes == ()


def test_a_cache_that_lost_its_newest_commit_takes_no_more(
    options: dict[str, Any], corpus: Path
) -> None:
    build(**options)
    build(**options, finish=True)
    newest = Ledger(Storage.at(options["to"])).head()
    (Path(options["to"]) / f"_ledger/{newest:020d}.json").unlink()
    with pytest.raises(CorruptData, match=rf"names version {newest}, but .* delete _ledger/head"):
        build(**options)
    (Path(options["to"]) / "_ledger/head").unlink()
    assert build(**options).rows == 500


def test_rejects_are_counted_and_too_many_fail(options: dict[str, Any], corpus: Path) -> None:
    good = '{"id": "x", "text": "fine", "score": 1}\n'
    bad = '{"id": "x", "text": 7, "score": 1}\nnot json\n'
    (corpus / "bad.jsonl").write_text(bad + good * 40)
    with pytest.raises(
        BuildFailed, match=r"(?s)2 of .* were rejected.*bad\.jsonl:35: Expec.*: 'not json'"
    ):
        build(**{**options, "inputs": [str(corpus / "bad.jsonl")]})
    with pytest.raises(CacheNotFound):
        cachelib.open(options["to"])
    allowed = {**options, "inputs": [str(corpus / "bad.jsonl")], "to": options["to"] + "2"}
    with pytest.raises(BuildFailed):
        build(**allowed)
    assert build(**allowed, max_reject_rate=0.05).rows == 40
    summary = build(**options, max_reject_rate=0.01)
    assert summary.rejects == {"not JSON": 1, "text is a number": 1}
    assert summary.records == summary.new_rows + 2 == 542


def test_a_build_without_a_row_is_an_error(options: dict[str, Any], tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"\n\n")
    with pytest.raises(BuildFailed, match=r"empty\.jsonl\) gave no row"):
        build(**{**options, "inputs": [str(empty)]})
    with pytest.raises(CacheNotFound):
        cachelib.open(options["to"])


def test_a_damaged_file_is_an_error_that_names_it(options: dict[str, Any], corpus: Path) -> None:
    whole = (corpus / "b.jsonl.gz").read_bytes()
    (corpus / "b.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(SourceError, match=r"b\.jsonl\.gz"):
        build(**options)


def test_nothing_lies_in_the_temporary_folder_that_a_killed_build_would_leave(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    lying: list[Path] = []
    commit_all = tasks.commit

    def looking(*given: Any) -> dict[str, Any]:
        lying.extend(folder.iterdir())
        return commit_all(*given)

    monkeypatch.setattr(tasks, "commit", looking)
    assert build(**options, workers=1).new_rows == 500
    assert lying == []


def test_no_match_is_an_error(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nothing-here"):
        build(**{**options, "inputs": [str(tmp_path / "nothing-here*.jsonl")]})


def planned(options: dict[str, Any]) -> tuple[launcher.Request, launcher.Planned]:
    request = launcher.inquire(build_config(options))
    return request, launcher.next_plan(request)


def test_a_stored_plan_is_continued_to_the_same_ledger(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A build stopped after any wave goes on with its plan, even when asked for other splits."""
    from pipelines import runners

    monkeypatch.setattr(plan, "PIPELINE_SPLITS", 0)
    build(**{**options, "to": str(tmp_path / "whole")})
    whole = Ledger(Storage.at(str(tmp_path / "whole")))
    run_waves = runners.run_waves
    ran: list[int] = []

    def stop_at(job: Any, *rest: Any, **more: Any) -> None:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(job.waves.start)
        run_waves(job, *rest, **more)

    monkeypatch.setattr(runners, "run_waves", stop_at)
    with pytest.raises(KeyboardInterrupt):
        build(**options)
    assert Ledger(Storage.at(options["to"])).head() == 1
    monkeypatch.setattr(runners, "run_waves", run_waves)
    build(**{**options, "split_bytes": 1 << 20})
    again = Ledger(Storage.at(options["to"]))
    assert again.head() == whole.head()
    newest = whole.head()
    assert newest is not None
    for version in range(newest + 1):
        ours, theirs = again.commit(version), whole.commit(version)
        assert ours.task == theirs.task
        assert ours.totals == theirs.totals


def test_what_an_earlier_run_wrote_is_not_counted_as_speed(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines import runners

    monkeypatch.setattr(plan, "PIPELINE_SPLITS", 0)
    run_waves = runners.run_waves

    def stop_within(job: Any, *rest: Any, **more: Any) -> None:
        if job.waves.start < 2:
            run_waves(job, *rest, **more)
            return
        first = tasks.load_plan(job.cache, job.plan).splits_of(job.waves)[0]
        written.extend(tasks.write(job, [first]))
        raise KeyboardInterrupt

    written: list[dict[str, Any]] = []
    monkeypatch.setattr(runners, "run_waves", stop_within)
    with pytest.raises(KeyboardInterrupt):
        build(**options)
    monkeypatch.setattr(runners, "run_waves", run_waves)
    tokens = sum(part["elements"]["tokens"] for part in written)
    _, left = planned(options)
    assert left.plan is not None
    assert (left.stored, left.waves_done, left.tokens_waiting) == (True, 2, tokens)
    assert left.splits_done == frozenset(range(left.plan.wave(2)[0] + 1))
    seen: list[Progress] = []
    summary = build(**options, show=seen.append)
    assert summary.earlier_tokens == tokens > 0
    assert summary.rows == 500
    earlier = sum(left.plan.splits[split].size for split in left.splits_done)
    assert all(progress.earlier == earlier <= progress.bytes for progress in seen)
    assert seen[-1].bytes == left.plan.size
    assert summary.bytes < left.plan.size - earlier + SMALL


def job_of(options: dict[str, Any]) -> tuple[tasks.Job, plan.Plan]:
    """All waves of a stored plan of which nothing is written yet."""
    request, first = planned(options)
    assert first.plan is not None
    work, name = first.plan, first.plan.name
    for key, data in tasks.tokenizer_objects(request.files).items():
        request.storage.put_if_absent(key, data)
    request.storage.put_json(tasks.plan_key(name), work.to_json())
    roots = planning.roots_of(request, work)
    waves = range(work.wave_count)
    return tasks.Job(request.storage.url, name, waves, roots, 0, 0.01), work


def test_waves_are_committed_in_order_while_others_are_written(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "POLL_SECONDS", 0.01)
    job, work = job_of(options)
    ledger = Ledger(Storage.at(options["to"]))
    first, second = work.wave(0), work.wave(1)
    with committing(job):
        written = [*tasks.write(job, second), *tasks.write(job, first[1:])]
        time.sleep(0.1)
        assert ledger.head() is None
        written += tasks.write(job, first[:1])
        deadline = time.monotonic() + 60
        while ledger.head() != 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert [c.task["wave"] for c in ledger.commits(0, 2)] == [0, 1]
    assert sum(c.records for c in ledger.commits(0, 2)) == sum(m["records"] for m in written)


def test_no_split_is_begun_after_a_failure(options: dict[str, Any]) -> None:
    job, _ = job_of(options)
    last = tasks.lanes(job, 1)[0][-1]
    (manifest,) = tasks.write(job, [0])
    failure = {"failure": "BuildFailed", "message": "too many rejects"}
    assert tasks.commit(job, [failure]) == failure
    assert list(tasks.write(job, [0, last])) == [failure]
    assert tasks.merge(job, [manifest, failure]) == [failure]
    error = tasks.take_failure(job)
    assert isinstance(error, BuildFailed)
    assert str(error) == "too many rejects"
    assert tasks.take_failure(job) is None
    assert all("failure" not in each for each in tasks.write(job, [last]))


def test_a_damaged_plan_is_made_anew_or_named(options: dict[str, Any]) -> None:
    request, first = planned(options)
    assert first.plan is not None
    key = f"_plans/{first.plan.name}.json"
    request.storage.write(key, b"{")
    with pytest.raises(CorruptData, match=rf"{first.plan.name}.* Delete it and build again"):
        build(**options)
    assert build(**{**options, "split_bytes": 2 * SMALL}).rows == 500


def test_the_same_plan_twice_at_once_succeeds(options: dict[str, Any]) -> None:
    request, first = planned(options)
    _, second = planned(options)
    assert first.plan is not None
    assert second.plan is not None
    assert first.plan.name == second.plan.name
    made = launcher._carry_out(request, first, None, ())
    assert [c.digest for c in launcher._carry_out(request, second, None, ())] == [
        c.digest for c in made
    ]


def test_of_two_different_plans_one_wins(options: dict[str, Any], corpus: Path) -> None:
    request, first = planned(options)
    other_request, other = planned({**options, "split_bytes": 1 << 20})
    launcher._carry_out(request, first, None, ())
    digest = digest_of(options["to"])
    with pytest.raises(LedgerConflict, match="another build"):
        launcher._carry_out(other_request, other, None, ())
    assert digest_of(options["to"]) == digest
    assert build(**options).records == 0


def test_a_cache_that_is_marked_complete_meanwhile_takes_no_more_waves(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines import commit, runners

    monkeypatch.setattr(plan, "PIPELINE_SPLITS", 0)
    run_waves = runners.run_waves

    def finish_after_one(job: Any, *rest: Any, **more: Any) -> None:
        run_waves(job, *rest, **more)
        if job.waves.start == 0:
            commit.finish(Storage.at(options["to"]))

    monkeypatch.setattr(runners, "run_waves", finish_after_one)
    with pytest.raises(
        LedgerConflict, match=r"marked complete at version 1, .*; reopen: true \(--re"
    ):
        build(**options)
    monkeypatch.undo()
    assert build(**options, reopen=True).rows == 500


def test_committing_a_wave_twice_changes_nothing(options: dict[str, Any]) -> None:
    request, first = planned(options)
    assert first.plan is not None
    commits = launcher._carry_out(request, first, None, ())
    again = commit_wave(request.storage, first.plan, first.plan.name, 0, [], 0.01)
    assert again.digest == commits[0].digest


def test_a_part_that_fails_its_audit_is_written_again_and_several_fail(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pipelines import worker
    from pipelines.tokenization import encoder

    build(**{**options, "to": str(tmp_path / "right")})
    right = encoder.Encoder.encode
    wrong_left = [0]

    def sometimes_wrong(self: Any, texts: Any, exact: bool = False) -> Ragged:
        ids = right(self, texts, exact)
        if exact or not wrong_left[0] or not len(ids.values):
            return ids
        wrong_left[0] -= 1
        values = ids.values.copy()
        values[: ids.offsets[1]] ^= 1
        return Ragged(values, ids.offsets)

    monkeypatch.setattr(worker, "AUDIT_RATE", 1.0)
    monkeypatch.setattr(encoder.Encoder, "encode", sometimes_wrong)
    request, first = planned(options)
    wrong_left[0] = 1
    launcher._carry_out(request, first, None, ())
    assert digest_of(options["to"]) == digest_of(str(tmp_path / "right"))
    commits = Ledger(request.storage).commits(0, 2)
    assert sum(c.counts.get("redone", 0) for c in commits) == 1
    wrong_left[0] = 10**6
    with pytest.raises(BuildFailed, match="differed from the exact one"):
        build(**{**options, "to": str(tmp_path / "wrong")})


def test_a_build_seals_its_first_and_last_wave_and_not_what_is_between(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(**options)
    ledger = Ledger(Storage.at(options["to"]))
    head = ledger.head()
    assert head is not None
    assert head > 1
    assert [c.seals for c in ledger.commits(0, head + 1)] == [True, *[False] * (head - 1), True]
    first = ledger.commit(0).totals["rows"]
    assert ledger.snapshot().eras.tolist() == [first, 500]
    assert seal(Storage.at(options["to"])).version == head  # nothing is left to be sealed


def test_without_seal_rows_are_left_to_whoever_seals(options: dict[str, Any], corpus: Path) -> None:
    build(**{**options, "seal": False})
    storage = Storage.at(options["to"])
    ledger = Ledger(storage)
    before = ledger.snapshot()
    assert before.eras.tolist() == [ledger.commit(0).totals["rows"]]
    made = seal(storage)
    assert (made.operation, made.version, made.finished) == ("seal", before.version + 1, False)
    assert seal(storage).version == made.version
    assert ledger.snapshot().eras.tolist() == [*before.eras.tolist(), 500]
    write_jsonl(corpus / "z.jsonl", sentences(7, 2), 900)
    build(**{**options, "seal": False})
    assert finish(storage).seals
    assert seal(storage).operation == "finish"
    assert ledger.snapshot().eras.tolist()[-2:] == [500, 507]


def test_a_build_goes_on_with_its_plan_after_a_seal_in_the_middle(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines import runners

    monkeypatch.setattr(plan, "PIPELINE_SPLITS", 0)
    run_waves = runners.run_waves

    def stop_after_two(job: Any, *rest: Any, **more: Any) -> None:
        if job.waves.start == 2:
            raise KeyboardInterrupt
        run_waves(job, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(runners, "run_waves", stop_after_two)
        with pytest.raises(KeyboardInterrupt):
            build(**options)
    storage = Storage.at(options["to"])
    assert seal(storage).operation == "seal"
    assert build(**options).rows == 500
    ledger = Ledger(storage)
    plans = {c.task["plan"] for c in ledger.commits(0, ledger.snapshot().version + 1) if c.task}
    assert len(plans) == 1


def test_spread_gives_the_same_rows_in_another_order(
    options: dict[str, Any], tmp_path: Path
) -> None:
    build(**options)
    other = {**options, "to": str(tmp_path / "spread"), "spread": True}
    build(**other)
    plain, spread_out = rows_of(options["to"])["id"], rows_of(other["to"])["id"]
    assert plain != spread_out
    assert sorted(plain) == sorted(spread_out)


def test_who_adds_by_plan_after_plan_shows_that_he_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "STATUS_SECONDS", 0.01)
    storage = Storage.at(tmp_path)

    def told() -> Any:
        return storage.read_json("_status/watch.json")

    with alive(storage, "watch"):
        while told() is None:
            time.sleep(0.01)
        first = told()
        while told() == first:
            time.sleep(0.01)
        assert told()["state"] == "running"
    assert told()["state"] == "ended"


def test_every_build_tells_of_itself_in_its_status(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(**options)
    (status,) = (Path(options["to"]) / "_status").iterdir()
    told: Any = Storage.at(options["to"]).read_json(f"_status/{status.name}")
    assert told["state"] == "ended"
    failing = {**options, "to": f"{options['to']}-failing", "max_reject_rate": 0.0}
    (Path(options["inputs"][0]) / "bad.jsonl").write_text('{"text": 1}\n' * 5)
    with pytest.raises(BuildFailed):
        build(**failing)
    (status,) = (Path(failing["to"]) / "_status").iterdir()
    told = Storage.at(failing["to"]).read_json(f"_status/{status.name}")
    assert told["state"] == "failed"
    assert told["message"].startswith("BuildFailed: ")
