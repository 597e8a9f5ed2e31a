"""`watch` on object stores: objects that come, are overwritten, or vanish, on Beam's FnApiRunner.

The cache lies below the prefix that is watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cachelib
from cachelib.errors import CacheNotFound
from cachelib.format.storage import Storage
from pipelines import watching
from pipelines.launcher import build
from pipelines.quarantine import read_quarantine
from tests.pipelines.watches import Running
from tests.stores.conftest import Place, documents

pytestmark = pytest.mark.engine


@pytest.fixture
def start(place: Place, tokenizer: str) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(**more: Any) -> Running:
        running.append(Running(place.url, tokenizer, f"{place.url}/cache", **more))
        return running[-1]

    yield begin
    for each in running:
        each.stopped.set()
        each.thread.join(60)


def rows(place: Place) -> int:
    try:
        return len(cachelib.open(f"{place.url}/cache"))
    except CacheNotFound:
        return 0


def test_objects_that_come_are_taken_in_once(
    place: Place, start: Callable[..., Running], tokenizer: str, tmp_path: Path
) -> None:
    running = start()
    running.until(lambda: running.told("nothing yet"))
    for number in range(3):
        place.put(f"deep/{number}.jsonl", documents(20, number))
        running.until(lambda: rows(place) == 20 * (number + 1))  # noqa: B023
    seen = running.end()
    assert (seen.files, seen.new_rows, seen.rows, seen.damaged) == (3, 60, 60, {})
    assert start(every=0.01).end().commits == 0
    build(inputs=[place.url], to=str(tmp_path / "cache"), tokenizer=tokenizer)
    local = cachelib.open(tmp_path / "cache").snapshot.digest
    assert cachelib.open(f"{place.url}/cache").snapshot.digest == local


def test_an_object_that_is_overwritten_is_left_out_once(
    place: Place, start: Callable[..., Running]
) -> None:
    before = documents(10, 0)
    place.put("a.jsonl", before)
    running = start()
    running.until(lambda: rows(place) == 10)
    place.put("a.jsonl", before[::-1])  # of the same size
    running.until(lambda: running.told("left out a.jsonl"))
    place.put("b.jsonl", documents(5, 1))
    running.until(lambda: rows(place) == 15)
    assert running.end().changed == {"a.jsonl"}
    assert sum("left out a.jsonl" in line for line in running.lines) == 1


@pytest.mark.parametrize("becomes", ["gone", "other", "longer"])
def test_an_object_that_goes_or_changes_before_it_is_read(
    place: Place,
    start: Callable[..., Running],
    monkeypatch: pytest.MonkeyPatch,
    becomes: str,
) -> None:
    real, changes = watching.inspect_file, [1]
    new = {"other": documents(9, 5), "longer": documents(10, 5), "gone": None}[becomes]
    old = documents(9, 5).replace(b"r", b"s")

    def inspect(file: Any, *rest: Any) -> Any:
        found = real(file, *rest)
        if file.name == "a.jsonl" and changes and changes.pop():
            place.delete("a.jsonl") if new is None else place.put("a.jsonl", new)
        return found

    monkeypatch.setattr(watching, "inspect_file", inspect)
    place.put("a.jsonl", old)
    place.put("b.jsonl", documents(5, 1))
    running = start()
    expected = 5 + (0 if new is None else new.count(b"\n"))
    running.until(lambda: rows(place) == expected)
    seen = running.end()
    assert seen.vanished == (new is None)
    assert (seen.changed, seen.damaged) == (set(), {})
    again = start()
    time.sleep(0.5)  # some looks
    seen = again.end()
    assert (seen.commits, seen.changed) == (0, set())
    assert read_quarantine(Storage.at(f"{place.url}/cache")) == {}
    if new is not None:
        cache = cachelib.open(f"{place.url}/cache")
        assert {p.source for p in cache.provenance(range(len(cache)))} == {"a.jsonl", "b.jsonl"}
