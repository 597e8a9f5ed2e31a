"""What lies in a cache: alike by files and by any file system that fsspec knows."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from cachelib.errors import ForebayError, StorageError
from cachelib.format.storage import Storage
from pipelines.maintenance import objects
from pipelines.maintenance.objects import Stored, listed
from pipelines.maintenance.survey import Survey
from tests.cachelib.helpers import TOKENS, random_columns, write_cache


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_cache(tmp_path, TOKENS, random_columns(TOKENS, [1, 2], 0), [[1], [1]])
    for number, file in enumerate(sorted(f for f in tmp_path.rglob("*") if f.is_file())):
        os.utime(file, (1_000 + number, 2_000 + number))
    return tmp_path


def on_a_bucket(monkeypatch: pytest.MonkeyPatch, path: Path, found: Any) -> Storage:
    """A storage elsewhere, of which fsspec finds what lies here."""
    monkeypatch.setattr(objects, "filesystem", lambda url: found)
    return Storage.at("s3://bucket/cache")


def test_other_stores_are_listed_alike(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = sorted(listed(Storage.at(path), "shards"), key=lambda each: each.key)
    assert here
    assert all(each.modified is not None and each.modified >= 2_000 for each in here)
    storage = on_a_bucket(monkeypatch, path, (LocalFileSystem(), str(path)))
    assert sorted(listed(storage, "shards"), key=lambda each: each.key) == here
    assert list(listed(storage, "nothing")) == list(listed(Storage.at(path), "nothing")) == []
    survey = Survey.of(here)
    assert set(survey.manifests) == {"0-0", "1-0"}
    assert all(folder.whole for folder in survey.folders.values())


class Strange:
    """Stores that fail, each in its own way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def find(self, *_: Any, **__: Any) -> Any:
        raise self.error


def test_stores_that_cannot_be_listed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = on_a_bucket(monkeypatch, path, (Strange(RuntimeError("denied")), "bucket/cache"))
    with pytest.raises(StorageError, match="shards: cannot be listed: denied"):
        list(listed(storage, "shards"))
    storage = on_a_bucket(monkeypatch, path, (Strange(ImportError("Install s3fs")), "bucket"))
    with pytest.raises(ForebayError, match=r"pip install 'forebay\[s3\]'"):
        list(listed(storage, "shards"))


def test_ages_have_many_names() -> None:
    when = datetime(2024, 5, 6, tzinfo=UTC)
    for details in (
        {"LastModified": when},
        {"mtime": when.timestamp()},
        {"updated": "2024-05-06T00:00:00Z"},
        {"created": int(when.timestamp())},
    ):
        assert objects._seconds(details) == when.timestamp()
    assert objects._seconds({"ETag": "x"}) is None


def test_a_store_without_times_is_young() -> None:
    survey = Survey.of([Stored("shards/a/b/zarr.json", 3, None)])
    folder = survey.folders[("a", "b")]
    assert (folder.objects, folder.bytes, folder.whole) == (1, 3, True)
    assert folder.modified == float("inf")
