"""The cache of format version 1 that is kept here reads as on the day it was written."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import cachelib
from cachelib.cache import Provenance
from cachelib.format.commit import commit_key
from cachelib.format.ledger import Ledger
from cachelib.format.shard import read_rejects
from cachelib.format.storage import Storage
from cachelib.verification import difference, verify
from tests.cachelib.golden import SCHEMA, VERSION_1, rows, write
from tests.cachelib.helpers import assert_equal

DIGEST = "3:145de391aba1d53a"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(VERSION_1, tmp_path / "golden"))


def test_rows_are_those_that_were_written(golden: Path) -> None:
    cache = cachelib.open(golden)
    assert (cache.version, len(cache), cache.schema) == (2, 3, SCHEMA)
    assert str(cache.snapshot.digest) == DIGEST
    assert cache.snapshot.commit.finished
    assert_equal(cache.take(np.arange(3)), rows())
    assert cache.provenance([2]) == [Provenance("numbers", 2)]
    entries = cache.snapshot.entries
    rejects = read_rejects(cache.storage, entries.shard[1], entries.attempt[1])
    assert [(reject["reason"], reject["position"]) for reject in rejects] == [("not JSON", 3)]


def test_nothing_is_wrong_with_it(golden: Path) -> None:
    assert [str(problem) for problem in verify(Storage.at(golden))] == []


def test_what_is_written_today_says_the_same(golden: Path, tmp_path: Path) -> None:
    """But for the names of attempts, which are drawn, and what depends on them."""
    write(tmp_path / "today")
    assert difference(cachelib.open(golden), cachelib.open(tmp_path / "today")) is None

    def objects(folder: Path) -> dict[str, bytes]:
        entries = Ledger(Storage.at(folder)).snapshot().entries
        found = {}
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                key, data = file.relative_to(folder).as_posix(), file.read_bytes()
                for number, attempt in enumerate(entries.attempt):
                    key = key.replace(attempt, f"attempt-{number}")
                    data = data.replace(attempt.encode(), b"attempt-%d" % number)
                if key.startswith("_ledger/0") or key.endswith("manifest.json"):
                    data = re.sub(rb'"parent":"\w+"', b"", data.partition(b"\n")[0])
                found[key] = data
        return found

    then, today = objects(golden), objects(tmp_path / "today")
    assert then.keys() == today.keys()
    for key, data in then.items():
        if "/c/" not in key:  # other versions of zstd may pack otherwise
            assert today[key] == data, key
    assert commit_key(2) in then
