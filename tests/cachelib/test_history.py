"""What versions changed: log, diff, checkout, pin and unpin."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib.commands.cli import main
from cachelib.commands.history import between, minus, missing_objects, steps
from cachelib.format.storage import Storage
from tests.cachelib.gaps import compact, delete
from tests.cachelib.helpers import EVERY_KIND, append_commit, random_columns, write_cache

LENGTHS = [2, 3, 1, 0, 4, 2, 2, 1]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Two appends, a deletion, a compaction, the end."""
    columns = random_columns(EVERY_KIND, LENGTHS, seed=1)
    storage = write_cache(tmp_path, EVERY_KIND, columns, [[3, 3], [2]], rejects=["bad"])
    delete(storage, [1, 4, 5], columns)
    compact(storage, 0, 2, "packed", columns)
    append_commit(storage, EVERY_KIND, [], finish=True)
    return storage


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_each_version_tells_what_it_changed(storage: Storage) -> None:
    found = [(s.commit.operation, s.shards, s.rows, s.elements["tokens"]) for s in steps(storage)]
    assert found == [
        ("create", 2, 6, 12),
        ("append", 1, 2, 3),
        ("delete", 0, -3, -9),
        ("compact", -1, 0, 0),
        ("finish", 0, 0, 0),
    ]
    assert len(steps(storage, 2)) == 3


@pytest.mark.parametrize("number", ["0", "-1", "-5", "x"])
def test_log_shows_one_version_at_least(
    storage: Storage, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(capsys, "log", storage.url, "-n", number)
    assert ended.value.code == 2
    assert f"argument -n: '{number}' is no whole number from 1 on" in capsys.readouterr().err


def test_log_shows_the_newest_first(storage: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "pin", storage.url, "run17", "--version", "1")[0] == 0
    status, out, err = run(capsys, "log", storage.url)
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        "version operation task shards rows tokens big frames",
        "4 finish . . . . . finished",
        "3 compact -1 . . . .",
        "2 delete . -3 -9 -7 -4",
        "1 append +1 +2 +3 +2 +4 pin run17",
        "0 create +2 +6 +12 +9 +7",
    ]
    found = json.loads(run(capsys, "log", storage.url, "-n", "2", "--version", "2", "--json")[1])
    assert [step["version"] for step in found] == [2, 1]
    assert found[1]["pins"] == ["run17"]
    assert found[0]["expired_by"] is None


def test_diff_tells_what_lies_between(storage: Storage) -> None:
    found = between(storage, 0, 4)
    assert found.operations == {"append": 1, "delete": 1, "compact": 1, "finish": 1}
    assert found.added == (6, 8)
    assert found.deleted == [(1, 2), (4, 6)]
    assert (found.passing, found.new_shards, found.dropped_shards) == (0, 2, 2)
    assert found.sources == [
        {"source": "numbers", "version": "1", "ranges": [[6, 9]], "new": False}
    ]
    assert found.changes == {}
    same = between(storage, 3, 3)
    assert (same.operations, same.added, same.deleted) == ({}, (8, 8), [])
    assert between(storage, 2, 4).deleted == []
    with pytest.raises(ValueError, match="version 1 comes before version 3"):
        between(storage, 3, 1)


def test_diff_counts_what_came_and_went(storage: Storage) -> None:
    columns = random_columns(EVERY_KIND, LENGTHS, seed=1)
    delete(storage, [6], columns)
    assert between(storage, 0, 5).passing == 1
    assert between(storage, 4, 5).deleted == [(6, 7)]


def test_diff_names_what_differs_in_identity(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    append_commit(storage, EVERY_KIND, [], identity={"engines": {"tokenizers": "2"}})
    key = "identity.engines.tokenizers"
    assert between(storage, 4, 5).changes[key] == [None, "2"]
    out = run(capsys, "diff", storage.url, "0")[1]
    assert f"{key}: None to 2" in out
    assert "deleted    3 rows: 1, 4-5" in out
    assert "added      rows 6 to 7" in out
    assert "numbers  6-9" in out
    found = json.loads(run(capsys, "diff", storage.url, "0", "4", "--json")[1])
    assert found["deleted"] == [[1, 2], [4, 6]]
    status, _, err = run(capsys, "diff", storage.url, "3", "1")
    assert (status, "comes before" in err) == (1, True)


def test_checkout_tells_how_to_open_and_what_is_missing(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "checkout", storage.url, "1")
    assert status == 0
    assert f"cachelib.open('{storage.url}', version=1)" in out
    assert "are there" in out
    status, out, _ = run(capsys, "checkout", storage.url, "1", "--pin", "run17", "--json")
    found = json.loads(out)
    assert (status, found["missing"], found["pin"]) == (0, [], "run17")
    opened = eval(found["open"], {"cachelib": cachelib})
    assert opened.version == 1
    assert run(capsys, "unpin", storage.url, "run17")[0] == 0
    assert run(capsys, "unpin", storage.url, "run17")[0] == 1
    assert run(capsys, "pin", storage.url, "a/b")[0] == 1
    (tmp_path / next(tmp_path.glob("shards/0-1/*/score/data/c/0/0"))).unlink()
    status, out, _ = run(capsys, "checkout", storage.url, "1")
    assert status == 1
    assert "1 of" in out
    assert "score/data/c/0/0" in out
    assert run(capsys, "checkout", storage.url, "4")[0] == 0


def test_all_objects_that_are_read_are_known(storage: Storage, tmp_path: Path) -> None:
    """Each object whose loss a read would notice is looked for, and no other."""
    needed, missing = missing_objects(cachelib.open(storage.url, 1))
    assert missing == []
    stored = [f for f in tmp_path.glob("shards/[01]-*/*/**/*") if f.is_file()]
    others = [f for f in stored if f.name in ("zarr.json", "rejects.jsonl")]
    assert needed == len(stored) - len(others)


SETS = st.sets(st.integers(0, 30))


def runs(rows: set[int]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.isin(np.arange(-1, 33), sorted(rows)).astype(int)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


@given(SETS, SETS)
def test_ranges_without_others(one: set[int], other: set[int]) -> None:
    assert minus(runs(one), runs(other)) == runs(one - other)
