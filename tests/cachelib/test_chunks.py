"""Chunks read from files: what TensorStore wrote, and every way in which it can be damaged."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachelib.errors import CorruptData, StorageError
from cachelib.format.schema import CHUNKS_PER_OBJECT
from cachelib.format.shard import array_metadata
from cachelib.format.storage import Storage
from cachelib.reading import chunks
from cachelib.reading.chunks import LocalArray, Part, local_array
from tests.cachelib.helpers import TOKENS, random_columns, write_cache

ROOT = Path(__file__).parents[2]

CHUNK = 3
LENGTH = 2 * CHUNK * CHUNKS_PER_OBJECT + 100
"""Values in three files, of which the last is not full."""

Arrays = dict[str, tuple[np.ndarray, LocalArray]]


def stored(folder: Path, values: np.ndarray, chunk: int) -> LocalArray:
    """Values as TensorStore writes them for a shard."""
    metadata = array_metadata(str(values.dtype), values.shape, chunk)
    Storage.at(folder).open_array("data", metadata, write=True).write(values).result()
    return local_array(str(folder / "data"), metadata)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {
        "long": rng.integers(0, 1000, LENGTH).astype(np.uint32),
        "shaped": rng.random((50, 2, 3)).astype(np.float16),
        "flags": rng.integers(0, 2, 20).astype(bool),
    }
    return {
        name: (values, stored(tmp_path_factory.mktemp(name), values, CHUNK))
        for name, values in made.items()
    }


@pytest.fixture
def array(tmp_path: Path) -> LocalArray:
    """Twenty values in seven chunks, of its own for each test."""
    return stored(tmp_path, np.arange(20, dtype=np.uint32), CHUNK)


def forget() -> None:
    for kept in (chunks._files, chunks._indices, chunks._kept):
        kept.cache_clear()


def values_of(array: LocalArray, *bounds: tuple[int, int], keep: bool = False) -> np.ndarray:
    parts = [Part(array, low, high) for low, high in bounds]
    return np.frombuffer(chunks.read(parts, "part {}".format, keep=keep), np.uint32)


@given(
    name=st.sampled_from(["long", "shaped", "flags"]),
    data=st.data(),
    keep=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_in_any_order_are_what_was_written(
    arrays: Arrays, name: str, data: st.DataObject, keep: bool
) -> None:
    values, array = arrays[name]
    borders = st.integers(0, len(values)) | st.sampled_from(
        [at for at in (0, 3, 3072, 3073, 6144, len(values)) if at <= len(values)]
    )
    pairs = data.draw(st.lists(st.tuples(borders, borders), max_size=4))
    bounds = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    parts = [Part(array, low, high) for low, high in bounds]
    found = np.frombuffer(chunks.read(parts, str, keep=keep), values.dtype)
    expected = [values[low:high].reshape(-1) for low, high in bounds]
    assert np.array_equal(found, np.concatenate([values[:0].reshape(-1), *expected]))


def test_threads_share_files_of_which_few_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "OPEN_FILES", 2)
    monkeypatch.setattr(chunks, "INDICES", 3)
    monkeypatch.setattr(chunks, "KEPT_BYTES", 40)
    forget()
    made = [
        stored(tmp_path / str(i), np.arange(20 * i, 20 * i + 20, dtype=np.uint32), CHUNK)
        for i in range(6)
    ]

    def read(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, 6, 200).tolist():
            assert values_of(made[i], (5, 17)).tolist() == list(range(20 * i + 5, 20 * i + 17))

    before = len(os.listdir("/dev/fd"))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert len(os.listdir("/dev/fd")) <= before + 2
    forget()


def test_a_read_of_many_files_holds_few_open(tmp_path: Path) -> None:
    array = stored(tmp_path / "0", np.arange(20, dtype=np.uint32), CHUNK)
    for number in range(1, 300):
        (tmp_path / str(number)).symlink_to(tmp_path / "0")
    arrays = [replace(array, folder=str(tmp_path / str(i) / "data")) for i in range(300)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 140, hard))
    try:
        data = chunks.read([Part(one, 3, 5) for one in arrays], str, keep=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert np.frombuffer(data, np.uint32).tolist() == [3, 4] * 300


def test_a_file_that_was_mended_is_read_anew(array: LocalArray) -> None:
    good = file_of(array).read_bytes()
    flipped(1)(array)
    with pytest.raises(CorruptData):
        values_of(array, (0, 3))
    mended = file_of(array).with_name("mended")
    mended.write_bytes(good)
    mended.rename(file_of(array))
    assert values_of(array, (0, 3)).tolist() == [0, 1, 2]


LATE = """
import sys, threading, time
import cachelib

