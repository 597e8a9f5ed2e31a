"""Rows that were deleted: indices stay, and what is left is read alike before and after packing."""

from __future__ import annotations

import re
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelib
from cachelib.cache import Cache
from cachelib.commands.cli import main
from cachelib.errors import CorruptData, RowDeleted
from cachelib.format.digest import digest_rows
from cachelib.format.entries import Entries, Replacement
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.format.succession import replace_shards
from cachelib.ragged import Ragged
from tests.cachelib.gaps import compact, delete
from tests.cachelib.helpers import (
    EVERY_KIND,
    Columns,
    append_commit,
    assert_equal,
    assert_same_bits,
    random_columns,
    take,
    write_cache,
    write_shard,
)


def check(cache: Cache, columns: Columns, left: list[int]) -> None:
    """A cache holds just the rows left, of all that there were, under their own indices."""
    total = len(columns["label"])
    assert len(cache) == total
    rows = np.array(left, np.int64)
    assert_equal(cache.take(rows), take(columns, rows))
    backwards = rows[::-1]
    assert_equal(cache.take(backwards), take(columns, backwards))
    for row in set(range(total)) - set(left):
        with pytest.raises(RowDeleted, match=f"row {row} was deleted"):
            cache.take([row])
    expected = take(columns, rows)
    dataset = cache.dataset()
    assert dataset.size == len(left)
    assert_equal(dataset.take(range(len(left))), expected)
    assert dataset.trace(range(len(left)))["row"].tolist() == left
    assert str(cache.snapshot.digest) == str(digest_rows(EVERY_KIND, expected))
    tokens = expected["tokens"]
    assert isinstance(tokens, Ragged)
    assert cache.elements("tokens") == len(tokens.values)
    stream = cache.read_elements("tokens", np.arange(len(tokens.values)), 1)[:, 0]
    np.testing.assert_array_equal(stream, tokens.values)
    masks = expected["mask"]
    assert isinstance(masks, Ragged)
    np.testing.assert_array_equal(
        cache.read_spans("mask", *cache.spans("mask", backwards)),
        masks.take(np.arange(len(rows))[::-1]).values,
    )
    at = np.arange(len(tokens.values))
    np.testing.assert_array_equal(cache.rows_at("tokens", at), np.repeat(rows, tokens.lengths))
    if len(tokens.values) >= 3:
        windows = cache.windows(3, stride=1)
        starts = np.arange(len(tokens.values) - 2)
        found = windows.take(range(len(windows)))["tokens"]
        np.testing.assert_array_equal(found, tokens.values[starts[:, None] + np.arange(3)])
        owners = np.repeat(rows, tokens.lengths)
        for i in range(len(windows)):
            origins = {origin.row for origin in windows.origins(i)}
            assert origins == set(owners[i : i + 3].tolist())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_deletes_and_compactions_leave_the_other_rows_as_they_are(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=24))
    columns = random_columns(EVERY_KIND, lengths, seed=0)
    cuts = data.draw(st.lists(st.integers(0, len(lengths)), max_size=4).map(sorted))
    sizes = np.diff([0, *cuts, len(lengths)]).tolist()
    left: list[int] = list(range(len(lengths)))
    with tempfile.TemporaryDirectory() as folder:
        write_cache(folder, EVERY_KIND, columns, [sizes])
        storage = Storage.at(folder)
        versions = {0: list(left)}
        for step in range(data.draw(st.integers(1, 4))):
            shards = len(Ledger(storage).snapshot().entries)
            if left and data.draw(st.sampled_from(["delete", "compact"])) == "delete":
                gone = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
                commit = delete(storage, gone, columns)
                left = [row for row in left if row not in gone]
            else:
                start = data.draw(st.integers(0, shards - 1))
                stop = data.draw(st.integers(start + 1, shards))
                commit = compact(storage, start, stop, f"packed-{step}", columns)
            versions[commit.version] = list(left)
        for version, expected in versions.items():
            check(cachelib.open(folder, version), columns, expected)


@pytest.fixture
def gapped(tmp_path):
    """Rows 0 to 11 in three shards, of which 1, 4 to 7, and 10 are deleted; and all columns."""
    columns = random_columns(EVERY_KIND, [2, 3, 1, 0, 4, 2, 2, 1, 3, 1, 5, 2], seed=1)
    write_cache(tmp_path, EVERY_KIND, columns, [[4, 4], [4]])
    delete(Storage.at(tmp_path), [1, 4, 5, 6, 7, 10], columns)
    return tmp_path, columns


def test_a_row_stays_on_its_side_of_a_split(gapped) -> None:
    path, _ = gapped
    before = cachelib.open(path, 1).split(0.4, seed=3)
    after = cachelib.open(path).split(0.4, seed=3)
    for one, two in zip(before, after, strict=True):
        rows = [set(side.trace(range(len(side)))["row"].tolist()) for side in (one, two)]
        assert rows[1] == rows[0] - {1, 4, 5, 6, 7, 10}


