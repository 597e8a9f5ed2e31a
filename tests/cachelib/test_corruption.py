"""Damage to any stored object is seen by `take` or by `verify`: never silently wrong values."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib.errors import CorruptData, ForebayError
from cachelib.format.canonical import seal
from cachelib.format.digest import digest_rows
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import offsets_metadata
from cachelib.format.storage import Storage
from cachelib.verification import Problem, verify
from tests.cachelib.helpers import (
    TOKENIZER,
    append_commit,
    random_columns,
    with_tokenizer,
    write_cache,
)

SCHEMA = Schema(
    (
        Field("tokens", "uint16", ragged=True, chunk=2),
        Field("score", "float32", shape=(2,), chunk=1),
    )
)
COLUMNS = random_columns(SCHEMA, [3, 0, 9, 1, 0, 2], seed=1)
DIGEST = digest_rows(SCHEMA, COLUMNS)
MODEL = b'{"model": {}}'
IDENTITY = with_tokenizer({}, MODEL)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished cache with rejects, a tokenizer and an empty shard."""
    path = tmp_path_factory.mktemp("sound")
    storage = write_cache(
        path, SCHEMA, COLUMNS, [[2], [3, 0, 1]], rejects=["bad", "bad"], identity=IDENTITY
    )
    storage.write(TOKENIZER, MODEL)
    append_commit(storage, SCHEMA, [], identity=IDENTITY, finish=True)
    assert list(verify(storage)) == []
    return path


class Damaged:
    """A copy of a cache in which one object after another is damaged and mended again.

    Every look at it is at a fresh path, since readers of one process keep decoded chunks by path.
    """

    def __init__(self, sound: Path, folder: Path) -> None:
        self.sound = sound
        self.path = folder / "0"
        shutil.copytree(sound, self.path)

    @contextmanager
    def instead(self, key: str, data: bytes | None) -> Iterator[Path]:
        """The cache with other bytes, or none, in the place of an object."""
        file = self.path / key
        if data is None:
            file.unlink()
        else:
            file.write_bytes(data)
        yield self.path
        (self.path / key).write_bytes((self.sound / key).read_bytes())
        fresh = self.path.with_name(str(int(self.path.name) + 1))
        self.path = self.path.rename(fresh)


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Damaged:
    return Damaged(sound, tmp_path)


def objects(path: Path) -> list[str]:
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())


def outcome(path: Path) -> tuple[str, list[Problem]]:
    """What a reader of everything gets: "right", "error", or "wrong"; and what verify says."""
    try:
        cache = cachelib.open(path)
        right = digest_rows(SCHEMA, cache.take(np.arange(len(cache)))) == DIGEST
        read = "right" if right else "wrong"
    except ForebayError:
        read = "error"
    return read, list(verify(Storage.at(path)))


# Damage to these changes no row and cannot be told: a hint, and copies of rejects for people.
HARMLESS = ("_ledger/head", "rejects.jsonl")


def check(path: Path, key: str, what: str) -> None:
    read, problems = outcome(path)
    assert problems or read != "wrong", f"{key}: {what}: silently wrong"
    assert problems or key.endswith(HARMLESS), f"{key}: {what}: not found by verify"
    if not key.startswith("_ledger/0"):
        # A damaged commit may make an older version the newest that is found; nothing else may.
        assert read != "wrong", f"{key}: {what}: wrong values"