rows = cachelib.open(sys.argv[1])

def late():
    threading.main_thread().join()
    time.sleep(0.2)
    print(rows.take(range(len(rows)))["tokens"].values.sum())

threading.Thread(target=late).start()
"""


def test_threads_may_read_when_the_main_thread_has_ended(tmp_path: Path) -> None:
    columns = random_columns(TOKENS, [1000], 0)
    write_cache(tmp_path, TOKENS, columns, [[1]])
    run = [sys.executable, "-c", LATE, str(tmp_path)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(columns["tokens"].values.sum())  # type: ignore[union-attr]


def test_chunks_are_kept_where_there_is_room_or_they_are_wanted_again(
    array: LocalArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "KEPT_BYTES", 3 * array.chunk_bytes)
    chunks._kept.cache_clear()
    values_of(array, (0, 3), (6, 9))
    assert [number for _, number in chunks._kept()._values] == [0, 2]
    values_of(array, (9, 15))  # two chunks, and there is room for one
    assert [number for _, number in chunks._kept()._values] == [0, 2]
    values_of(array, (9, 15), keep=True)
    assert [number for _, number in chunks._kept()._values] == [2, 3, 4]
    chunks._kept.cache_clear()


def file_of(array: LocalArray) -> Path:
    return Path(array.folder) / "c" / "0"


def rewrite(array: LocalArray, frames: list[bytes | None]) -> None:
    """Other chunks in the file of an array, each with a crc32c, and the index of them."""
    body, index = b"", []
    for frame in frames:
        if frame is None:
            index += [2**64 - 1, 2**64 - 1]
            continue
        index += [len(body), len(frame) + 4]
        body += frame + google_crc32c.value(frame).to_bytes(4, "little")
    table = np.array(index, "<u8").tobytes()
    check = google_crc32c.value(table).to_bytes(4, "little")
    file_of(array).write_bytes(body + table + check)


def frames_of(values: np.ndarray) -> list[bytes | None]:
    padded = np.concatenate([values, np.zeros(-len(values) % CHUNK, values.dtype)])
    compress = zstandard.ZstdCompressor().compress
    return [compress(piece.tobytes()) for piece in padded.reshape(-1, CHUNK)]


def test_chunks_may_lie_in_any_order(array: LocalArray) -> None:
    values = np.arange(20, dtype=np.uint32)
    rewrite(array, frames_of(values))
    data = bytearray(file_of(array).read_bytes())
    index = np.frombuffer(data[-7 * 16 - 4 : -4], "<u8").reshape(7, 2)
    order = [4, 0, 6, 2, 5, 1, 3]
    body, places = b"", {}
    for number in order:
        places[number] = len(body)
        body += bytes(data[index[number, 0] : index[number].sum()]) + b"between" * 9
    table = np.array([[places[n], index[n, 1]] for n in range(7)], "<u8").tobytes()
    check = google_crc32c.value(table).to_bytes(4, "little")
    file_of(array).write_bytes(body + table + check)
    assert values_of(array, (0, 20)).tolist() == values.tolist()
    assert values_of(array, (19, 20), (2, 8)).tolist() == [19, *range(2, 8)]


def flipped(at: int) -> Callable[[LocalArray], None]:
    def damage(array: LocalArray) -> None:
        data = bytearray(file_of(array).read_bytes())
        data[at] ^= 1
        file_of(array).write_bytes(data)

    return damage


def cut_to(size: int) -> Callable[[LocalArray], None]:
    return lambda array: os.truncate(file_of(array), size)


def with_frame(number: int, frame: bytes | None) -> Callable[[LocalArray], None]:
    def damage(array: LocalArray) -> None:
        frames = frames_of(np.arange(20, dtype=np.uint32))
        frames[number] = frame
        rewrite(array, frames)

    return damage


def gone(array: LocalArray) -> None:
    shutil.rmtree(Path(array.folder) / "c")


def a_folder(array: LocalArray) -> None:
    file_of(array).unlink()
    file_of(array).mkdir()


def a_link_to_itself(array: LocalArray) -> None:
    file_of(array).unlink()
    file_of(array).symlink_to(file_of(array))


def below_a_file(array: LocalArray) -> None:
    gone(array)
    file_of(array).parent.write_bytes(b"")


LONGER = zstandard.ZstdCompressor().compress(bytes(4 * CHUNK + 1))
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4 * CHUNK + 4))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(flipped(1), "chunk 0 of .*/c/0 does not fit its crc32c", id="chunk"),
        pytest.param(flipped(-30), "the index of .*/c/0 does not fit its crc32c", id="index"),
        pytest.param(flipped(-1), "the index of .*/c/0 does not fit its crc32c", id="check"),
        pytest.param(cut_to(0), "has 0 bytes, fewer than the 116 of its index", id="empty"),
        pytest.param(cut_to(150), "does not fit its crc32c", id="short"),
        pytest.param(with_frame(2, None), "chunk 2 of .*/c/0 is missing", id="absent"),
        pytest.param(with_frame(2, b"no zstd"), "chunk 2 of .*/c/0: .*Unknown frame", id="frame"),
        pytest.param(with_frame(2, LONGER), "chunk 2 of .*/c/0: error decom", id="longer"),
        pytest.param(with_frame(2, UNSIZED), "chunk 2 of .*/c/0: error decom", id="unsized"),
        pytest.param(gone, "/c/0 is missing", id="gone"),
        pytest.param(a_folder, r"/c/0 is missing \(Is a directory\)", id="folder"),
        pytest.param(a_link_to_itself, r"/c/0 is missing \(Too many levels", id="link"),
        pytest.param(below_a_file, r"/c/0 is missing \(Not a directory\)", id="below a file"),
    ],
)
def test_damage_is_named_with_the_part(
    array: LocalArray, damage: Callable[[LocalArray], None], message: str
) -> None:
    damage(array)
    with pytest.raises(CorruptData, match=f"^part [01]: .*{message}"):
        values_of(array, (0, 2), (4, 8))


WHOLE = 2**64


@pytest.mark.parametrize(
    ("place", "message"),
    [
        pytest.param((0, 1 << 20), "chunk 2 in 1048576 bytes from 0 on, expected", id="long"),
        pytest.param((1 << 20, 9), "chunk 2 in 9 bytes from 1048576 on, expected", id="beyond"),
        pytest.param((WHOLE - 2, 16), f"chunk 2 in 16 bytes from {WHOLE - 2} on", id="wrapped"),
        pytest.param((0, WHOLE - 1), f"chunk 2 in {WHOLE - 1} bytes from 0 on", id="half absent"),
        pytest.param((1 << 63, 1 << 63), f"in {1 << 63} bytes from {1 << 63} on", id="signed"),
        pytest.param((0, 0), "chunk 2 in 0 bytes from 0 on, expected more than 4", id="nothing"),
        pytest.param((0, 4), "chunk 2 in 4 bytes from 0 on, expected more than 4", id="no frame"),
        pytest.param((0, 9), "chunks 0 and 2 in the same bytes", id="overlapping"),
        pytest.param((3, 150), "chunks 0 and 2 in the same bytes", id="over several"),
    ],
)
def test_an_index_that_leads_astray(
    array: LocalArray, place: tuple[int, int], message: str
) -> None:
    rewrite(array, frames_of(np.arange(20, dtype=np.uint32)))
    data = file_of(array).read_bytes()
    table = np.frombuffer(data[-116:-4], "<u8").copy()
    table[4:6] = np.array(place, "<u8")
    check = google_crc32c.value(table.tobytes()).to_bytes(4, "little")
    file_of(array).write_bytes(data[:-116] + table.tobytes() + check)
    with pytest.raises(CorruptData, match=f"^part 0: the index of .*/c/0 has .*{message}"):
        values_of(array, (6, 9))


def test_a_file_that_was_cut_while_it_was_open(array: LocalArray) -> None:
    values_of(array, (0, 1))
    cut_to(20)(array)
    with pytest.raises(CorruptData, match=r"part 0: .*/c/0 ends inside a chunk"):
        values_of(array, (19, 20))


@pytest.mark.parametrize("call", ["pread", "open"])
@pytest.mark.parametrize("kind", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_file_that_cannot_be_read_is_no_damage(
    array: LocalArray, monkeypatch: pytest.MonkeyPatch, call: str, kind: int
) -> None:
    def broken(*_: Any) -> bytes:
        raise OSError(kind, os.strerror(kind))

    monkeypatch.setattr(os, call, broken)
    with pytest.raises(StorageError, match=f"part 0: .*{os.strerror(kind)}"):
        values_of(array, (0, 1))
