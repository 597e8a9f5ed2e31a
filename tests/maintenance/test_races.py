"""Compactions and deletions while another process goes on adding rows."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest

import cachelib
import pipelines
from cachelib.format.ledger import Ledger
from cachelib.format.shard import publish
from cachelib.format.storage import Storage
from cachelib.format.succession import follow
from cachelib.ragged import Ragged
from tests.cachelib.helpers import TOKENS, Columns, write_shard

ROWS = 3  # of a commit


def columns(first: int) -> Columns:
    """Rows that tell their numbers: label is the row, and so are its tokens."""
    rows = np.arange(first, first + ROWS)
    tokens = [np.full(row % 4, row, np.uint16) for row in rows]
    return {"tokens": Ragged.from_rows(tokens, np.uint16), "label": rows}


def add(storage: Storage, number: int) -> None:
    """Append commit ``number`` of rows, over whatever others commit meanwhile."""
    ledger = Ledger(storage)
    manifest = publish(
        storage, write_shard(storage, TOKENS, f"more-{number}", columns(number * ROWS))
    )
    while True:
        parent = None if ledger.head() is None else ledger.snapshot()
        commit = follow(
            ledger,
            parent,
            operation="create" if parent is None else "append",
            task={},
            schema=TOKENS,
            identity={},
            manifests=[manifest],
            seals=number % 5 == 4,
        )
        if ledger.append(commit).digest == commit.digest:
            return


def keep_adding(path: str, stop: Event, seconds: float) -> None:
    storage, number = Storage.at(path), 1
    while not stop.is_set():
        add(storage, number)
        number += 1
        stop.wait(seconds)


@pytest.mark.parametrize(
    ("seconds", "pause"),
    [(8, 0.02), pytest.param(60, 1, marks=pytest.mark.slow)],
)
def test_changes_hold_their_own_against_a_stream(
    tmp_path: Path, seconds: float, pause: float
) -> None:
    add(Storage.at(tmp_path), 0)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    stream = context.Process(target=keep_adding, args=(str(tmp_path), stop, pause))
    stream.start()
    pinned = cachelib.open(tmp_path)
    gone: set[int] = set()
    changes = 0
    ends = time.monotonic() + seconds
    try:
        while time.monotonic() < ends:
            rows = len(cachelib.open(tmp_path))
            row = (changes * 7) % rows
            deleted = pipelines.delete(tmp_path, rows=[(row, row + 1)])
            assert (deleted.version is None) == (row in gone)
            gone.add(row)
            packed = pipelines.compact(tmp_path, shard_bytes=4096)
            assert packed.left == 0
            changes += 1
            np.testing.assert_array_equal(pinned.take([0, 1, 2])["label"], [0, 1, 2])
    finally:
        stop.set()
        stream.join(60)
    assert stream.exitcode == 0
    assert changes > 2
    cache = cachelib.open(tmp_path)
    total = len(cache)
    assert total % ROWS == 0
    left = [row for row in range(total) if row not in gone]
    found = cache.take(left)
    np.testing.assert_array_equal(found["label"], left)
    tokens = found["tokens"]
    assert isinstance(tokens, Ragged)
    assert [row.tolist() for row in tokens] == [[row] * (row % 4) for row in left]
    assert cache.dataset().trace(range(len(left)))["row"].tolist() == left
    commits = Ledger(Storage.at(tmp_path)).commits(0, cache.version + 1)
    appended = [commit for commit in commits if commit.operation in ("create", "append")]
    assert [commit.row_base for commit in appended] == list(range(0, total, ROWS))
    assert len(appended) > seconds / 4
    eras = [commit.span for commit in commits if commit.seals]
    assert cache.snapshot.eras.tolist() == eras
