"""Verify finds what is wrong with a cache whose objects are each sound by themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib.errors import CacheNotFound, IncompatibleCache
from cachelib.format.canonical import seal
from cachelib.format.commit import Commit, commit_key
from cachelib.format.entries import Entries
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import Cover, ShardWriter, attempt_prefix, offsets_metadata, publish
from cachelib.format.storage import Storage
from cachelib.format.succession import CHECKPOINT_EVERY, follow
from cachelib.ragged import Ragged
from cachelib.reading import scan as scan_module
from cachelib.reading.scan import in_order, runs
from cachelib.verification import Progress, difference, verify
from tests.cachelib.helpers import (
    EVERY_KIND,
    TOKENIZER,
    TOKENS,
    Columns,
    append_commit,
    coverage_of,
    random_columns,
    take,
    with_tokenizer,
    write_cache,
    write_shard,
)

LENGTHS = [3, 0, 1, 2, 0, 5, 40, 1, 0, 2]


def found(storage: Storage, version: int | None = None) -> list[str]:
    return [str(problem) for problem in verify(storage, version)]


@pytest.mark.parametrize("schema", [TOKENS, EVERY_KIND], ids=["tokens", "every kind"])
@pytest.mark.parametrize("commits", [[[10]], [[0], [3, 0, 2], [5]], [[1]] * 10], ids=str)
def test_a_sound_cache_has_no_problems(
    tmp_path: Path, schema: Schema, commits: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = random_columns(schema, LENGTHS, seed=1)
    storage = write_cache(tmp_path, schema, columns, commits, rejects=["bad"])
    append_commit(storage, schema, [], finish=True)
    assert found(storage) == []
    assert found(storage, 0) == []
    monkeypatch.setattr(scan_module, "BYTES_AT_ONCE", 10)  # many blocks a shard
    assert found(storage) == []
    monkeypatch.setattr(scan_module, "ROWS_AT_ONCE", 2)
    assert found(storage) == []


def test_a_long_ledger_with_checkpoints_is_sound(tmp_path: Path) -> None:
    count = CHECKPOINT_EVERY + 3
    columns = random_columns(TOKENS, [1] * count, seed=1)
    storage = write_cache(tmp_path, TOKENS, columns, [[1]] * count)
    seen: list[Progress] = []
    assert [str(p) for p in verify(storage, progress=seen.append)] == []
    assert seen[-1] == Progress(count, count, count, count)
    assert len(seen) == count


def test_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(CacheNotFound, match="there is no cache here"):
        found(Storage.at(tmp_path))
    storage = write_cache(tmp_path, TOKENS, random_columns(TOKENS, [1], 0), [[1]])
    for version in (1, -1):
        with pytest.raises(CacheNotFound, match=f"no version {version}; only version 0 is there"):
            found(storage, version)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    storage = write_cache(tmp_path, TOKENS, random_columns(TOKENS, [1], 0), [[1]])
    value = Ledger(storage).commit(0).to_json()
    storage.write(commit_key(0), seal({**value, "format": 2}))
    with pytest.raises(IncompatibleCache, match="is in format 2"):
        found(storage)


def rewrite(storage: Storage, version: int, change: Callable[[Commit], Commit]) -> None:
    """Change a commit and let those after it follow from it again."""
    ledger = Ledger(storage)
    head = ledger.head()
    assert head is not None
    commits = ledger.commits(0, head + 1)
    commits[version] = change(commits[version])
    for later in range(version + 1, head + 1):
        commits[later] = replace(commits[later], parent=commits[later - 1].digest)
    for number, commit in enumerate(commits[version:], version):
        storage.write(commit_key(number), seal(commit.to_json()))


def changed_total(name: str, value: Any) -> Callable[[Commit], Commit]:
    return lambda commit: replace(commit, totals={**commit.totals, name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: replace(c, row_base=3), "says first row 3, expected 4"),
        (lambda c: replace(c, version=7), "says version 7, expected 1"),
        (lambda c: replace(c, operation="create"), "has operation 'create' as commit 1"),
        (lambda c: replace(c, records=5), "says records 5, its manifests have 6"),
        (lambda c: replace(c, rejects={"bad": 1}), r"says rejects {'bad': 1}, its manifests"),
        (lambda c: replace(c, counts={}), r"says counts {}, its manifests have {'audited': 2}"),
        (changed_total("rows", 11), "says rows 11, expected 10"),
        (changed_total("shards", 5), "says shards 5, expected 4"),
        (changed_total("elements", {"tokens": 53}), r"says elements {'tokens': 53}, expected"),
        (changed_total("digest", "10:0"), "says content digest 10:0, expected"),
        (lambda c: replace(c, schema=Schema(TOKENS.fields[:1])), "says schema"),
        (lambda c: replace(c, coverage=None), "but no coverage"),
        (lambda c: replace(c, coverage="0" * 32), "is missing"),
        (lambda c: replace(c, entries=c.entries.slice(0, 1)), "expected"),
        (
            lambda c: replace(c, entries=replace(c.entries, attempt=("x", "y"))),
            r"manifest\.json: says attempt",
        ),
        (
            lambda c: replace(c, entries=Entries.concatenate([c.entries, c.entries])),
            "holds 2 shards that the cache has already, first 1-0",
        ),
        (
            lambda c: replace(c, entries=replace(c.entries, digests=c.entries.digests[:1])),
            r"has columns of \[1, 2\] shards",
        ),
    ],
)
def test_a_commit_that_says_something_else(
    tmp_path: Path, change: Callable[[Commit], Commit], message: str
) -> None:
    columns = random_columns(TOKENS, LENGTHS, seed=1)
    storage = write_cache(tmp_path, TOKENS, columns, [[1, 3], [4, 2]])
    rewrite(storage, 1, change)
    problems = "\n".join(found(storage))
    assert re.search(message, problems), problems


def test_a_broken_chain_is_named_and_the_rest_still_checked(tmp_path: Path) -> None:
    columns = random_columns(TOKENS, LENGTHS, seed=1)
    storage = write_cache(tmp_path, TOKENS, columns, [[1], [3], [4], [2]])
    commit = Ledger(storage).commit(1)
    storage.write(commit_key(1), seal(replace(commit, task={"other": 1}).to_json()))
    problems = found(storage)
    assert len(problems) == 1
    assert f"{commit_key(2)}: says parent" in problems[0]
    storage.write(commit_key(1), b"{}\n")
    next((tmp_path / "shards/3-0").glob("*/label/data/c/0")).unlink()
    problems = found(storage)
    assert len(problems) == 2
    assert f"{commit_key(1)}: 3 bytes" in problems[0]
    assert "label/data (rows 0 to 2 of the shard)" in problems[1]


def test_a_checkpoint_that_says_something_else(tmp_path: Path) -> None:
    count = CHECKPOINT_EVERY + 1
    columns = random_columns(TOKENS, [1] * count, seed=1)
    storage = write_cache(tmp_path, TOKENS, columns, [[1]] * count)
    ledger = Ledger(storage)
    snapshot = ledger.snapshot(CHECKPOINT_EVERY - 1)
    base = ledger.commit(CHECKPOINT_EVERY).base
    assert base is not None
    name = ledger.put_object(snapshot.entries.slice(1, CHECKPOINT_EVERY).to_json())
    for other, message in (
        ({**base, "segments": [name]}, "does not hold the shards"),
        ({**base, "coverage": base["coverage"][1:]}, "another coverage"),
        ({**base, "version": 3}, "has a checkpoint of version 3, not 63"),
        ({**base, "segments": ["0" * 32]}, "is missing, though a commit names it"),
    ):
        rewrite(storage, CHECKPOINT_EVERY, lambda c, other=other: replace(c, base=other))  # type: ignore[misc]
        problems = found(storage)
        assert len(problems) == 1
        assert message in problems[0]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([[0, 7]], r"'numbers' ends|says \[\[0, 7\]\] of 'numbers', the manifests \[\(0, 10\)\]"),
        ([[0, 10], [10, 12]], "the manifests"),
        ([], "the manifests"),
    ],
)
def test_a_coverage_that_says_something_else(
    tmp_path: Path, ranges: list[list[int]], message: str
) -> None:
    storage = write_cache(tmp_path, TOKENS, random_columns(TOKENS, LENGTHS, 1), [[10]])
    value = {"source": ["numbers"], "version": ["1"], "ranges": [ranges], "extent": [None]}
    name = Ledger(storage).put_object(value)
    rewrite(storage, 0, lambda commit: replace(commit, coverage=name))
    problems = found(storage)
    assert len(problems) == 1
    assert re.search(message, problems[0])


def test_what_was_taken_in_twice_is_named(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    columns = random_columns(TOKENS, LENGTHS, seed=1)
    for number, start in enumerate((0, 5)):  # the second begins inside the first
        manifest = publish(storage, write_shard(storage, TOKENS, str(number), columns, start=start))
        append_commit(storage, TOKENS, [manifest])
    problems = found(storage)
    assert len(problems) == 1
    assert "took in 'numbers' again: [5, 15) beside [0, 10)" in problems[0]


def test_another_version_of_a_source_is_named(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    columns = random_columns(TOKENS, LENGTHS, seed=1)
    ledger = Ledger(storage)
    for number in range(2):
        manifest = write_shard(storage, TOKENS, str(number), columns, start=10 * number)
        publish(storage, manifest)
        coverage = {**(coverage_of([manifest]) or {}), "version": [f"v{number}"]}
        commit = follow(
            ledger,
            ledger.snapshot() if number else None,
            operation="append" if number else "create",
            task={},
            schema=TOKENS,
            identity={},
            manifests=[manifest],
            coverage=coverage,
        )
        ledger.append(commit)
    problems = found(storage)
    assert len(problems) == 1
    assert "took in 'numbers' as v1, before it was v0" in problems[0]


def write_rows(
    storage: Storage, columns: Columns, covers: list[Cover], sources: list[str], index: list[int]
) -> None:
    """One commit of one shard whose provenance need not be right."""
    writer = ShardWriter(storage, TOKENS, "a")
    for name in sources:
        writer.source(name)
    writer.append(columns, np.array(index, np.uint32), np.arange(len(index)))
    manifest = publish(storage, writer.finish(covers=covers, counts={}, task={}))
    append_commit(storage, TOKENS, [manifest])


def test_rows_that_nothing_covers_are_named(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    columns = random_columns(TOKENS, [1, 2, 3], seed=1)
    covers = [Cover("x", 0, 1, False), Cover("y", 1, 2, False)]
    write_rows(storage, columns, covers, ["x", "y"], [0, 1, 1])
    problems = found(storage)
    assert len(problems) == 1
    assert "_position/data: row 2 lies at 2 of 'y', which the manifest does not" in problems[0]


def test_sources_out_of_range_are_named(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    columns = random_columns(TOKENS, [1, 2, 3], seed=1)
    write_rows(storage, columns, [Cover("x", 0, 3, False)], ["x", "y"], [0, 1, 1])
    file = next(tmp_path.glob("shards/a/*/details.json"))
    details = storage.read_json(file.relative_to(tmp_path).as_posix())
    assert details is not None
    file.write_bytes(seal({**details, "sources": ["x"]}))
    assert any("_source/data: row 1 names source 1 of 1" in problem for problem in found(storage))


def test_what_this_process_has_read_does_not_hide_damage(tmp_path: Path) -> None:
    columns = random_columns(TOKENS, LENGTHS, seed=1)
    storage = write_cache(tmp_path, TOKENS, columns, [[10]])
    cache = cachelib.open(tmp_path)
    cache.take(np.arange(10))  # decoded chunks are kept from now on
    assert found(storage) == []
    for file in tmp_path.rglob("data/c/0"):
        data = bytearray(file.read_bytes())
        data[3] ^= 1
        file.write_bytes(data)
    assert len(found(storage)) == 1


def test_offsets_that_run_wrong_are_named(tmp_path: Path) -> None:
    """Offsets written by a faulty writer: each chunk has the right checksum."""
    good = np.array([0, 2, 2, 5], np.int64)
    for number, (bad, message) in enumerate(
        [
            ([0, 3, 2, 5], "row 1 has a negative length"),
            ([1, 2, 2, 5], "row 0 begins at 1"),
            ([0, 2, 2, 4], "row 2 ends at 4, but the shard has 5 values"),
            ([0, 2, 6, 7], "row 2 ends at 7, but the shard has 5 values"),
            ([0, 1, 2, 5], "its rows have digest"),
        ]
    ):
        folder = tmp_path / str(number)
        storage = Storage.at(folder)
        rows = Ragged(np.arange(5, dtype=np.uint16), good)
        write_rows(
            storage,
            {"tokens": rows, "label": np.arange(3)},
            [Cover("x", 0, 3, False)],
            ["x"],
            [0] * 3,
        )
        entries = Ledger(storage).snapshot().entries
        key = attempt_prefix(entries.shard[0], entries.attempt[0]) + "tokens/offsets"
        array = storage.open_array(key, offsets_metadata(3), write=True)
        array[:].write(np.array(bad, np.int64)).result()
        problems = found(storage)
        assert message in problems[0], problems


def test_a_lost_newest_commit_is_told_by_the_hint(tmp_path: Path) -> None:
    columns = random_columns(TOKENS, [1, 2], 0)
    storage = write_cache(tmp_path, TOKENS, columns, [[1], [1]])
    assert found(storage) == []
    (tmp_path / "_ledger" / f"{1:020d}.json").unlink()
    assert any("names version 1, but the newest commit is 0" in what for what in found(storage))


def test_a_commit_of_a_newer_format_is_named(tmp_path: Path) -> None:
    storage = write_cache(tmp_path, TOKENS, random_columns(TOKENS, [1], 0), [[1]])
    key = f"_ledger/{0:020d}.json"
    value = storage.read_json(key)
    assert value is not None
    storage.write(key, seal({**value, "operation": "explode"}))
    with pytest.raises(IncompatibleCache, match="operation 'explode'"):
        found(storage)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    columns = random_columns(TOKENS, [1], 0)
    storage = write_cache(tmp_path, TOKENS, columns, [[1]], identity=with_tokenizer({}, b"{}"))
    assert any("abc/tokenizer.json: is missing" in problem for problem in found(storage))
    storage.write(TOKENIZER, b"[]")
    assert any("abc/tokenizer.json: has digest" in problem for problem in found(storage))
    storage.write(TOKENIZER, b"{}")
    assert found(storage) == []


def test_caches_of_the_same_rows_do_not_differ(tmp_path: Path) -> None:
    columns = random_columns(EVERY_KIND, LENGTHS, seed=1)
    write_cache(tmp_path / "a", EVERY_KIND, columns, [[10]])
    write_cache(tmp_path / "b", EVERY_KIND, columns, [[3, 0], [4, 3]])
    one, other = cachelib.open(tmp_path / "a"), cachelib.open(tmp_path / "b")
    assert difference(one, other) is None
    assert difference(one, one) is None


@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_the_first_row_that_differs_is_found(tmp_path: Path, row: int) -> None:
    columns = random_columns(EVERY_KIND, LENGTHS, seed=1)
    write_cache(tmp_path / "a", EVERY_KIND, columns, [[10]])
    label = np.array(columns["label"])
    label[row:] ^= 1
    write_cache(tmp_path / "b", EVERY_KIND, {**columns, "label": label}, [[3, 0], [4, 3]])
    one, other = cachelib.open(tmp_path / "a"), cachelib.open(tmp_path / "b")
    expected = f"begin to differ at row {row} (numbers:{row} and numbers:{row})"
    assert expected in (difference(one, other) or "")
    assert expected in (difference(other, one) or "")


def test_a_beginning_and_another_schema_are_named(tmp_path: Path) -> None:
    columns = random_columns(TOKENS, LENGTHS, seed=1)
    write_cache(tmp_path / "a", TOKENS, columns, [[10]])
    write_cache(tmp_path / "b", TOKENS, take(columns, slice(0, 7)), [[2], [5]])
    other = Schema((Field("tokens", "uint32", ragged=True),))
    write_cache(tmp_path / "c", other, random_columns(other, [1], 0), [[1]])
    a, b, c = (cachelib.open(tmp_path / name) for name in "abc")
    for one, two in ((a, b), (b, a)):
        words = difference(one, two) or ""
        assert words.startswith("the first 7 rows are the same")
        assert words.endswith("a/ has 10 rows")
    assert (difference(a, c) or "").startswith("the schemas differ")


def test_runs_keep_to_their_limit() -> None:
    sizes = np.array([3, 0, 9, 1, 1, 1, 20, 0, 2], np.int64)
    cut = list(runs(sizes, 4))
    assert [i for first, last in cut for i in range(first, last)] == list(range(9))
    assert all(sizes[first:last].sum() <= 4 or last == first + 1 for first, last in cut)
    assert list(runs(np.zeros(0, np.int64), 4)) == []
    assert list(runs(np.zeros(3, np.int64), 4)) == [(0, 3)]


def test_results_come_in_order_and_errors_too() -> None:
    assert list(in_order(lambda i: i * i, range(100))) == [i * i for i in range(100)]
    results = in_order(lambda i: 1 // (i - 3), range(100))
    assert [next(results) for _ in range(3)] == [-1, -1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)