def test_what_is_appended_follows_the_gaps(gapped) -> None:
    path, _ = gapped
    more = random_columns(EVERY_KIND, [3, 2], seed=5)
    storage = Storage.at(path)
    commit = append_commit(storage, EVERY_KIND, [write_shard(storage, EVERY_KIND, "more", more)])
    assert (commit.row_base, commit.totals["rows"], commit.totals["span"]) == (12, 8, 14)
    cache = cachelib.open(path)
    assert len(cache) == 14
    assert_equal(cache.take([12, 13]), more)
    assert cache.dataset().trace(range(8))["row"].tolist() == [0, 2, 3, 8, 9, 11, 12, 13]


def test_gaps_are_carried_through_a_checkpoint(gapped) -> None:
    path, columns = gapped
    storage = Storage.at(path)
    ledger = Ledger(storage)
    while ledger.snapshot().version < 66:
        append_commit(storage, EVERY_KIND, [], identity=ledger.commit(0).identity)
    assert ledger.snapshot().commit.base is not None
    check(cachelib.open(path), columns, [0, 2, 3, 8, 9, 11])


def test_an_order_over_other_gaps_is_another_order(gapped) -> None:
    path, columns = gapped
    before, after = (cachelib.open(path, version) for version in (1, 2))
    assert before.shuffle(0).describe() != after.shuffle(0).describe()
    compact(Storage.at(path), 0, 2, "packed", columns)
    assert cachelib.open(path).shuffle(0).describe() == after.shuffle(0).describe()


def test_shards_that_are_not_there_cannot_be_replaced(gapped) -> None:
    path, columns = gapped
    storage = Storage.at(path)
    parent = Ledger(storage).snapshot()
    compact(storage, 0, 2, "packed", columns)
    now = Ledger(storage).snapshot()
    one = Replacement(parent.entries.shard[:1], parent.entries.slice(0, 1))
    with pytest.raises(CorruptData, match="not there"):
        replace_shards(Ledger(storage), now, operation="compact", task={}, groups=[one])
    wrong = Replacement(now.entries.shard[:1], Entries())
    with pytest.raises(CorruptData, match="8 row indices"):
        replace_shards(Ledger(storage), now, operation="compact", task={}, groups=[wrong])


def test_a_cache_as_a_sequence_goes_by_row_indices(gapped) -> None:
    path, columns = gapped
    cache = cachelib.open(path)
    for index in range(-12, 12):
        row = index % 12
        if row in (1, 4, 5, 6, 7, 10):
            with pytest.raises(RowDeleted, match=f"row {row} was deleted"):
                cache[index]
            continue
        found = cache[index]
        assert found.keys() == columns.keys()
        for name, column in columns.items():
            assert_same_bits(found[name], column[row])
    for index in (12, -13):
        with pytest.raises(IndexError, match=f"index {index} is outside the 12 rows"):
            cache[index]


def test_iterating_over_a_cache_does_not_pass_over_a_gap(gapped) -> None:
    path, columns = gapped
    rows = iter(cachelib.open(path))
    assert_same_bits(next(rows)["label"], columns["label"][0])
    with pytest.raises(RowDeleted, match=r"row 1 .* dataset\(\) counts the rows that are left"):
        next(rows)
    rest = cachelib.open(path).dataset()
    left = [rest[i]["label"] for i in range(len(rest))]
    np.testing.assert_array_equal(left, columns["label"][[0, 2, 3, 8, 9, 11]])
    whole = [row["label"] for row in cachelib.open(path, 1)]
    np.testing.assert_array_equal(whole, columns["label"])


def head(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[int], str]:
    """Exit status, the rows that were shown, and what went to stderr."""
    status = main(["head", *arguments])
    out, err = capsys.readouterr()
    return status, [int(row) for row in re.findall(r"^row (\d+)  ", out, re.MULTILINE)], err


def test_head_shows_the_next_rows_that_are_there(gapped, capsys) -> None:
    path = str(gapped[0])
    assert head(capsys, path) == (0, [0, 2, 3, 8, 9], "")
    assert head(capsys, path, "--row", "3", "-n", "2") == (0, [3, 8], "")
    assert head(capsys, path, "--row", "-1", "-n", "9") == (0, [11], "")
    assert head(capsys, path, "--version", "1", "-n", "3") == (0, [0, 1, 2], "")


def test_head_tells_what_is_next_to_a_deleted_row(gapped, capsys) -> None:
    path = str(gapped[0])
    for row in ("6", "-6"):
        status, shown, err = head(capsys, path, "--row", row)
        assert (status, shown) == (1, [])
        assert "row 6 was deleted before version 2. Next to it is --row 3 and --row 8; an" in err
        assert f"(--version, see forebay log file://{path}/) may have it" in err
    storage = Storage.at(path)
    delete(storage, [0, 2, 3, 8, 9, 11], gapped[1])
    status, shown, err = head(capsys, path)
    assert (status, shown) == (0, [])
    assert "no row is left: 12 rows of" in err
    assert "No row is left" in head(capsys, path, "--row", "0")[2]


def test_a_choice_over_gaps_cannot_be_kept(gapped, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^plan= cannot keep .* has deleted ones: leave it out"):
        cachelib.open(gapped[0]).where([("label", ">", 0)], plan=tmp_path / "plan")
