"""What format version 1 wrote stays readable, and can be added to."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import cachelib
from cachelib.cache import Provenance
from cachelib.format.shard import read_rejects
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from cachelib.verification import difference, verify
from tests.golden.make import CACHE, OPTIONS, SOURCES, make

DIGEST = "35:0594f66869086f1f"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CACHE, tmp_path / "golden"))


def test_rows_are_the_pinned_ones(golden: Path) -> None:
    cache = cachelib.open(golden)
    assert len(cache) == 35
    assert str(cache.snapshot.digest) == DIGEST
    assert cache.snapshot.commit.finished
    chosen = [0, 1, 3, 25, -1]
    rows = cache.take(chosen)
    tokens, names, scores = rows["tokens"], rows["id"], rows["score"]
    assert isinstance(tokens, Ragged)
    assert isinstance(scores, np.ndarray)
    assert tokens.values.dtype == np.uint16
    assert tokens[2].tolist() == [0]  # an empty text and its end
    assert tokens[3].tolist() == [
        52, 257, 309, 260, 85, 82, 78, 83, 14, 285, 221, 28, 92, 69, 270, 92, 30, 221, 73, 83, 260,
        69, 88, 84, 221, 257, 82, 69, 14, 0,
    ]  # fmt: skip
    assert tokens[4].tolist() == [
        87, 293, 258, 300, 267, 318, 221, 311, 261, 316, 221, 311, 221, 311, 284, 282, 0,
    ]  # fmt: skip
    assert [bytes(name).decode() for name in names] == [
        "Zeile 0 ü水", "row 1", "Zeile 100 ü水", "Zeile 200 ü水", "row 209",
    ]  # fmt: skip
    assert scores.dtype == np.float32
    assert scores.tolist() == [-0.375, -0.25, -0.375, -0.375, 0.75]
    (zero,) = (score for score in cache.take([2])["score"])
    assert np.signbit(zero)  # -0.0
    assert cache.provenance(chosen) == [
        Provenance("a.jsonl", 0),
        Provenance("a.jsonl", 219),
        Provenance("a.jsonl", 384),
        Provenance("b.jsonl", 0),
        Provenance("b.jsonl", 2309),
    ]


def test_rejects_are_the_pinned_ones(golden: Path) -> None:
    cache = cachelib.open(golden)
    entries = cache.snapshot.entries
    found = [
        (reject["source"], reject["position"], reject["reason"])
        for shard, attempt in zip(entries.shard, entries.attempt, strict=True)
        for reject in read_rejects(cache.storage, shard, attempt)
    ]
    assert found == [("a.jsonl", 1857, "text is null"), ("b.jsonl", 2414, "not JSON")]


def test_every_earlier_version_opens(golden: Path) -> None:
    sizes = [len(cachelib.open(golden, version)) for version in range(5)]
    assert sizes == [11, 25, 33, 35, 35]


def test_nothing_is_wrong_with_it(golden: Path) -> None:
    assert [str(problem) for problem in verify(Storage.at(golden))] == []


def test_building_again_takes_in_only_what_is_new(golden: Path, tmp_path: Path) -> None:
    from pipelines.launcher import build

    inputs = Path(shutil.copytree(SOURCES, tmp_path / "inputs"))
    options = {**OPTIONS, "inputs": [str(inputs)], "to": str(golden), "reopen": True}
    assert build(**options).records == 0
    (inputs / "c.jsonl").write_text('{"id": "new", "text": "the wheel", "score": 2}\n')
    summary = build(**options)
    assert (summary.records, summary.rows) == (1, 36)
    cache = cachelib.open(golden)
    assert str(cachelib.open(golden, 4).snapshot.digest) == DIGEST
    assert bytes(cache.take([35])["id"][0]) == b"new"
    assert [str(problem) for problem in verify(Storage.at(golden))] == []


def test_the_same_builds_give_the_same_rows_today(tmp_path: Path) -> None:
    make(tmp_path)
    assert difference(cachelib.open(CACHE), cachelib.open(tmp_path)) is None
