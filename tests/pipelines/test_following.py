"""Caches that are followed while the embedded runner (FnApiRunner) fills them elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import cachelib
from cachelib.errors import BuilderGone
from pipelines.progress import STATUS_SECONDS
from tests.pipelines.conftest import sentences, write_jsonl

SPLIT = 64 << 10


def command(folder: Path, tokenizer: str, to: Path, *more: str) -> list[str]:
    options = ["--tokenizer", tokenizer, "--split-bytes", str(SPLIT), "--workers", "1", *more]
    called = [sys.executable, "-m", "pipelines.entry", "build", str(folder), "--to", str(to)]
    return [*called, "--quiet", *options]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(3):
        write_jsonl(folder / f"{number}.jsonl", sentences(6000, number))
    return folder


def test_a_build_is_followed_from_before_its_start_to_its_end(
    folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    to = tmp_path / "cache"
    builder = subprocess.Popen(command(folder, tokenizer, to, "--finish", "--spread"))
    try:
        served = []
        dataset = cachelib.open(to, follow=True, timeout=120).windows(64).shuffle(seed=0)
        for batch in dataset.loader(32, last="short"):
            served.append(batch["tokens"])
            if len(served) == 1:
                assert builder.poll() is None
    finally:
        builder.kill()
        builder.wait()
    again = cachelib.open(to, follow=True)
    assert again.finished
    assert len(again.sealed.rows) > 1
    replayed = [b["tokens"] for b in again.windows(64).shuffle(seed=0).loader(32, last="short")]
    np.testing.assert_array_equal(np.concatenate(served), np.concatenate(replayed))
    whole = cachelib.open(to).windows(64)
    assert len(whole) == sum(map(len, served))
    everything = whole.take(range(len(whole)))["tokens"]
    assert sorted(map(bytes, everything)) == sorted(map(bytes, np.concatenate(served)))


def test_a_builder_that_is_killed_is_named_and_its_cache_goes_on_when_it_does(
    folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    to = tmp_path / "cache"
    builder = subprocess.Popen(command(folder, tokenizer, to))
    try:
        cachelib.open(to, follow=True, timeout=120)  # so that there is a status by now
        cache = cachelib.open(to, follow=True, stale=STATUS_SECONDS + 2)
        loader = cache.windows(64).shuffle(seed=0).loader(8)
        first = [next(loader)["tokens"]]
        if builder.poll() is not None:
            pytest.fail("the build ended before it could be killed")
        builder.kill()
        builder.wait()
        with pytest.raises(BuilderGone, match=r"says 'running'.*Its builder is gone"):
            first += (batch["tokens"] for batch in loader)
    finally:
        builder.kill()
        builder.wait()
    state = loader.state_dict()
    again = subprocess.run(command(folder, tokenizer, to, "--finish"), check=False)
    assert again.returncode == 0
    rest = [batch["tokens"] for batch in loader]
    assert rest
    replayed = cachelib.open(to, follow=True).windows(64).shuffle(seed=0).loader(8)
    np.testing.assert_array_equal(
        np.concatenate([batch["tokens"] for batch in replayed]), np.concatenate([*first, *rest])
    )
    resumed = cachelib.open(to, follow=True).windows(64).shuffle(seed=0).loader(8, start=state)
    np.testing.assert_array_equal(next(resumed)["tokens"], rest[0])


def test_a_build_that_ends_without_finish_is_told(
    folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    to = tmp_path / "cache"
    assert subprocess.run(command(folder, tokenizer, to), check=False).returncode == 0
    cache = cachelib.open(to, follow=True, stale=0.5)
    began = time.monotonic()
    with pytest.raises(
        BuilderGone, match=r"The build ended .*not marked complete\. Build again wi"
    ):
        for _ in cache.windows(64).loader(64):
            pass
    assert time.monotonic() - began < 60
    assert cache.sealed.rows[-1] == len(cachelib.open(to))
