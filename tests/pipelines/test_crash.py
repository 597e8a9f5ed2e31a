"""Builders that are killed, stopped and woken: the same cache in the end, and never a wrong row."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import cachelib
from cachelib.errors import CacheNotFound
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from cachelib.verification import verify
from pipelines.launcher import build
from tests.pipelines.conftest import sentences, write_csv, write_jsonl

pytestmark = pytest.mark.slow

KILLS = 6
SPLIT = 16 << 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five files, one of them gzip and one CSV, that make some hundred parts."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(3):
        write_jsonl(folder / f"{number}.jsonl", sentences(6000, number), 10_000 * number)
    write_jsonl(folder / "3.jsonl", sentences(3000, 3), 30_000)
    subprocess.run(["gzip", "-n", str(folder / "3.jsonl")], check=True)
    write_csv(folder / "4.csv", sentences(3000, 4), 40_000)
    return folder


def command(folder: Path, tokenizer: str, to: Path, order: str = "source") -> list[str]:
    options = ["--tokenizer", tokenizer, "--to", str(to), "--keep", "id", "--quiet"]
    return [sys.executable, "-m", "pipelines.entry", "build", str(folder), *options,
            "--split-bytes", str(SPLIT), "--workers", "2", "--order", order]  # fmt: skip


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def manifests(to: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in to.glob("shards/*/manifest.json")}


def wait_for(process: subprocess.Popen[bytes], to: Path, more: int) -> bool:
    """Wait until a builder has published some more parts; False if it ended before."""
    goal = len(manifests(to)) + more
    while process.poll() is None:
        if len(manifests(to)) >= goal:
            return True
        time.sleep(0.005)
    return False


def tokens_of(cache: cachelib.Cache) -> Ragged:
    tokens = cache.take(np.arange(len(cache)))["tokens"]
    assert isinstance(tokens, Ragged)
    return tokens


def commits(to: Path) -> list[tuple[object, ...]]:
    ledger = Ledger(Storage.at(to))
    head = ledger.head()
    assert head is not None
    return [(c.task["wave"], c.totals, c.records, c.coverage) for c in ledger.commits(0, head + 1)]


@pytest.fixture
def whole(folder: Path, tokenizer: str, tmp_path: Path) -> Path:
    """The cache of a build that nobody disturbed."""
    to = tmp_path / "whole"
    build(inputs=[str(folder)], tokenizer=tokenizer, to=str(to), keep={"id": "str"},
          split_bytes=SPLIT, workers=2)  # fmt: skip
    return to


def test_kill_at_random_moments(folder: Path, tokenizer: str, tmp_path: Path, whole: Path) -> None:
    to = tmp_path / "killed"
    draw = random.Random(time.time_ns())
    finished: dict[str, bytes] = {}
    for _ in range(KILLS):
        process = start(command(folder, tokenizer, to))
        wait_for(process, to, draw.randint(0, 25))
        time.sleep(draw.random() * 0.05)
        process.kill()
        process.wait()
        for path, data in finished.items():
            assert Path(path).read_bytes() == data
        finished = manifests(to)
    last = start(command(folder, tokenizer, to))
    output = last.communicate()[0]
    assert last.returncode == 0, output
    after = manifests(to)
    assert all(after[path] == data for path, data in finished.items())
    assert cachelib.open(to).snapshot.digest == cachelib.open(whole).snapshot.digest
    assert commits(to) == commits(whole)


def all_manifests(to: Path) -> dict[str, bytes]:
    """Those of runs as well, which may be removed meanwhile."""
    found = {}
    for folder, _, files in os.walk(to):
        if "manifest.json" in files:
            with suppress(FileNotFoundError):
                found[folder] = Path(folder, "manifest.json").read_bytes()
    return found


@pytest.mark.parametrize("order", ["shuffle(7)", "by(id)"])
def test_kill_a_build_in_another_order_at_random_moments(
    folder: Path, tokenizer: str, tmp_path: Path, order: str
) -> None:
    """While runs are written, merged, committed or removed; none of them is made again."""
    whole, to = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(folder, tokenizer, whole, order), check=True)
    draw = random.Random(time.time_ns())
    finished: dict[str, bytes] = {}
    for kills in itertools.count():
        process = start(command(folder, tokenizer, to, order))
        before = len(all_manifests(to))
        goal = before + draw.randint(1, 200) if kills < KILLS else sys.maxsize
        while process.poll() is None and before <= len(all_manifests(to)) < goal:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        time.sleep(draw.random() * 0.05)
        process.kill()
        process.wait()
        now = all_manifests(to)
        committed = Ledger(Storage.at(to)).head() is not None
        for path, data in finished.items():
            assert now.get(path) == data or (committed and "/_runs/" in path)
        finished = now
    assert process.returncode == 0, process.communicate()[0]
    assert kills > 1
    assert cachelib.open(to).snapshot.digest == cachelib.open(whole).snapshot.digest
    assert commits(to) == commits(whole)
    assert subprocess.run(command(folder, tokenizer, to, order), check=False).returncode == 0
    assert not (to / "_runs").exists()
    assert not list(verify(Storage.at(to)))


def test_two_builders_of_one_plan_in_another_order(
    folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    """One is stopped, overtaken and woken while the runs are being written or merged."""
    to = tmp_path / "two"
    sleeper = start(command(folder, tokenizer, to, "shuffle(7)"))
    goal = random.Random(time.time_ns()).randint(2, 120)
    while len(all_manifests(to)) < goal:
        assert sleeper.poll() is None, sleeper.communicate()[0]
        time.sleep(0.005)
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert subprocess.run(command(folder, tokenizer, to, "shuffle(7)"), check=False).returncode == 0
    snapshot = cachelib.open(to).snapshot
    os.kill(sleeper.pid, signal.SIGCONT)
    output = sleeper.communicate(timeout=120)[0]
    assert sleeper.returncode == 0, output
    assert cachelib.open(to).snapshot.digest == snapshot.digest
    assert cachelib.open(to).version == 0
    assert not (to / "_runs").exists()
    assert not list(verify(Storage.at(to)))


def test_a_writer_that_sleeps_while_another_finishes(
    folder: Path, tokenizer: str, tmp_path: Path, whole: Path
) -> None:
    """Stopped in the middle of a part, overtaken, and woken; somebody reads all along."""
    to = tmp_path / "stopped"
    expected = cachelib.open(whole)
    tokens = tokens_of(expected)
    sleeper = start(command(folder, tokenizer, to))
    assert wait_for(sleeper, to, random.Random(time.time_ns()).randint(2, 40))
    os.kill(sleeper.pid, signal.SIGSTOP)
    other = start(command(folder, tokenizer, to))

    def read_all() -> int:
        try:
            cache = cachelib.open(to, partial=True)
        except CacheNotFound:
            return 0
        rows = np.arange(len(cache))
        found, right = tokens_of(cache), tokens.take(rows)
        assert np.array_equal(found.offsets, right.offsets)
        assert np.array_equal(found.values, right.values)
        return len(cache)

    seen = 0
    while other.poll() is None:
        seen = max(seen, read_all())
        time.sleep(0.05)
    assert other.returncode == 0, other.communicate()[0]
    assert read_all() == len(expected)
    before = manifests(to)
    os.kill(sleeper.pid, signal.SIGCONT)
    output = sleeper.communicate(timeout=120)[0]
    assert sleeper.returncode == 0, output
    assert read_all() == len(expected)
    assert manifests(to) == before
    assert commits(to) == commits(whole)
    assert seen > 0


def test_an_interrupt_leaves_a_usable_cache_and_says_how_to_go_on(
    folder: Path, tokenizer: str, tmp_path: Path, whole: Path
) -> None:
    to = tmp_path / "interrupted"
    process = start(command(folder, tokenizer, to))
    assert wait_for(process, to, 30)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    assert "the same command goes on from here" in output
    assert "Traceback" not in output
    cache = cachelib.open(to, partial=True)
    assert 0 < len(cache) < len(cachelib.open(whole))
    assert subprocess.run(command(folder, tokenizer, to), check=False).returncode == 0
    assert commits(to) == commits(whole)
