"""Streams on object stores: TestStream on BundleBasedDirectRunner, and the command on Prism.

The cache lies below the prefix in which objects are looked for.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from apache_beam.testing.test_stream import TestStream as Scenario

import cachelib
from cachelib.errors import CacheNotFound, SourceError
from cachelib.format.storage import Storage
from cachelib.verification import verify
from pipelines.config import growing_config
from pipelines.quarantine import read_quarantine
from pipelines.sources import files
from pipelines.streams import finding
from pipelines.streams.finding import Finder
from pipelines.streams.launcher import describe
from pipelines.streams.units import Stream, write_or_set_aside
from tests.pipelines.test_stream import at, play
from tests.programs import program
from tests.stores.conftest import Place, documents

pytestmark = pytest.mark.engine

ROWS = 40


@pytest.fixture
def stream(place: Place, tokenizer: str) -> Stream:
    values = {"inputs": [place.url], "to": f"{place.url}/cache", "tokenizer": tokenizer}
    config, _ = growing_config({**values, "keep": {"id": "str"}, "split_bytes": 2048})
    return describe(config)


@pytest.fixture
def finder(place: Place, stream: Stream) -> Finder:
    return Finder(stream, [place.url], None, 0)


def ids(place: Place) -> list[str]:
    """The ids of all rows, in the order of their indices; none where there is no cache."""
    try:
        cache = cachelib.open(f"{place.url}/cache")
    except CacheNotFound:
        return []
    return [bytes(value).decode() for value in cache.take(np.arange(len(cache)))["id"]]


def expected(numbers: range) -> list[str]:
    return [f"r{1000 * number + row}" for number in numbers for row in range(ROWS)]


def test_each_record_is_taken_once_whatever_comes_twice(
    place: Place, stream: Stream, finder: Finder
) -> None:
    for number in range(3):
        place.put(f"{number}.jsonl", documents(ROWS, number, 1000 * number))
    units, _ = finder.look()
    assert {unit.source.name for unit in units} == {"0.jsonl", "1.jsonl", "2.jsonl"}
    assert finder.look()[0] == []
    scenario = Scenario().advance_watermark_to(0)
    for seconds in (5, 25, 45):
        scenario = scenario.add_elements(at(seconds, units)).advance_watermark_to(seconds + 10)
    play(stream, scenario.advance_watermark_to_infinity())
    assert ids(place) == expected(range(3))
    assert [str(problem) for problem in verify(stream.storage)] == []
    assert Finder(stream, [place.url], None, 0).look()[0] == []  # the ledger has all of it


def test_what_becomes_of_an_object_before_it_is_read(
    place: Place, stream: Stream, finder: Finder
) -> None:
    contents = [documents(ROWS, number) for number in range(3)]
    for number, content in enumerate(contents):
        place.put(f"{number}.jsonl", content)
    units = {unit.source.name: unit for unit in finder.look()[0]}
    place.delete("0.jsonl")
    place.put("1.jsonl", contents[1][:-20] + b"x" * 19 + b"\n")  # of the same size
    otherwise = [write_or_set_aside(stream, units[f"{n}.jsonl"])[1] for n in range(3)]
    assert otherwise == ["vanished", "changed", None]
    assert read_quarantine(stream.storage) == {}
    assert {unit.source.name for unit in finder.look()[0]} == {"1.jsonl"}


def test_an_object_that_goes_while_it_is_looked_at(
    place: Place, stream: Stream, finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inspect(file: object, *_: object) -> object:
        place.delete("a.jsonl")
        raise SourceError("it is not there")

    place.put("a.jsonl", documents(ROWS, 0))
    monkeypatch.setattr(finding, "inspect_file", inspect)
    units, counts = finder.look()
    assert (units, counts["vanished"], counts["damaged"]) == ([], 1, 0)
    assert read_quarantine(stream.storage) == {}


def test_a_store_that_cannot_be_asked_damages_nothing(
    place: Place, stream: Stream, finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> object:
        raise TimeoutError("no answer")

    place.put("a.jsonl", documents(ROWS, 0))
    with monkeypatch.context() as patch:

        def inspect(*_: object) -> object:
            patch.setattr(files, "filesystem", refuse)
            raise SourceError("no answer")

        patch.setattr(finding, "inspect_file", inspect)
        units, counts = finder.look()
    assert (units, counts["unreached"], counts["damaged"]) == ([], 1, 0)
    assert read_quarantine(stream.storage) == {}
    assert {unit.source.name for unit in finder.look()[0]} == {"a.jsonl"}


def test_the_command_takes_objects_in_on_prism(place: Place, tokenizer: str) -> None:
    to = f"{place.url}/cache"
    command = [sys.executable, "-m", "pipelines.entry", "stream", place.url, "--to", to]
    options = ["--tokenizer", tokenizer, "--keep", "id", "--every", "0.5", "--quiet"]
    options += [f"--prism_location={program('prism')}"]
    job = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not condition():
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < deadline, ids(place)
            time.sleep(0.1)

    try:
        place.put("0.jsonl", documents(ROWS, 0))
        until(lambda: ids(place) == expected(range(1)))
        place.put("0.jsonl", documents(ROWS, 9))  # overwritten: its old rows stay
        place.put("1.jsonl", documents(ROWS, 1, 1000))
        until(lambda: ids(place) == expected(range(2)))
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)
    finally:
        job.kill()
        job.wait()
    storage = Storage.at(to)
    assert [str(problem) for problem in verify(storage)] == []
    assert cachelib.open(to).snapshot.eras.tolist()[-1] == 2 * ROWS
