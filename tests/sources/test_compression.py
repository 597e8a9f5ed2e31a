"""Compressed sources: all streams of a file, to the true end, in bounded pieces."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelib.errors import SourceError
from pipelines.sources import compression
from tests.sources.helpers import read_file

RECORDS = b'{"text": "a"}\n{"text": "b"}\n'


def zst(data: bytes, **parameters: Any) -> bytes:
    return zstandard.ZstdCompressor(**parameters).compress(data)


def skippable(data: bytes) -> bytes:
    return b"\x53\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zst,
}
KINDS = pytest.mark.parametrize("kind", list(PACK))


def unpack(data: bytes, kind: str, size: int = 1000) -> bytes:
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(compression.decompress(chunks, kind, "x"))


@KINDS
@settings(deadline=None)
@given(
    parts=st.lists(st.binary(max_size=300) | st.integers(0, 70_000).map(bytes), min_size=1),
    size=st.integers(1, 50),
)
def test_streams_one_after_the_other(kind: str, parts: list[bytes], size: int):
    packed = b"".join(map(PACK[kind], parts))
    assert compression.detect(packed) == kind
    assert unpack(packed, kind, size) == b"".join(parts)


@KINDS
def test_records_may_cross_streams(tmp_path: Path, kind: str):
    for cut in range(len(RECORDS) + 1):
        data = PACK[kind](RECORDS[:cut]) + PACK[kind](b"") + PACK[kind](RECORDS[cut:])
        got = read_file(tmp_path / f"a.jsonl.{kind}", data)
        assert (got.texts, got.positions) == (["a", "b"], [0, 14])


@KINDS
def test_content_outranks_the_name(tmp_path: Path, kind: str):
    assert read_file(tmp_path / "a.jsonl", PACK[kind](RECORDS)).texts == ["a", "b"]
    assert read_file(tmp_path / f"a.jsonl.{kind}", RECORDS).texts == ["a", "b"]
    other = "gz" if kind == "xz" else "xz"
    assert read_file(tmp_path / f"b.jsonl.{other}", PACK[kind](RECORDS)).texts == ["a", "b"]


@KINDS
def test_every_truncation_is_an_error(kind: str):
    first, packed = PACK[kind](RECORDS), PACK[kind](RECORDS * 3)
    for cut in range(1, len(packed)):
        for data in (packed[:cut], first + packed[:cut]):
            with pytest.raises(SourceError, match=f"x: .*{kind} data"):
                unpack(data, kind)


@KINDS
def test_the_error_names_the_file(tmp_path: Path, kind: str):
    with pytest.raises(SourceError, match=rf"a\.jsonl\.{kind}: the {kind} data is cut short"):
        read_file(tmp_path / f"a.jsonl.{kind}", PACK[kind](RECORDS)[:-3])


@KINDS
def test_garbage_after_the_last_stream_is_an_error(kind: str):
    with pytest.raises(SourceError, match="x: "):
        unpack(PACK[kind](RECORDS) + b"garbage and more of it", kind)


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_padding_is_no_garbage(kind: str):
    packed = PACK[kind](RECORDS)
    for size in (1, 7, 10_000):
        assert unpack(packed + bytes(512), kind, size) == RECORDS
        assert unpack(packed + bytes(8) + packed, kind, size) == 2 * RECORDS


@KINDS
def test_flipped_bytes_are_errors(kind: str):
    # Where the format has a checksum; xz and gz also hold bytes that mean nothing.
    packed = zst(RECORDS, write_checksum=True) if kind == "zst" else PACK[kind](RECORDS)
    for at in range(len(packed) // 2, len(packed) - 1):
        damaged = bytearray(packed)
        damaged[at] ^= 0x10
        with pytest.raises(SourceError, match=f"x: .*{kind} data"):
            unpack(bytes(damaged), kind)


@pytest.mark.parametrize(
    "parameters",
    [
        {"write_content_size": False},
        {"write_checksum": True},
        {"level": 19, "write_checksum": True, "write_content_size": False},
    ],
)
@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 1 << 20, 3_000_000])
def test_headers_of_zstd_frames(parameters: dict[str, Any], size: int):
    noise = bytes((index * index >> 5) & 255 for index in range(min(size, 100_000)))
    data = (noise * 40)[:size]
    packed = zst(data, **parameters)
    assert unpack(packed + skippable(b"x" * 5000) + packed, "zst", 777) == data + data


def test_skippable_frames(tmp_path: Path):
    frames = zst(RECORDS[:5]) + skippable(b"index") + zst(b"") + zst(RECORDS[5:]) + skippable(b"")
    assert read_file(tmp_path / "a.jsonl.zst", frames).texts == ["a", "b"]
    first = skippable(b"index") + zst(RECORDS)
    assert read_file(tmp_path / "b.jsonl", first).texts == ["a", "b"]
    with pytest.raises(SourceError, match="cut short"):
        unpack(zst(RECORDS) + skippable(b"index")[:-1], "zst")


def test_frames_with_a_window_of_two_gigabytes():
    parameters = zstandard.ZstdCompressionParameters(window_log=31, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(RECORDS) + packer.flush()
    assert unpack(packed, "zst") == RECORDS


@KINDS
def test_output_comes_in_bounded_pieces(kind: str):
    size = 32 << 20
    packed = PACK[kind](bytes(size))

    def pieces() -> Iterator[bytes]:
        return compression.decompress(iter([packed]), kind, "x")

    tracemalloc.start()
    assert max(map(len, pieces())) <= compression.STEP
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 << 20
    assert sum(map(len, pieces())) == size
