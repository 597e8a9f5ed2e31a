"""Writers that race for each version of a ledger, on files and on object stores: one wins each."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from dataclasses import replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from tests.maintenance.test_races import add
from tests.stores.conftest import Place

pytestmark = pytest.mark.engine

WRITERS = 8
VERSIONS = 200


def write(url: str, name: int, ready: Barrier, won: Queue[tuple[int, list[int]]]) -> None:
    """Try to be the one who commits each version."""
    ledger = Ledger(Storage.at(url))
    first = ledger.commit(0)
    own = []
    ready.wait()
    for version in range(1, VERSIONS):
        commit = replace(first, version=version, operation="append", task={"writer": name})
        if ledger.append(commit).task == commit.task:
            own.append(version)
    won.put((name, own))


def race(url: str) -> None:
    storage = Storage.at(url)
    add(storage, 0)
    context = multiprocessing.get_context("spawn")
    ready, won = context.Barrier(WRITERS), context.Queue()
    writers = [
        context.Process(target=write, args=(url, name, ready, won)) for name in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    found = dict(won.get(timeout=120) for _ in writers)
    for writer in writers:
        writer.join(30)
    wins = Counter(version for own in found.values() for version in own)
    assert wins == Counter(range(1, VERSIONS))
    ledger = Ledger(storage)
    assert ledger.head() == VERSIONS - 1
    for name, own in found.items():
        assert all(ledger.commit(version).task == {"writer": name} for version in own[:3])
    assert sum(len(own) > 0 for own in found.values()) > 1


def test_one_writer_wins_each_version_on_a_store(place: Place) -> None:
    race(f"{place.url}/cache")


def test_one_writer_wins_each_version_on_files(tmp_path: Path) -> None:
    race(str(tmp_path / "cache"))
