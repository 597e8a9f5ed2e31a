"""A stream on Prism while files arrive: its worker and Prism are killed, its cache is changed.

FOREBAY_SOAK_SECONDS says for how long files arrive; 90 if it is not set.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import cachelib
import pipelines
from cachelib.errors import CacheNotFound
from cachelib.format.coverage import merge
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from cachelib.verification import verify
from tests.pipelines.conftest import sentences, write_jsonl

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SECONDS = float(os.environ.get("FOREBAY_SOAK_SECONDS", "90"))
RATES = (0.2, 1.0, 4.0)
"""Files a second, one after another."""


class Job:
    """The command `forebay stream`, with the Prism that it starts and works for."""

    def __init__(
        self, folder: Path, tokenizer: str, to: Path, prism: str, seal_after: int = 10
    ) -> None:
        command = [sys.executable, "-m", "pipelines.entry", "stream", str(folder), "--to", str(to)]
        options = ["--tokenizer", tokenizer, "--keep", "id", "--settle", "0", "--every", "1"]
        options += ["--seal-after", f"{seal_after}", "--quiet", f"--prism_location={prism}"]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.children: list[psutil.Process] = []

    def kill_worker(self) -> None:
        """The worker is the command itself: its threads do the work."""
        self.end()

    def kill_prism(self) -> None:
        """Prism goes with all of its state; whoever waits for it in vain is ended, too."""
        for child in self.children:
            if "prism" in child.name():
                child.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.end()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=60)
        finally:
            self.end()

    def check(self) -> None:
        """It runs; note what it has started, which outlives it when it is killed."""
        assert self.process.poll() is None, self.process.communicate()[0]
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for child in self.children:
            with suppress(psutil.Error):
                child.kill()


def rows(path: Path) -> int:
    try:
        return len(cachelib.open(path))
    except CacheNotFound:
        return 0


def ids(column: object) -> list[str]:
    assert isinstance(column, Ragged)
    return [bytes(value).decode() for value in column]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def arriving(folder: Path) -> Iterator[list[int]]:
    """Files that arrive at several rates; the list says how many rows are in each."""
    counts: list[int] = []
    ended = threading.Event()

    def arrive() -> None:
        draw = random.Random(0)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < SECONDS and not ended.is_set():
            number, count = len(counts), draw.randint(1, 200)
            draft = folder / f"{number:05d}.tmp"
            write_jsonl(draft, sentences(count, number), 1000 * number)
            draft.rename(folder / f"{number:05d}.jsonl")
            counts.append(count)
            ended.wait(1 / RATES[min(int(passed / SECONDS * len(RATES)), len(RATES) - 1)])

    thread = threading.Thread(target=arrive, daemon=True)
    thread.start()
    yield counts
    ended.set()
    thread.join(30)


def take_in_all(job: Job, to: Path, arriving: list[int], began: float) -> None:
    """Wait until no more files arrive and their rows are there; never long for the next ones."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - began < SECONDS + 1 or rows(to) < sum(arriving):
        job.check()
        if rows(to) > seen:
            seen, since = rows(to), time.monotonic()
        assert time.monotonic() < since + 60, f"{seen} of {sum(arriving)} rows, and no more"
        time.sleep(0.2)


def test_every_record_is_there_once_whatever_is_killed(
    folder: Path, tokenizer: str, tmp_path: Path, prism: str, arriving: list[int]
) -> None:
    to = tmp_path / "cache"
    began = time.monotonic()
    kills = ["worker", "prism", "worker", "prism"]
    for turn, victim in enumerate(kills):
        job = Job(folder, tokenizer, to, prism)
        try:
            goal = rows(to) + 1
            until = began + SECONDS * (turn + 1) / (len(kills) + 1)
            deadline = time.monotonic() + 60
            while rows(to) < goal or time.monotonic() < until:
                job.check()
                assert time.monotonic() < deadline + SECONDS, "nothing is taken in"
                time.sleep(0.1)
        finally:
            (job.kill_worker if victim == "worker" else job.kill_prism)()
    job = Job(folder, tokenizer, to, prism)
    try:
        take_in_all(job, to, arriving, began)
    finally:
        job.stop()
    cache = cachelib.open(to)
    found = sorted(ids(cache.take(np.arange(len(cache)))["id"]))
    assert found == sorted(
        f"r{1000 * n + i}" for n, count in enumerate(arriving) for i in range(count)
    )
    snapshot = cache.snapshot
    assert snapshot.rows == snapshot.entries.rows_left == len(found)
    taken = merge(Ledger(Storage.at(to)).coverage_deltas(snapshot))
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}
    assert {name: t.ranges for name, t in taken.items()} == {n: ((0, s),) for n, s in sizes.items()}
    assert [str(problem) for problem in verify(Storage.at(to))] == []
    assert snapshot.eras.tolist()[-1] == snapshot.rows


def test_changes_beside_a_stream(
    folder: Path, tokenizer: str, tmp_path: Path, prism: str, arriving: list[int]
) -> None:
    """Compactions and collections, then deletions, too, while a stream commits every second."""
    to, began = tmp_path / "cache", time.monotonic()
    job = Job(folder, tokenizer, to, prism, seal_after=2)
    gone: set[str] = set()
    rounds = 0
    try:
        reader = cachelib.open(to, follow=True, timeout=60)
        served = reader.dataset().shuffle(3).loader(8, last="short")
        batches: list[list[str]] = []
        while time.monotonic() - began < SECONDS / 2 or len(batches) < 40:
            job.check()
            batches.append(ids(next(served)["id"]))
            if len(batches) % 20 == 0:
                pipelines.compact(to, shard_bytes=64 << 10)
                pipelines.gc(to, keep=1, younger=3)
        again = cachelib.open(to, follow=True).dataset().shuffle(3).loader(8, last="short")
        assert [ids(next(again)["id"]) for _ in batches] == batches
        while time.monotonic() - began < SECONDS or rounds < 3:
            job.check()
            number = len(arriving) - 4  # old enough to have been taken in
            whole = {f"r{1000 * number + i}" for i in range(arriving[number])}
            if deleted := pipelines.delete(to, sources=[f"{number:05d}.jsonl"]).rows:
                assert deleted == len(whole)
                gone |= whole
            one = f"r{1000 * (number - 1)}"
            if pipelines.delete(to, where=[("id", "==", one)]).rows:
                gone.add(one)
            pipelines.compact(to, shard_bytes=64 << 10)
            pipelines.gc(to, keep=1, younger=3)
            rounds += 1
        take_in_all(job, to, arriving, began)
    finally:
        job.stop()
    pipelines.compact(to)
    pipelines.gc(to, keep=1, younger=0)
    cache = cachelib.open(to)
    left = cache.dataset()
    found = sorted(ids(left.take(np.arange(len(left)))["id"]))
    all_ids = {f"r{1000 * n + i}" for n, count in enumerate(arriving) for i in range(count)}
    assert found == sorted(all_ids - gone)
    assert len(cache) == len(all_ids)  # indices never shift
    assert [str(problem) for problem in verify(Storage.at(to))] == []
