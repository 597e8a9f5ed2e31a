"""Verify and stats after deletions, compactions and collections of garbage."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelib
from cachelib.commands.cli import main
from cachelib.commands.stats import statistics
from cachelib.errors import SnapshotExpired
from cachelib.format.commit import Commit
from cachelib.format.ledger import Ledger
from cachelib.format.shard import attempt_prefix, manifest_key
from cachelib.format.storage import Storage
from cachelib.format.succession import retire
from cachelib.ragged import Ragged
from cachelib.verification import Progress, difference, garbage, verify
from tests.cachelib.gaps import compact, delete
from tests.cachelib.helpers import (
    EVERY_KIND,
    Columns,
    append_commit,
    random_columns,
    take,
    write_cache,
)
from tests.cachelib.test_verify import rewrite

LENGTHS = [2, 3, 1, 0, 4, 2, 2, 1]


def found(storage: Storage, version: int | None = None) -> list[str]:
    return [str(problem) for problem in verify(storage, version)]


def collect(storage: Storage, expired: list[tuple[int, int, int]], deletes: bool = True) -> Commit:
    """Give up, and delete, what the newest version does not need."""
    ledger = Ledger(storage)
    parent = ledger.snapshot()
    commits = ledger.commits(0, parent.version + 1)
    named = {pair for c in commits for pair in zip(c.entries.shard, c.entries.attempt, strict=True)}
    attempts = named - set(zip(parent.entries.shard, parent.entries.attempt, strict=True))
    commit = retire(ledger, parent, task={}, attempts=sorted(attempts), expired=expired)
    assert ledger.append(commit).digest == commit.digest
    for shard, attempt in attempts if deletes else ():
        storage.delete(manifest_key(shard))
        storage.delete_folder(attempt_prefix(shard, attempt), first="zarr.json")
    return commit


@settings(max_examples=25)
@given(st.data())
def test_any_history_is_sound(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=16))
    columns = random_columns(EVERY_KIND, lengths, seed=0)
    cuts = data.draw(st.lists(st.integers(0, len(lengths)), max_size=3).map(sorted))
    sizes = np.diff([0, *cuts, len(lengths)]).tolist()
    left = list(range(len(lengths)))
    with tempfile.TemporaryDirectory() as folder:
        storage = write_cache(folder, EVERY_KIND, columns, [sizes])
        for step in range(data.draw(st.integers(0, 4))):
            shards = len(Ledger(storage).snapshot().entries)
            if data.draw(st.booleans()) and left:
                gone = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
                delete(storage, gone, columns)
                left = [row for row in left if row not in gone]
            else:
                start = data.draw(st.integers(0, shards - 1))
                stop = data.draw(st.integers(start + 1, shards))
                compact(storage, start, stop, f"packed-{step}", columns)
        newest = Ledger(storage).snapshot().version
        seen: list[Progress] = []
        assert [str(p) for p in verify(storage, progress=seen.append)] == []
        assert (seen[-1].shards, seen[-1].rows) == (seen[-1].all_shards, seen[-1].all_rows)
        read = seen[-1].shards
        check_stats(storage, columns, left)
        if newest:
            collect(storage, [(0, newest, newest + 1)])
            assert [str(p) for p in verify(storage, progress=seen.append)] == []
            assert seen[-1].collected + seen[-1].shards == read
            assert (seen[-1].shards, seen[-1].rows) == (seen[-1].all_shards, seen[-1].all_rows)
        assert garbage(storage) == 0


def check_stats(storage: Storage, columns: Columns, left: list[int]) -> None:
    """Statistics are those of the rows that are left, also quick ones."""
    tokens = take(columns, np.array(left, np.int64))["tokens"]
    assert isinstance(tokens, Ragged)
    for quick in (False, True):
        stats = statistics(storage, quick=quick)
        assert stats.rows == len(left)
        assert stats.deleted == len(columns["label"]) - len(left)
        assert stats.tokens == len(tokens.values)
        assert stats.empty == np.count_nonzero(tokens.lengths == 0)
        if len(tokens.values):
            limits = (stats.smallest, stats.largest)
            assert limits == (int(tokens.values.min()), int(tokens.values.max()))
        assert sum(stats.histogram) == len(left)
    exact = statistics(storage)
    assert exact.lengths is not None
    assert int(exact.lengths.rows.sum()) == len(left)
    assert exact.sources is not None
    assert exact.sources.rows.sum() == len(left)
    assert exact.sources.tokens.sum() == len(tokens.values)


@pytest.fixture
def columns() -> Columns:
    return random_columns(EVERY_KIND, LENGTHS, seed=1)


@pytest.fixture
def storage(tmp_path: Path, columns: Columns) -> Storage:
    """Two appends, a deletion in shards of both, and a compaction of the first two shards."""
    storage = write_cache(tmp_path, EVERY_KIND, columns, [[3, 3], [2]], rejects=["bad"])
    delete(storage, [1, 4, 6], columns)
    compact(storage, 0, 2, "packed", columns)
    return storage


def test_rows_that_are_not_those_left_are_named(storage: Storage) -> None:
    def change(commit: Commit) -> Commit:
        digests = ("3:0", *commit.entries.digests[1:])
        return replace(commit, entries=replace(commit.entries, digests=digests))

    rewrite(storage, 2, change)
    problems = found(storage)
    assert any("says content digest" in problem for problem in problems)
    assert any("its rows have digest" in problem and "expected 3:0" in problem
               for problem in problems)  # fmt: skip


def test_what_replaces_something_else_is_named(storage: Storage) -> None:
    rewrite(storage, 3, lambda commit: replace(commit, removed=("0-1", "0-0")))
    assert any("are not there in this order" in problem for problem in found(storage))


def test_a_missing_manifest_of_a_packed_shard_is_named(storage: Storage) -> None:
    storage.delete("shards/packed/manifest.json")
    assert found(storage) == [f"{storage.where('shards/packed/manifest.json')}: is missing"]


def test_what_was_given_up_and_is_named_again_is_told(storage: Storage) -> None:
    compact(storage, 1, 2, "more", random_columns(EVERY_KIND, LENGTHS, seed=1))
    entries = Ledger(storage).commit(0).entries
    collect(storage, [(0, 4, 5)], deletes=False)
    append_commit(storage, EVERY_KIND, [])
    rewrite(storage, 6, lambda commit: replace(commit, entries=entries, row_base=8))
    assert any("names attempts that were given up before" in problem for problem in found(storage))


def test_what_is_carried_on_wrongly_is_told(storage: Storage) -> None:
    collect(storage, [(0, 3, 4)])
    append_commit(storage, EVERY_KIND, [])
    rewrite(storage, 5, lambda commit: replace(commit, collected=None))
    assert any("says collected None" in problem for problem in found(storage))


def test_expired_versions_are_told(
    storage: Storage, columns: Columns, capsys: pytest.CaptureFixture[str]
) -> None:
    compact(storage, 1, 2, "more", columns)
    collect(storage, [(0, 4, 5)])
    assert main(["verify", storage.url]) == 0
    assert "not checked: 6 shards of older versions" in capsys.readouterr().out
    assert main(["verify", storage.url, "--version", "1"]) == 1
    assert "SnapshotExpired" in capsys.readouterr().err
    assert main(["stats", storage.url]) == 0
    assert "5, 1 of them empty; 3 more were deleted" in capsys.readouterr().out
    with pytest.raises(SnapshotExpired):
        statistics(storage, 1)
    assert main(["ls", storage.url]) == 0
    assert "expired by 5" in capsys.readouterr().out


def test_rows_left_are_compared(storage: Storage, columns: Columns, tmp_path: Path) -> None:
    left = take(columns, np.array([0, 2, 3, 5, 7]))
    write_cache(tmp_path / "same", EVERY_KIND, left, [[2, 3]])
    same, gapped = cachelib.open(tmp_path / "same"), cachelib.open(storage.url)
    assert difference(gapped, same) is None
    label = np.array(left["label"])
    label[3] ^= 1
    write_cache(tmp_path / "other", EVERY_KIND, {**left, "label": label}, [[1, 4]])
    other = cachelib.open(tmp_path / "other")
    assert difference(gapped, other) == "they begin to differ at row 3 (numbers:3 and numbers:3)"
    write_cache(tmp_path / "less", EVERY_KIND, take(left, slice(0, 2)), [[2]])
    less = difference(gapped, cachelib.open(tmp_path / "less")) or ""
    assert less.startswith("the first 2 rows are the same")
    assert less.endswith("has 5 rows")
