"""A plan as one graph: the same cache as by pipeline after pipeline, and a graph that stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.pipeline_context import PipelineContext
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib.errors import BuildFailed, SourceError
from cachelib.format.commit import Commit
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.verification import verify
from pipelines import tasks, whole
from pipelines.config import build_config
from pipelines.launcher import build
from pipelines.planning import next_plan
from pipelines.request import inquire
from pipelines.submission import submit
from pipelines.transforms import FillCache
from pipelines.whole import branches, whole_of
from tests.pipelines.conftest import sentences, write_jsonl

# Beam's FnApiRunner by its own name: what is named so is carried out as one graph.
RUNNER = "FnApiRunner"
ORDERS = ("source", "shuffle(7)", "by(id)")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def options(corpus: Path, tokenizer: str, tmp_path: Path) -> dict[str, Any]:
    """A build of the corpus in many splits and some waves; tests change what they are about."""
    return {
        "inputs": [str(corpus)],
        "to": str(tmp_path / "cache"),
        "tokenizer": tokenizer,
        "keep": {"id": "str"},
        "split_bytes": 8192,
    }


def elsewhere(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same for another cache beside."""
    return {**options, "to": f"{options['to']}-other", **more}


def commits_of(path: str) -> Sequence[Commit]:
    ledger = Ledger(Storage.at(path))
    return ledger.commits(0, ledger.resolve(None) + 1)


def digest_of(path: str) -> str:
    return str(cachelib.open(path).snapshot.digest)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(2, 40))
