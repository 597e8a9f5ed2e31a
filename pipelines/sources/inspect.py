"""What one file is: its size, content version, format, compression, extent and splits.

Content outranks the name: compression and binary formats are known by their first bytes, and only
what has no such mark goes by its suffix.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from typing import Any, BinaryIO

import pyarrow as pa

from cachelib.errors import SourceError
from pipelines.sources import arrow, compression, files, parquet
from pipelines.sources.lines import drop_mark
from pipelines.sources.records import Source

FORMAT_SUFFIXES: Mapping[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
}
COMPRESSION_SUFFIXES = re.compile(r"\.(gz|zst|bz2|xz)$")
HEAD = 64 << 10
"""Bytes of the beginning that are looked at."""

HASHED_WHOLE = 8 << 20
"""Bytes of the largest file whose version is a hash of all its bytes."""

SAMPLES, SAMPLE = 64, 64 << 10
"""Number and bytes of the blocks that the version of a larger file is a hash of."""

CHECKSUMS = ("md5Hash", "Content-MD5", "crc32c", "ETag")
"""What stores call the checksum of an object, best first."""

TIMES = ("mtime", "LastModified", "updated")
"""What stores call the time at which an object was written."""

STREAM_MAGIC = b"\xff\xff\xff\xff"  # the continuation marker before a message of Arrow IPC


def format_by_name(name: str) -> str | None:
    """The format that the suffix of a file name stands for, also before one of compression."""
    name = COMPRESSION_SUFFIXES.sub("", name.lower())
    return next((kind for end, kind in FORMAT_SUFFIXES.items() if name.endswith(end)), None)


def format_of(head: bytes, name: str) -> str | None:
    """The format of a file, by the beginning of its plain content, then by its name."""
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(arrow.FILE_MAGIC) or (
        head.startswith(STREAM_MAGIC) and head[6:8] == b"\0\0"
    ):
        return "arrow"
    named = format_by_name(name)
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")[:1]
    if named == "json":
        return "json" if first == b"[" else "jsonl"
    if named is not None:
        return named
    return {b"{": "jsonl", b"[": "json"}.get(first)


def inspect(url: str, root: int, name: str, path: str, format: str | None = None) -> Source:
    """What a file is; one that is given by a format is taken to have it.

    Raises:
        SourceError: it cannot be read, is UTF-16 or UTF-32, or its format is not known.
    """
    local = files.is_local(url)
    with files.open_stored(url, None) as file, files.naming(url):
        size, version, head = _local(file) if local else _remote(url, file)
        packed = compression.detect(head)
        plain = head
        if packed and format is None:
            if file.seekable():
                file.seek(len(head))
            rest = iter(lambda: file.read(HEAD), b"")
            plain = compression.plain_head(itertools.chain([head], rest), packed, HEAD)
    kind = format or format_of(plain, name)
    if kind is None:
        raise SourceError(
            f"{url}: neither its content nor its name tells its format; give it by "
            "format, for example format: text (--format text)"
        )
    if kind not in ("parquet", "arrow"):
        drop_mark(plain, url)
    extent, splits_at = _extent(url, size, kind, packed)
    return Source(root, name, path, size, version, kind, packed, extent, splits_at)


def version_of(url: str) -> str:
    """The content version of a local file as it is now."""
    with files.open_stored(url, None) as file, files.naming(url):
        return _local(file)[1]


def _local(file: BinaryIO) -> tuple[int, str, bytes]:
    """Size, version and first bytes of a local file."""
    size = file.seek(0, 2)
    file.seek(0)
    if size <= HASHED_WHOLE:
        data = _exactly(file, size)
        return size, f"{size}-{_digest([data])}", data[:HEAD]
    version = f"{size}-{_digest(_at(file, start) for start in sample_starts(size))}"
    file.seek(0)
    return size, version, _exactly(file, HEAD)


def _remote(url: str, file: BinaryIO) -> tuple[int, str, bytes]:
    """Size, version and first bytes of a remote file."""
    store, path = files.filesystem(url)
    info: dict[str, Any] = store.info(path)
    size = info.get("size")
    if size is None:
        raise SourceError(f"{url}: the server does not tell its size; download it first")
    told = told_version(info)
    head = _exactly(file, min(size, HEAD))
    if told is not None:
        return size, told, head
    if size <= HASHED_WHOLE or not file.seekable():
        rest = iter(lambda: file.read(files.CHUNK), b"")
        return size, f"{size}-{_digest(itertools.chain([head], rest))}", head
    samples = (store.cat_file(path, at, at + SAMPLE) for at in sample_starts(size))
    return size, f"{size}-{_digest(samples)}", head


def told_version(info: Mapping[str, Any]) -> str | None:
    """The content version that a store tells of an object, None where it tells no checksum."""
    checksum = next((f"{key}:{info[key]}" for key in CHECKSUMS if info.get(key)), None)
    return checksum and f"{info['size']}-{checksum.replace(chr(34), '')}"


def told_stamp(info: Mapping[str, Any]) -> str:
    """What a store tells of an object that changes with its content."""
    told = (str(info[key]) for key in ("size", *TIMES) if info.get(key))
    return told_version(info) or " ".join(told)


def sample_starts(size: int) -> list[int]:
    """Where the sampled blocks of a large file begin: evenly spaced, first and last included."""
    return [index * (size - SAMPLE) // (SAMPLES - 1) for index in range(SAMPLES)]


def _at(file: BinaryIO, start: int) -> bytes:
    file.seek(start)
    return _exactly(file, SAMPLE)


def _exactly(file: BinaryIO, size: int) -> bytes:
    """The next bytes; raw files may give fewer at a time."""
    data = file.read(size)
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def _digest(parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _extent(
    url: str, size: int, kind: str, packed: str | None
) -> tuple[int | None, tuple[int, ...]]:
    """The number of positions, and those at which the file may be cut besides."""
    if kind == "text":
        return 1, ()
    if packed:
        return None, ()
    if kind in ("jsonl", "text-lines"):
        return size, ()
    if kind == "parquet":
        with files.open_stored(url, size) as file:
            if file.seekable():
                return parquet.extent(file, url)
    if kind == "arrow" and files.is_local(url):
        with files.naming(url), pa.memory_map(files.local_path(url)) as file:
            return arrow.extent(file, url)
    return None, ()
