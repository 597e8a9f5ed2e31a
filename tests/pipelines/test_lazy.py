"""The lazy face: a dataset at once, built in the background."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import cachelib
from cachelib.errors import BuildFailed, ForebayError, IncompatibleCache
from cachelib.following import Patience
from cachelib.format.canonical import seal
from cachelib.format.storage import Storage
from pipelines import read_jsonl
from pipelines.config import ConfigError
from tests.pipelines.conftest import sentences, write_jsonl
from tests.pipelines.functions_of_records import (
    babble,
    choose,
    interrupt,
    leave,
    shout,
    stumble,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(4):
        write_jsonl(tmp_path / "in" / f"{number}.jsonl", sentences(150, number), 150 * number)
    return tmp_path / "in"


OPTIONS: dict[str, Any] = {"split_bytes": 4096, "timeout": 120}


def test_batches_come_while_the_cache_is_built_and_again_afterwards(
    source: Path, tokenizer: str, tmp_path: Path
) -> None:
    recipe = read_jsonl(source, keep={"id": "str", "score": "float32"})
    recipe = recipe.map(choose).tokenize(tokenizer)
    followed = recipe.cache(tmp_path / "cache", **OPTIONS)
    loader = followed.windows(16).shuffle(3).loader(8)
    first = [batch["tokens"].tolist() for batch in loader]
    cache = cachelib.open(tmp_path / "cache")
    assert cache.snapshot.commit.finished
    assert len(cache) == 400
    again = recipe.cache(tmp_path / "cache", **OPTIONS).windows(16).shuffle(3).loader(8)
    assert [batch["tokens"].tolist() for batch in again] == first
    sought = recipe.cache(tmp_path / "cache", **OPTIONS).windows(16).shuffle(3).loader(8).seek(5)
    assert sought.step == 5
    assert next(sought)["tokens"].tolist() == first[5]
    assert next(sought.seek(2))["tokens"].tolist() == first[2]
    assert sought.batch(0)["tokens"].tolist() == first[0]


def test_a_changed_function_or_tokenizer_never_reads_an_old_cache(
    source: Path, tokenizer: str, tmp_path: Path
) -> None:
    recipe = read_jsonl(source)
    followed = recipe.map(shout, version="1").tokenize(tokenizer).cache(tmp_path / "c", **OPTIONS)
    assert len(followed.dataset().take(range(600))["tokens"]) == 600
    for changed in (
        recipe.map(shout, version="2").tokenize(tokenizer),
        recipe.tokenize(tokenizer),
        recipe.map(shout, version="1").tokenize(tokenizer, eos="<|end|>"),
    ):
        with pytest.raises(IncompatibleCache):
            changed.cache(tmp_path / "c", **OPTIONS)
    write_jsonl(source / "more.jsonl", sentences(10, 9))
    same = recipe.map(shout, version="1").tokenize(tokenizer)
    with pytest.raises(IncompatibleCache, match="1 new piece"):
        same.cache(tmp_path / "c", **OPTIONS)
    grown = same.cache(tmp_path / "c", reopen=True, **OPTIONS)
    grown.dataset().take([609])


def test_functions_without_a_name_are_refused(source: Path) -> None:
    with pytest.raises(TypeError, match="lambda"):
        read_jsonl(source).map(lambda record: record["text"])
    with pytest.raises(ForebayError, match="already"):
        read_jsonl(source).map(shout).map(shout)


def test_what_is_missing_is_told_at_once(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        read_jsonl(source).cache(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_build_that_fails_in_the_background_is_told_by_the_read_that_waits(
    tokenizer: str, tmp_path: Path
) -> None:
    recipe = read_jsonl(tmp_path / "nothing-here").tokenize(tokenizer)
    began = time.monotonic()
    with pytest.raises(BuildFailed, match="nothing-here"):
        recipe.cache(tmp_path / "cache", **OPTIONS)
    assert time.monotonic() - began < 60


def test_a_build_is_not_taken_for_an_earlier_one_that_failed(
    source: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "cache"
    status = seal({"state": "failed", "message": "BuildFailed: an earlier one"})
    Storage.at(to).write("_status/000000-abc.json", status)
    monkeypatch.setattr(Patience, "grace", 0.0)
    recipe = read_jsonl(source, keep={"id": "str"}).map(stumble).tokenize(tokenizer)
    with pytest.raises(BuildFailed, match="rejected"):
        recipe.cache(to, **OPTIONS).dataset().take([84])
    followed = recipe.cache(to, max_reject_rate=1, **OPTIONS)
    assert len(followed.dataset().take(range(85))["id"]) == 85


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (babble, "babble;.*"),
        (leave, "leave raised SystemExit: 3"),
        (interrupt, "KeyboardInterrupt"),
    ],
)
def test_an_error_in_the_background_is_told_without_what_was_printed(
    source: Path, tokenizer: str, tmp_path: Path, function: Any, said: str
) -> None:
    recipe = read_jsonl(source, keep={"id": "str"}).map(function).tokenize(tokenizer)
    with pytest.raises(BuildFailed, match=said) as error:
        recipe.cache(tmp_path / "cache", **OPTIONS).dataset().take([600])
    text = str(error.value)
    assert "the build in the background ended with status 1: " in text
    assert "the function" not in text
    assert "apitools" not in text
    assert ("ValueError: no text (functions_of_records.py, line" in text) == (function is babble)


PROGRAM = """
import os, sys, time
from pipelines import read_jsonl
recipe = read_jsonl(sys.argv[1]).tokenize(sys.argv[2])
followed = recipe.cache(sys.argv[3], split_bytes=4096)
os.write(1, b"there\\n")
time.sleep(600)
"""


def test_the_build_ends_with_the_process_that_started_it(
    source: Path, tokenizer: str, tmp_path: Path
) -> None:
    for number in range(60):
        write_jsonl(source / f"more-{number}.jsonl", sentences(2000, number))
    arguments = [str(source), tokenizer, str(tmp_path / "cache")]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    (child,) = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ends = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and time.monotonic() < ends:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    assert len(cachelib.open(tmp_path / "cache", partial=True)) > 0


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
