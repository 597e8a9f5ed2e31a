"""The ledger: one winner a version, a newest version found by few reads, checkpoints that agree."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib.errors import CacheNotFound, CorruptData, IncompatibleCache
from cachelib.format.canonical import seal
from cachelib.format.commit import FORMAT, Commit, commit_key
from cachelib.format.coverage import Taken, merge
from cachelib.format.digest import Digest, fold
from cachelib.format.entries import Entries
from cachelib.format.ledger import Ledger, Newest
from cachelib.format.schema import Schema
from cachelib.format.shard import Manifest
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import CHECKPOINT_EVERY, add_counts, follow
from tests.cachelib.helpers import EVERY_KIND, TOKENS, random_columns, write_cache


def manifest(name: str, rows: int = 2, tokens: int = 5) -> Manifest:
    """A manifest of a shard that is not there: the ledger never looks at shards."""
    return Manifest(
        shard=name,
        attempt="f",
        rows=rows,
        elements={"tokens": tokens},
        digest=str(Digest(rows, len(name) * 1000 + tokens)),
        covers=(),
        records=rows + 1,
        rejects={"bad": 1},
        counts={"audited": 2},
        task={},
    )


def following(ledger: Ledger, parent: Snapshot | None, *manifests: Manifest, **more: Any) -> Commit:
    return follow(
        ledger,
        parent,
        **{
            "operation": "create" if parent is None else "append",
            "task": {"by": "test"},
            "schema": TOKENS,
            "identity": {"processor": "test"},
            "manifests": manifests,
            "coverage": {
                "source": [m.shard for m in manifests],
                "version": ["1" for _ in manifests],
                "ranges": [[[0, 9]] for _ in manifests],
                "extent": [9 for _ in manifests],
            },
            **more,
        },
    )


def grow(ledger: Ledger, count: int) -> list[Commit]:
    """Append commits of one shard each, carried on from the snapshot before without reading it."""
    commits: list[Commit] = []
    entries = Entries()
    snapshot: Snapshot | None = None
    if ledger.head() is not None:
        snapshot = ledger.snapshot()
        entries = snapshot.entries
    for _ in range(count):
        version = 0 if snapshot is None else snapshot.version + 1
        commit = following(ledger, snapshot, manifest(f"s{version}", version % 3, version))
        assert ledger.append(commit) is commit
        commits.append(commit)
        entries = Entries.concatenate([entries, commit.entries])
        snapshot = Snapshot.of(commit, entries)
    return commits


@dataclass(frozen=True)
class Counting(Storage):
    """A storage that counts the objects read from it."""

    keys: list[str] = field(default_factory=list, compare=False)

    def read_many(self, keys: Iterable[str]) -> list[bytes | None]:
        asked = list(keys)
        self.keys.extend(asked)
        return super().read_many(asked)


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    assert found.commit.to_json() == expected.commit.to_json()
    assert found.entries.to_json() == expected.entries.to_json()
    np.testing.assert_array_equal(found.row_bases, expected.row_bases)
    assert found.element_bases.keys() == expected.element_bases.keys()
    for name, bases in expected.element_bases.items():
        np.testing.assert_array_equal(found.element_bases[name], bases)


def test_commits_add_up(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    first = ledger.append(following(ledger, None, manifest("a", 2, 5), manifest("bb", 0, 0)))
    second = ledger.append(following(ledger, ledger.snapshot(), manifest("c", 3, 7)))
    last = ledger.append(
        following(
            ledger, ledger.snapshot(), operation="finish", coverage=None, seals=True, finished=True
        )
    )
    assert (first.parent, second.parent, last.parent) == ("", first.digest, second.digest)
    assert (first.row_base, second.row_base, last.row_base) == (0, 2, 5)
    assert second.totals == last.totals
    assert second.totals == {
        "rows": 5,
        "elements": {"tokens": 12},
        "digest": str(fold([Digest(2, 1005), Digest(0, 2000), Digest(3, 1007)])),
        "shards": 3,
    }
    assert (first.records, first.rejects, first.counts) == (4, {"bad": 2}, {"audited": 4})
    snapshot = ledger.snapshot()
    assert snapshot.version == 2
    assert snapshot.entries.shard == ("a", "bb", "c")
    assert snapshot.row_bases.tolist() == [0, 2, 2, 5]
    assert snapshot.element_bases["tokens"].tolist() == [0, 5, 5, 12]
    assert snapshot.rows == 5
    assert snapshot.digest == Digest.parse(last.totals["digest"])
    assert ledger.snapshot(0).entries.shard == ("a", "bb")
    assert (first.finished, second.finished, last.finished) == (False, False, True)


def test_eras_end_where_commits_seal_and_are_never_empty(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    ledger.append(following(ledger, None, manifest("a", 0), seals=True))  # no row yet
    ledger.append(following(ledger, ledger.snapshot(), manifest("b", 3), seals=True))
    ledger.append(following(ledger, ledger.snapshot(), manifest("c", 2)))
    seal = {"operation": "seal", "coverage": None, "seals": True}
    ledger.append(following(ledger, ledger.snapshot(), **seal))
    ledger.append(following(ledger, ledger.snapshot(), **seal))  # nothing new to seal
    ledger.append(following(ledger, ledger.snapshot(), manifest("d", 1)))
    assert ledger.snapshot(0).eras.tolist() == []
    assert ledger.snapshot(2).eras.tolist() == [3]
    assert ledger.snapshot().eras.tolist() == [3, 5]
    for _ in range(CHECKPOINT_EVERY):  # so that a checkpoint stands for the commits that seal
        ledger.append(following(ledger, ledger.snapshot()))
    assert ledger.snapshot().eras.tolist() == [3, 5]


@pytest.mark.parametrize("schema", [TOKENS, EVERY_KIND])
def test_commit_json_round_trips(tmp_path: Path, schema: Schema) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    commit = following(ledger, None, manifest("a"), schema=schema)
    again = Commit.from_json(commit.to_json(), "here")
    assert again.to_json() == commit.to_json()
    assert again.digest == commit.digest


def test_a_commit_is_a_function_of_what_it_is_made_of(tmp_path: Path) -> None:
    commits = []
    for name in ("one", "two"):
        ledger = Ledger(Storage.at(tmp_path / name))
        grow(ledger, 2)
        commits.append(ledger.append(following(ledger, ledger.snapshot(), manifest("x"))))
    assert commits[0].digest == commits[1].digest
    for version in range(3):
        one, two = (tmp_path / name / commit_key(version) for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_unknown_operations_are_refused(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    with pytest.raises(ValueError, match="'destroy'"):
        following(ledger, None, operation="destroy")


def test_a_commit_that_is_there_counts_as_won(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    commit = following(ledger, None, manifest("a"))
    other = following(ledger, None, manifest("b"))
    assert ledger.append(commit).digest == commit.digest
    assert ledger.append(replace(commit)).digest == commit.digest
    assert ledger.append(other).digest == commit.digest
    assert ledger.snapshot().entries.shard == ("a",)


def race(path: str, name: str, versions: int, barrier: Any) -> list[tuple[int, str]]:
    """Append to a ledger against others; returns (version, digest) of what this one won."""
    ledger = Ledger(Storage.at(path))
    won = []
    barrier.wait(30)
    while (parent := ledger.snapshot()).version < versions:
        commit = following(ledger, parent, manifest(f"{name}-{parent.version + 1}"))
        if ledger.append(commit).digest == commit.digest:
            won.append((commit.version, commit.digest))
    return won


def check_race(path: Path, won: list[list[tuple[int, str]]], versions: int) -> None:
    ledger = Ledger(Storage.at(path))
    stored = {commit.version: commit.digest for commit in ledger.commits(1, versions + 1)}
    everything = [pair for pairs in won for pair in pairs]
    assert len(everything) == versions  # each version was won once
    assert dict(everything) == stored
    names = ledger.snapshot().entries.shard
    assert len(set(names)) == len(names) == versions + 1


def test_of_threads_one_wins_each_version(tmp_path: Path) -> None:
    grow(Ledger(Storage.at(tmp_path)), 1)
    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(race, str(tmp_path), f"t{i}", 12, barrier) for i in range(8)]
        check_race(tmp_path, [run.result() for run in runs], 12)


def _race(path: str, name: str, versions: int, barrier: Any, results: Any) -> None:
    results.put(race(path, name, versions, barrier))


def test_of_processes_one_wins_each_version(tmp_path: Path) -> None:
    grow(Ledger(Storage.at(tmp_path)), 1)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=_race, args=(str(tmp_path), f"p{i}", 20, barrier, results))
        for i in range(3)
    ]
    for process in processes:
        process.start()
    won = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    check_race(tmp_path, won, 20)


@pytest.mark.parametrize("versions", [1, 2, 3, 8, 37])
@pytest.mark.parametrize(
    "hint", [None, b"0", b"1", b"36", b"37", b"9999999", b"", b"x", b"-1", b"1\n", b"9" * 5000]
)
def test_the_newest_version_is_found_whatever_the_hint_says(
    tmp_path: Path, versions: int, hint: bytes | None
) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    grow(ledger, versions)
    (tmp_path / "_ledger/head").unlink()
    if hint is not None:
        (tmp_path / "_ledger/head").write_bytes(hint)
    counting = Counting(ledger.storage.url)
    assert Ledger(counting).head() == versions - 1
    assert len(counting.keys) <= 4 + 2 * versions.bit_length()


@pytest.mark.parametrize("hint", [None, b"0", b"5"])
def test_no_cache(tmp_path: Path, hint: bytes | None) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    if hint is not None:
        ledger.storage.write("_ledger/head", hint)
    assert ledger.head() is None
    said = (
        "there is no cache here" if hint is None else f"_ledger/head names version {int(hint)}, but"
    )
    with pytest.raises(CacheNotFound, match=f"{tmp_path}/: {said}"):
        ledger.snapshot()


def test_a_lost_newest_commit_is_warned_of(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    grow(ledger, 3)
    assert ledger.newest() == Newest(2, None)
    (tmp_path / commit_key(2)).unlink()
    assert ledger.newest() == Newest(1, 2)
    with pytest.warns(
        UserWarning, match="_ledger/head names version 2, but the newest is 1: commits"
    ):
        assert cachelib.open(tmp_path).version == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cachelib.open(tmp_path, version=1).version == 1
    # A hint that lags, as it may, is no loss.
    (tmp_path / "_ledger/head").write_bytes(b"0")
    assert ledger.newest() == Newest(1, None)


def test_no_such_version(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    grow(ledger, 3)
    for version in (3, 100, -1, 10**30):
        with pytest.raises(
            CacheNotFound, match=rf"no version {version}; versions 0 to 2 are there$"
        ):
            ledger.snapshot(version)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Commit]]:
    """A ledger with two checkpoints and a few commits after them."""
    path = tmp_path_factory.mktemp("long")
    return path, grow(Ledger(Storage.at(path)), 2 * CHECKPOINT_EVERY + 6)


@pytest.mark.parametrize("version", [0, 1, 62, 63, 64, 65, 127, 128, 129, 133])
def test_checkpoints_stand_for_the_commits_before(
    long: tuple[Path, list[Commit]], version: int
) -> None:
    path, commits = long
    storage = Counting(Storage.at(path).url)
    ledger = Ledger(storage)
    found = ledger.snapshot(version)
    reads = len(storage.keys)
    entries = Entries.concatenate([commit.entries for commit in commits[: version + 1]])
    assert_same(found, Snapshot.of(commits[version], entries))
    assert reads <= CHECKPOINT_EVERY + 3
    if version >= CHECKPOINT_EVERY:
        assert found.commit.base is not None
        assert found.commit.base["version"] == version // CHECKPOINT_EVERY * CHECKPOINT_EVERY - 1
        assert reads == 3 + version % CHECKPOINT_EVERY
    deltas = ledger.coverage_deltas(found)
    taken = Taken("1", ((0, 9),), 9)
    assert merge(deltas) == {f"s{v}": taken for v in range(version + 1)}
    assert len(deltas) <= CHECKPOINT_EVERY + 1


def test_the_commit_before_may_be_read_through_its_checkpoint(
    long: tuple[Path, list[Commit]],
) -> None:
    """A commit made from what is read is the one made from what was kept in memory."""
    path, commits = long
    ledger = Ledger(Storage.at(path))
    for version in (64, 128, 130):
        again = following(
            ledger, ledger.snapshot(version - 1), manifest(f"s{version}", version % 3, version)
        )
        assert again.digest == commits[version].digest


def test_entries_are_cut_into_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelib.format.ledger.SEGMENT_ENTRIES", 10)
    ledger = Ledger(Storage.at(tmp_path))
    grow(ledger, CHECKPOINT_EVERY + 1)
    snapshot = ledger.snapshot()
    assert snapshot.commit.base is not None
    assert len(snapshot.commit.base["segments"]) == 7
    assert len(snapshot.entries) == CHECKPOINT_EVERY + 1
    assert snapshot.entries.shard == tuple(f"s{v}" for v in range(CHECKPOINT_EVERY + 1))


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    last = grow(ledger, CHECKPOINT_EVERY + 1)[-1]
    assert last.base is not None
    (tmp_path / f"_ledger/checkpoint/{last.base['segments'][0]}.json").unlink()
    with pytest.raises(CorruptData, match="is missing, though a commit names it"):
        ledger.snapshot()


def test_a_commit_that_does_not_follow_is_an_error(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    grow(ledger, 2)
    key = commit_key(2)
    commit = replace(following(ledger, ledger.snapshot(), manifest("x")), parent="0" * 32)
    ledger.storage.write(key, seal(commit.to_json()))
    with pytest.raises(CorruptData, match=f"{key} names parent {'0' * 32}, but commit 1"):
        ledger.snapshot()


def test_a_missing_commit_is_an_error(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    grow(ledger, 4)
    (tmp_path / commit_key(1)).unlink()
    with pytest.raises(CorruptData, match=f"{commit_key(1)} is missing, though later commits"):
        ledger.snapshot(3)


@pytest.mark.parametrize("number", [FORMAT + 1, None, "1"])
def test_other_formats_are_refused(tmp_path: Path, number: Any) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    grow(ledger, 1)
    value = {**ledger.commit(0).to_json(), "format": number, "more": 1}
    ledger.storage.write(commit_key(0), seal(value))
    with pytest.raises(IncompatibleCache, match=f"is in format {number}, .* reads format {FORMAT}"):
        cachelib.open(tmp_path)


def test_a_cache_without_shards_can_be_opened_and_extended(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    ledger.append(following(ledger, None))
    cache = cachelib.open(tmp_path)
    assert len(cache) == cache.elements("tokens") == 0
    assert len(cache.take([])["tokens"]) == 0
    ledger.append(following(ledger, ledger.snapshot(), manifest("a", 2, 5)))
    assert len(cachelib.open(tmp_path)) == 2


def test_a_snapshot_stays_what_it_is(tmp_path: Path) -> None:
    columns = random_columns(TOKENS, [2, 0, 3, 1], 0)
    write_cache(tmp_path, TOKENS, columns, [[1, 1], [2]])
    old, new = cachelib.open(tmp_path, 0), cachelib.open(tmp_path)
    assert (len(old), len(new)) == (2, 4)
    with pytest.raises(IndexError):
        old.take([2])


def test_counts_add_up() -> None:
    assert add_counts([{"b": 1}, {}, {"a": 2, "b": 3}]) == {"a": 2, "b": 4}
    assert list(add_counts([{"b": 1}, {"a": 2}])) == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"operation": "explode"}, IncompatibleCache, "operation 'explode'"),
        ({"eras": []}, IncompatibleCache, "eras"),
        ({"version": 7}, CorruptData, "version 7, expected 0"),
        ({"totals": {"rows": 99}}, CorruptData, "rows 3, expected 99"),
        ({"totals": {"elements": {"tokens": 1}}}, CorruptData, "elements"),
        ({"totals": {"shards": 2}}, CorruptData, "shards 1, expected 2"),
    ],
)
def test_a_commit_that_cannot_be_meant_is_refused(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], said: str
) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    value = following(ledger, None, manifest("s0", 3, 0)).to_json()
    for key, new in change.items():
        value[key] = {**value[key], **new} if isinstance(new, dict) else new
    ledger.storage.write(commit_key(0), seal(value))
    with pytest.raises(error, match=said):
        ledger.snapshot()


def test_an_object_under_another_name_than_its_digest_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    ledger.storage.write("_ledger/checkpoint/00.json", seal({"source": []}))
    with pytest.raises(CorruptData, match="not its own"):
        ledger.checkpointed(["00"])


def test_another_schema_than_the_cache_has_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(Storage.at(tmp_path))
    ledger.append(following(ledger, None, manifest("s0", 3, 0)))
    other = Schema(tuple(replace(f, chunk=f.chunk // 2) for f in TOKENS.fields))
    with pytest.raises(IncompatibleCache, match="has the schema"):
        following(ledger, ledger.snapshot(), manifest("s1", 3, 0), schema=other)