def test_branches_hold_all_waves_in_order(start: int, count: int, limit: int) -> None:
    waves = range(start, start + count)
    found = branches(waves, limit)
    assert [wave for branch in found for wave in branch] == list(waves)
    assert all(len(branch) for branch in found)
    assert len(found) == min(count, limit)
    assert all(len(branch) == 1 for branch in found[: limit // 2])
    rest = [len(branch) for branch in found[limit // 2 :]]
    assert not rest or max(rest) - min(rest) <= 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("arguments", [(), ("--direct_runner_bundle_repeat=1",)])
def test_the_cache_is_that_of_pipeline_after_pipeline(
    options: dict[str, Any], order: str, arguments: Sequence[str]
) -> None:
    options |= {"order": order, "finish": True}
    there = elsewhere(options)
    build(**options)
    summary = build(**there, runner=RUNNER, beam_arguments=arguments)
    assert summary.new_rows == 500
    assert digest_of(there["to"]) == digest_of(options["to"])
    here, other = (commits_of(each["to"]) for each in (options, there))
    assert [c.operation for c in here] == [c.operation for c in other]
    assert not list(verify(Storage.at(there["to"])))
    assert "_runs" not in os.listdir(there["to"])


def test_waves_beyond_the_limit_share_branches_and_are_commits_of_their_own(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole.branches, "__defaults__", (2,))
    build(**options, runner=RUNNER)
    commits = commits_of(options["to"])
    assert [c.task["wave"] for c in commits] == list(range(commits[0].task["waves"]))
    assert len(commits) > 2


def broken(folder: Path) -> Path:
    """A file whose records are mostly bad, but for those that are looked at beforehand."""
    path = folder / "z.jsonl"
    write_jsonl(path, sentences(1500, 9), 9000)
    with path.open("a") as file:
        file.write('{"text": 3}\n' * 300)
    return path


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("run", [build, submit])
def test_too_many_rejects_stop_it_with_nothing_committed_after(
    options: dict[str, Any], tmp_path: Path, order: str, run: Any
) -> None:
    options |= {"inputs": [str(broken(tmp_path))], "order": order, "finish": True}
    with pytest.raises(BuildFailed, match="300 of 1800 records were rejected"):
        run(**options, runner=RUNNER)
    head = Ledger(Storage.at(options["to"])).head()
    assert head is None or not Ledger(Storage.at(options["to"])).commit(head).finished
    run(**options, runner=RUNNER, max_reject_rate=0.5)
    assert len(cachelib.open(options["to"])) == 1500


def test_a_source_that_changes_after_planning_is_told_of(
    options: dict[str, Any], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_next = whole.store

    def change(*arguments: Any) -> None:
        plan_next(*arguments)
        with (corpus / "a.jsonl").open("a") as file:
            file.write("\n")

    monkeypatch.setattr(whole, "store", change)
    with pytest.raises(SourceError, match=r"a\.jsonl"):
        build(**options, runner=RUNNER)


@pytest.mark.parametrize("order", ORDERS)
def test_what_another_run_has_done_is_not_done_again(
    options: dict[str, Any], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that dies before its last branch is gone on with, on any engine."""
    options |= {"order": order}
    build(**elsewhere(options, order=order))
    commit = tasks.commit
    calls = Counter[str]()

    def die(job: Any, *rest: Any) -> Any:
        calls["commits"] += 1
        if calls["commits"] > 1:
            raise RuntimeError("the engine dies")
        return commit(job, *rest)

    monkeypatch.setattr(tasks, "commit", die)
    with pytest.raises(RuntimeError, match="the engine dies"):
        submit(**options, runner=RUNNER)
    monkeypatch.undo()
    written = {path: path.stat().st_mtime_ns for path in Path(options["to"]).rglob("manifest.json")}
    assert written
    submit(**options, runner=RUNNER)
    assert digest_of(options["to"]) == digest_of(elsewhere(options)["to"])
    if order == "source":
        assert all(path.stat().st_mtime_ns == when for path, when in written.items())


def test_a_submission_fills_and_finishes_both_caches(options: dict[str, Any]) -> None:
    options |= {"holdout": "0.2:3", "finish": True}
    there = elsewhere(options)
    expected = build(**there)
    done = submit(**options, runner=RUNNER)
    places = [Storage.at(f"{options['to']}{end}").url for end in ("", "-holdout")]
    assert list(done.plans) == places
    for end in ("", "-holdout"):
        cache = cachelib.open(options["to"] + end)
        assert cache.snapshot.commit.finished
        assert digest_of(options["to"] + end) == digest_of(there["to"] + end)
    assert expected.holdout is not None
    again = submit(**options, runner=RUNNER)
    assert not again.plans


def test_a_submission_that_goes_on_with_a_stored_plan_names_what_it_lacks(
    options: dict[str, Any], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = tasks.commit

    def once(job: Any, *rest: Any) -> Any:
        if job.waves.start:
            raise RuntimeError("the engine dies")
        return commit(job, *rest)

    monkeypatch.setattr(tasks, "commit", once)
    with pytest.raises(RuntimeError):
        submit(**options, runner=RUNNER)
    monkeypatch.undo()
    write_jsonl(corpus / "new.jsonl", sentences(5, 3), 7000)
    (note,) = submit(**options, runner=RUNNER).notes
    assert "lacks 1 source more: submit again when it is done" in note
    assert len(cachelib.open(options["to"])) == 500
    submit(**options, runner=RUNNER)
    assert len(cachelib.open(options["to"])) == 505


def graph_of(options: dict[str, Any]) -> beam.Pipeline:
    """The graph of a build, not run."""
    request = inquire(build_config(options))
    plan = next_plan(request).plan
    assert plan is not None
    pipeline = beam.Pipeline(options=PipelineOptions([]))
    _ = pipeline | "Cache" >> FillCache(whole_of(request, plan, finishes=True, fails=True), 8)
    return pipeline


STEPS = [
    f"Cache/{step} {branch:02d}"
    for branch in range(3)
    for step in ("Waves", "WriteShards", "MergeShards", "CommitShards")
]
PASSES = [
    f"Cache/{step} {number}"
    for number in range(2)
    for step in ("Runs", "MergeRanges", "CommitRanges")
]


def described(options: dict[str, Any]) -> dict[str, Any]:
    """Step names, and the coders of what crosses a shuffle, of a build's graph."""
    proto = graph_of(options).to_runner_api(context=PipelineContext())
    components = proto.components
    transforms = list(components.transforms.values())
    names = sorted(t.unique_name for t in transforms)
    shuffles = [t for t in transforms if "group_by_key" in t.spec.urn]
    coders = {}
    for each in sorted(shuffles, key=lambda each: each.unique_name):
        (collection,) = each.inputs.values()
        coders[each.unique_name] = list(
            coder_of(components, components.pcollections[collection].coder_id)
        )
    return {"names": names, "coders": coders}


def coder_of(components: Any, coder: str) -> Iterator[str]:
    """The kinds of a coder and of those that it is made of; a pickled one with all that it is."""
    found = components.coders[coder]
    yield f"{found.spec.urn} {found.spec.payload.hex()}"
    for part in found.component_coder_ids:
        yield from coder_of(components, part)


@pytest.mark.parametrize("order", ORDERS)
def test_steps_have_names_that_stay(options: dict[str, Any], order: str) -> None:
    options |= {"order": order, "split_bytes": 16_384}
    names = described(options)["names"]
    assert len(set(names)) == len(names)
    top = [name for name in names if name.count("/") == 1 and name.startswith("Cache/")]
    expected = STEPS if order == "source" else STEPS + PASSES
    assert top == sorted([*expected, "Cache/Conclude", "Cache/Plan"])


def test_the_graph_is_the_same_in_every_process(options: dict[str, Any]) -> None:
    """So that a job can be replaced by one that is submitted anew."""
    code = (
        "import json, sys; from tests.pipelines.test_whole import described; "
        "print(json.dumps(described(json.loads(sys.argv[1]))))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code, json.dumps({**options, "order": "shuffle(3)"})],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert json.loads(found[0])["coders"]