def flips(damaged: Damaged, every: int) -> None:
    """Flip a bit of some bytes of each object: both ends, and one in `every` between them."""
    for key in objects(damaged.sound):
        data = (damaged.sound / key).read_bytes()
        for place in sorted({0, len(data) - 1, *range(len(data) // 2, len(data), every)}):
            flipped = bytearray(data)
            flipped[place] ^= 1 << (place % 8)
            with damaged.instead(key, bytes(flipped)) as path:
                check(path, key, f"byte {place}")


def test_flipped_bytes(damaged: Damaged) -> None:
    flips(damaged, 1 << 20)


@pytest.mark.slow
def test_many_flipped_bytes(damaged: Damaged) -> None:
    flips(damaged, 151)


def test_truncated_objects(damaged: Damaged) -> None:
    for key in objects(damaged.sound):
        data = (damaged.sound / key).read_bytes()
        for size in sorted({0, len(data) // 2, len(data) - 1}):
            with damaged.instead(key, data[:size]) as path:
                check(path, key, f"cut to {size} bytes")


def test_deleted_objects(damaged: Damaged) -> None:
    for key in objects(damaged.sound):
        with damaged.instead(key, None) as path:
            read, problems = outcome(path)
            # The newest commit and a hint are the only ones that nothing else speaks of.
            assert problems or key == "_ledger/head" or key.endswith(f"{2:020d}.json"), key
            assert read != "wrong" or key.startswith("_ledger/0"), key


def test_arrays_that_changed_places(damaged: Damaged) -> None:
    """Sound objects in the wrong place have the right checksums; only the digest tells."""
    sound = damaged.sound
    chunks = [key for key in objects(sound) if "/data/c/" in key]
    pairs = [
        (a, b)
        for a in chunks
        for b in chunks
        if a < b and a.split("/")[-4:] == b.split("/")[-4:] and a.split("/")[-4][0] != "_"
    ]
    assert pairs
    for a, b in pairs:
        with (
            damaged.instead(a, (sound / b).read_bytes()) as path,
            damaged.instead(b, (sound / a).read_bytes()),
        ):
            assert list(verify(Storage.at(path))), (a, b)


def test_offsets_of_another_shard_are_refused(tmp_path: Path) -> None:
    """Intact ones, of as many rows with another number of values: whoever reads to their end."""
    lengths = [1, 2, 3, 4, 2, 2, 0, 5, 1, 2, 2, 2, 3, 0, 0, 8, 7, 0, 0, 8, 1, 1, 0, 1]
    sound = tmp_path / "sound"
    write_cache(sound, SCHEMA, random_columns(SCHEMA, lengths, seed=1), [[4] * 6])
    chunks = sorted(sound.rglob("tokens/offsets/c/0"))
    assert len(chunks) == 6
    for number, (there, other) in enumerate(itertools.permutations(chunks, 2)):
        path = tmp_path / str(number)
        shutil.copytree(sound, path)
        place = there.relative_to(sound)
        shutil.copy(other, path / place)
        cache = cachelib.open(path)
        named = (
            rf"{'/'.join(place.parts[:3])}/tokens/offsets\[.*\] \(rows \d+ to \d+\): row \d of 4"
        )
        with pytest.raises(CorruptData, match=named):
            cache.take(np.arange(len(lengths)))
        with pytest.raises(CorruptData, match=named):
            cache.spans("tokens", np.arange(len(lengths))[::-1])
        with pytest.raises(CorruptData, match=named):
            cache.rows_at("tokens", np.arange(sum(lengths)))


@pytest.mark.parametrize("offsets", [[0, 5, 3, 7], [1, 3, 5, 7], [0, 3, 5, 8], [0, -1, 5, 7]])
def test_offsets_that_cannot_be_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    storage = write_cache(
        tmp_path / "cache", SCHEMA, random_columns(SCHEMA, [3, 2, 2], seed=1), [[3]]
    )
    (place,) = (tmp_path / "cache").glob("shards/*/*/tokens/offsets")
    key = place.relative_to(tmp_path / "cache").as_posix()
    storage.open_array(key, offsets_metadata(3), write=True).write(offsets).result()
    cache = cachelib.open(tmp_path / "cache")
    with pytest.raises(CorruptData, match=r"tokens/offsets\[.*has offsets \d and -?\d, expected"):
        cache.take([0, 1, 2])
    with pytest.raises(CorruptData, match=r"tokens/offsets\[.*has offsets \d and -?\d, expected"):
        cache.rows_at("tokens", np.arange(7))


def test_a_sealed_lie_is_found(damaged: Damaged) -> None:
    """Manifests and details that say something else, with right digests of their own."""
    storage = Storage.at(damaged.sound)
    for key in objects(damaged.sound):
        if not key.endswith(("manifest.json", "details.json")):
            continue
        value: dict[str, Any] = storage.read_json(key)  # type: ignore[assignment]
        for name, old in value.items():
            if name == "task":
                continue  # free for the one who planned
            if isinstance(old, int):
                new: object = old + 1
            elif isinstance(old, str):
                new = old[:-1] + ("0" if old[-1] != "0" else "1")
            elif isinstance(old, list):
                new = []
            else:
                new = {**old, "more": 1}
            if new == old:
                continue
            with damaged.instead(key, seal({**value, name: new})) as path:
                assert list(verify(Storage.at(path))), (key, name)
