"""Pins: names that keep versions."""

from __future__ import annotations

from pathlib import Path

import pytest

import cachelib
from cachelib.errors import CacheNotFound, CorruptData, StateMismatch, StorageError
from cachelib.format.canonical import seal
from cachelib.format.pins import Pin, all_pins, pinned, read_pin, unpin
from cachelib.format.storage import Storage
from tests.cachelib.helpers import TOKENS, append_commit, random_columns, write_cache


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return write_cache(tmp_path, TOKENS, random_columns(TOKENS, [1, 2, 3], 0), [[1], [1], [1]])


def test_a_pin_is_made_once_and_then_opened(storage: Storage) -> None:
    assert cachelib.open(storage.url, pin="run17").version == 2
    assert cachelib.open(storage.url, 1, pin="older").version == 1
    append_commit(storage, TOKENS, [])
    assert cachelib.open(storage.url).version == 3
    assert cachelib.open(storage.url, pin="run17").version == 2
    assert cachelib.open(storage.url, 2, pin="run17").version == 2
    with pytest.raises(StateMismatch, match="'run17' stands for version 2, not 3"):
        cachelib.open(storage.url, 3, pin="run17")
    assert [(pin.name, pin.version) for pin in all_pins(storage)] == [("older", 1), ("run17", 2)]
    assert unpin(storage, "run17") is not None
    assert unpin(storage, "run17") is None
    assert cachelib.open(storage.url, pin="run17").version == 3


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../x", "x" * 101, "ä", "-n", None, 3])
def test_what_is_no_name_is_refused(storage: Storage, name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a pin"):
        pinned(storage, name)


def test_there_is_nothing_to_pin(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(CacheNotFound, match="no version 7"):
        cachelib.open(storage.url, 7, pin="run17")
    with pytest.raises(CacheNotFound, match="no cache here"):
        cachelib.open(tmp_path / "nothing", pin="run17")
    assert all_pins(storage) == []


def test_a_store_that_can_only_be_read(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned(storage, "there")

    def refuse(self: Storage, key: str, data: bytes) -> bytes:
        raise StorageError(f"{self.where(key)}: PERMISSION_DENIED")

    monkeypatch.setattr(Storage, "put_if_absent", refuse)
    assert cachelib.open(storage.url, pin="there").version == 2
    with pytest.raises(StorageError, match=r"open version=2 instead, .* run: forebay pin"):
        cachelib.open(storage.url, pin="run17")


def test_a_pin_of_a_commit_that_was_made_anew_is_damage(storage: Storage) -> None:
    storage.write("_refs/run17.json", seal({"version": 1, "digest": "0" * 32}))
    assert read_pin(storage, "run17") == Pin("run17", 1, "0" * 32)
    with pytest.raises(CorruptData, match="commits were lost and made anew"):
        cachelib.open(storage.url, pin="run17")
