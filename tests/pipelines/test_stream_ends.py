"""How `forebay stream` ends on Prism: by signals, with its engine, with its cache, and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import cachelib
from cachelib.errors import CacheNotFound
from tests.pipelines.conftest import sentences, write_jsonl
from tests.pipelines.test_stream_soak import rows

pytestmark = [pytest.mark.engine, pytest.mark.slow]


class Started:
    """A stream that has taken in one file of 10 rows, beside one that is damaged."""

    def __init__(self, folder: Path, tokenizer: str, prism: str) -> None:
        self.inputs, self.to = folder / "in", folder / "cache"
        self.inputs.mkdir()
        write_jsonl(self.inputs / "a.jsonl", sentences(10, 0))
        (self.inputs / "odd.txt").write_bytes("text".encode("utf-16"))
        command = [sys.executable, "-m", "pipelines.entry", "stream", str(self.inputs)]
        command += ["--to", str(self.to), "--tokenizer", tokenizer, "--settle", "0"]
        self.process = subprocess.Popen(
            [*command, f"--prism_location={prism}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + 90
        while rows(self.to) < 10:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2)  # until it has seen what its workers did
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def engine(self) -> psutil.Process:
        (engine,) = (each for each in self.children if "prism" in each.name())
        return engine

    def ended(self) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=60)
        assert "Traceback" not in errors
        _, alive = psutil.wait_procs(self.children, timeout=10)
        assert alive == []
        return self.process.returncode, output, errors


@pytest.fixture
def started(tmp_path: Path, tokenizer: str, prism: str) -> Iterator[Started]:
    started = Started(tmp_path, tokenizer, prism)
    yield started
    for each in started.children:
        if each.is_running():
            each.kill()
    started.process.kill()
    started.process.communicate()


def send(number: int) -> Callable[[int], None]:
    return lambda process: os.kill(process, number)


@pytest.mark.parametrize(
    "stop",
    [send(signal.SIGINT), send(signal.SIGTERM), lambda process: os.killpg(process, signal.SIGINT)],
    ids=["interrupted", "terminated", "interrupted at a terminal"],
)
def test_a_signal_ends_it_with_a_summary(started: Started, stop: Callable[[int], None]) -> None:
    stop(started.process.pid)
    status, output, _ = started.ended()
    assert status == 0
    assert "taken in     1 file, 10 records: 10 rows" in output
    assert "in 1 commit\n" in output
    assert "set aside odd.txt: " in output
    assert "set aside    1 file" in output
    assert cachelib.open(started.to).snapshot.eras.tolist()[-1] == 10
    assert not list(started.to.glob("_status/stream-*"))


def test_a_second_signal_ends_it_at_once(started: Started) -> None:
    os.kill(started.process.pid, signal.SIGSTOP)  # so that both come before the first has an effect
    os.kill(started.process.pid, signal.SIGINT)
    os.kill(started.process.pid, signal.SIGTERM)
    os.kill(started.process.pid, signal.SIGCONT)
    status, _, _ = started.ended()
    assert status in (128 + signal.SIGINT, 128 + signal.SIGTERM)


def test_nothing_is_left_of_one_that_is_killed(started: Started) -> None:
    started.process.kill()
    started.ended()


def test_an_engine_that_dies_is_named(started: Started) -> None:
    started.engine().kill()
    status, _, errors = started.ended()
    assert status == 1
    assert "Prism, the engine of this pipeline, ended by itself" in errors
    assert "the same command goes on from here" in errors


def test_a_cache_that_is_deleted_is_an_error(started: Started) -> None:
    shutil.rmtree(started.to)
    status, _, errors = started.ended()
    assert status == 1
    assert "CacheNotFound" in errors
    assert "the cache was deleted or replaced while it was being filled" in errors
    with pytest.raises(CacheNotFound):
        cachelib.open(started.to)
