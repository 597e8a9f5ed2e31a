"""Chunks: parts of the arrays of shards on this machine, read from their files and decoded here.

TensorStore reads the same bytes, but spends longer on a chunk than its decoding takes, and random
reads are made of chunks (bench/README.md). Arrays are laid out as `shard.array_metadata` says:
files of inner chunks, each compressed by zstd and followed by a crc32c, and at the end of a file an
index of where they lie, with a crc32c of its own.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import zstandard

from cachelib.errors import CorruptData, StorageError
from cachelib.format.schema import CHUNKS_PER_OBJECT
from cachelib.format.storage import is_no_file
from cachelib.latest import Latest

AVAILABLE = (
    sys.byteorder == "little"
    and hasattr(os, "pread")
    and hasattr(zstandard.ZstdDecompressor, "multi_decompress_to_buffer")
    and google_crc32c.implementation == "c"
)
"""Whether this machine can use chunks as they are stored, and has compiled code for it."""

OPEN_FILES = 128
"""Files that one process keeps open for reading; systems let it have 256 or 1,024 in all."""

INDICES = 4096
"""Files of which one process keeps the index, 16 KiB each."""

KEPT_BYTES = 64 << 20
"""Decoded chunks that one process keeps, in bytes."""

THREADS = min(4, os.cpu_count() or 1)
"""Threads that decode the chunks of one read, and reads under way at once.

A read hands the interpreter over at each call of the system: more of them would mostly wait for it.
"""

CHUNKS_A_THREAD = 16
"""Chunks for which a further thread is worth asking."""

_Key = tuple[str, int]  # path of a file and number of a chunk in it

_CHECK = 4  # bytes of a crc32c
_ABSENT = 2**64 - 1


@dataclass(frozen=True)
class LocalArray:
    """An array of a shard on this machine, chunked along its first dimension only.

    Attributes:
        folder: of the array.
        length: first dimension.
        chunk: values of an inner chunk.
        value_bytes: bytes of what one index of the first dimension holds.
        dimensions: number of dimensions.
        paths: the file of each outer chunk, where these are kept in another way than in the folder.
        tail: bytes behind the object in each file.
    """

    folder: str
    length: int
    chunk: int
    value_bytes: int
    dimensions: int
    paths: Callable[[int], str] | None = None
    tail: int = 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk; the last one of an array is as long as all."""
        return self.chunk * self.value_bytes

    def index(self, number: int) -> _Index:
        """The index of the file of an outer chunk."""
        path = self.paths(number) if self.paths else f"{self.folder}/{self.object_key(number)}"
        return _index(path, self.chunks_in_object, self.tail)

    @property
    def chunks_in_object(self) -> int:
        """Inner chunks that an outer chunk has places for."""
        return min(CHUNKS_PER_OBJECT, -(-self.length // self.chunk))

    def object_key(self, number: int) -> str:
        """The key of an outer chunk, below that of the array."""
        return f"c/{number}{'/0' * (self.dimensions - 1)}"

    def object_bytes(self, number: int) -> int:
        """Bytes of the values of an outer chunk."""
        first = number * self.chunk * CHUNKS_PER_OBJECT
        return min(self.chunk * CHUNKS_PER_OBJECT, self.length - first) * self.value_bytes


def local_array(folder: str, metadata: Mapping[str, Any]) -> LocalArray:
    """The array in a folder, given its metadata as `shard.array_metadata` makes it."""
    chunk = metadata["codecs"][0]["configuration"]["chunk_shape"][0]
    length, *trailing = metadata["shape"]
    value_bytes = math.prod(trailing) * np.dtype(metadata["data_type"]).itemsize
    return LocalArray(folder, length, chunk, value_bytes, 1 + len(trailing))


class Part(NamedTuple):
    """Positions [start, stop) of an array, at least one."""

    array: LocalArray
    start: int
    stop: int


class _Piece(NamedTuple):
    """What of a part lies in one file: inner chunks [low, high).

    Attributes:
        part: number of the part.
        table: the index of the file.
        before, beyond: bytes of the first and of the last chunk that lie outside the part.
    """

    part: int
    table: _Index
    low: int
    high: int
    before: int
    beyond: int

    def keys(self) -> list[_Key]:
        path = self.table.path
        return [(path, chunk) for chunk in range(self.low, self.high)]


class _Index(NamedTuple):
    """Where the inner chunks of a file lie: offset and size of each, in turn."""

    path: str
    places: memoryview

    def bounds(self, low: int, high: int) -> list[tuple[int, int]]:
        """Offset and size of inner chunks [low, high), their crc32c included."""
        found = self.places[2 * low : 2 * high].tolist()
        starts, sizes = found[0::2], found[1::2]
        if _ABSENT in starts:
            raise CorruptData(f"chunk {low + starts.index(_ABSENT)} of {self.path} is missing")
        return list(zip(starts, sizes, strict=True))


def _index(path: str, chunks: int, tail: int) -> _Index:
    """The index of a file of so many inner chunks, which ends with other bytes, `tail` of them."""

    def read() -> _Index:
        file = _file(path)
        return _read_index(path, chunks, file.size - tail, file.read)

    return _indices().get(path, read)


def _read_index(path: str, chunks: int, size: int, read: Callable[[int, int], bytes]) -> _Index:
    """The index of an object of so many inner chunks and bytes, given what reads (offset, size)."""
    length = 16 * chunks + _CHECK
    if size < length:
        raise CorruptData(f"{path} has {size} bytes, fewer than the {length} of its index")
    data = _checked(read(size - length, length), f"the index of {path}")
    _check_places(path, np.frombuffer(data, "<u8"), size - length)
    return _Index(path, memoryview(data).cast("Q"))


def check_object(data: bytes, array: LocalArray, number: int, what: str) -> list[bytes]:
    """The compressed inner chunks of an outer chunk of an array, given its bytes, all checked.

    Raises:
        CorruptData: it is damaged, or lacks a chunk.
    """
    index = _read_index(
        what, array.chunks_in_object, len(data), lambda at, size: data[at : at + size]
    )
    count = -(-array.object_bytes(number) // array.chunk_bytes)
    return [
        _checked(data[start : start + size], f"chunk {chunk} of {what}")
        for chunk, (start, size) in enumerate(index.bounds(0, count))
    ]


def decode_object(data: bytes, array: LocalArray, number: int, what: str) -> bytes:
    """The values of an outer chunk of an array, given its bytes.

    Raises:
        CorruptData: as of `check_object`.
    """
    frames = check_object(data, array, number, what)
    try:
        decoded = _decoded_here(frames, array.chunk_bytes)
    except zstandard.ZstdError as error:
        raise CorruptData(f"{what}: {error}") from error
    return b"".join(decoded)[: array.object_bytes(number)]


def _check_places(path: str, places: np.ndarray, end: int) -> None:
    """Check that inner chunks lie apart from each other, between the beginning of a file and `end`.

    Args:
        places: offset and size of each inner chunk in turn, uint64 (2 * chunks,).

    Raises:
        CorruptData: they do not; names one that does not.
    """
    numbers = np.flatnonzero(places[0::2] != _ABSENT)
    starts, sizes = places[0::2][numbers], places[1::2][numbers]
    # In this order no difference is below 0, which uint64 has not.
    wrong = (sizes <= _CHECK) | (sizes > end) | (starts > end - np.minimum(sizes, end))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise CorruptData(
            f"the index of {path} has chunk {numbers[at]} in {sizes[at]} bytes from {starts[at]} "
            f"on, expected more than {_CHECK} bytes among the first {end}"
        )
    order = np.argsort(starts, kind="stable")
    shared = (starts + sizes)[order[:-1]] > starts[order[1:]]
    if shared.any():
        at = int(np.argmax(shared))
        one, other = numbers[order[at : at + 2]]
        raise CorruptData(f"the index of {path} has chunks {one} and {other} in the same bytes")


class _File:
    """An open file."""

    __slots__ = ("_descriptor", "_path", "size")

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        status = os.fstat(self._descriptor)
        if stat.S_ISDIR(status.st_mode):  # which opens like a file
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.size = status.st_size

    def __del__(self) -> None:
        # Not before: another thread may still read from a file that is no longer kept.
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:  # one call gives at most 2 GiB
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                raise CorruptData(f"{self._path} ends inside a chunk")
            data += more
        return data

    def announce(self, bounds: list[tuple[int, int]]) -> None:
        """Let the system begin to fetch chunks, so that those of a read do not wait in turn."""
        if hasattr(os, "posix_fadvise"):
            first, end = _span(bounds)
            os.posix_fadvise(self._descriptor, first, end - first, os.POSIX_FADV_WILLNEED)

    def frames(self, low: int, bounds: list[tuple[int, int]]) -> list[bytes]:
        """The compressed bytes of inner chunks from `low` on, given where they are."""
        first, end = _span(bounds)
        if end - first <= 2 * sum(size for _, size in bounds):  # TensorStore leaves no gaps
            data = self.read(first, end - first)
            found = [data[start - first : start - first + size] for start, size in bounds]
        else:
            found = [self.read(start, size) for start, size in bounds]
        return [
            _checked(frame, f"chunk {number} of {self._path}")
            for number, frame in enumerate(found, low)
        ]


def _file(path: str) -> _File:
    return _files().get(path, lambda: _File(path))


def _span(bounds: list[tuple[int, int]]) -> tuple[int, int]:
    """Where the first of some chunks begins in a file and the last ends."""
    return min(bounds)[0], max(start + size for start, size in bounds)


def read(parts: Sequence[Part], describe: Callable[[int], str], *, keep: bool) -> bytearray:
    """The bytes of the values of parts, back to back, little-endian.

    Args:
        parts: of arrays that have the same chunks.
        describe: what to call a part in messages, given its number.
        keep: hold the chunks for reads to come, whatever must go for them; otherwise only if
            there is room, so that what is not soon read again drives out nothing.

    Raises:
        CorruptData: a file or a chunk is missing or damaged.
        StorageError: a file could not be read.
    """
    with _turns():
        try:
            return _read(parts, describe, keep)
        except CorruptData:
            # Whoever mends a file puts another one in its place.
            _files().clear()
            _indices().clear()
            raise


def _read(parts: Sequence[Part], describe: Callable[[int], str], keep: bool) -> bytearray:
    number = 0
    pieces: list[_Piece] = []
    frames: dict[_Key, bytes] = {}
    owners: dict[_Key, int] = {}  # the part that each frame is read for
    reads: list[tuple[str, int, list[tuple[int, int]]]] = []
    try:
        for number, part in enumerate(parts):
            pieces += _pieces(number, part)
        keys = [piece.keys() for piece in pieces]
        held = _kept().find(chain.from_iterable(keys))
        for piece, wanted in zip(pieces, keys, strict=True):
            lacking = [key for key in wanted if key not in held and key not in owners]
            if lacking:
                number = piece.part
                low, high = lacking[0][1], lacking[-1][1] + 1
                path = piece.table.path
                reads.append((path, low, piece.table.bounds(low, high)))
                owners |= {(path, chunk): number for chunk in range(low, high)}
        for path, low, bounds in reads if len(reads) > 1 else ():
            number = owners[path, low]
            _file(path).announce(bounds)
        for path, low, bounds in reads:
            number = owners[path, low]
            for chunk, frame in enumerate(_file(path).frames(low, bounds), low):
                frames[path, chunk] = frame
    except CorruptData as error:
        raise CorruptData(f"{describe(number)}: {error}") from error
    except OSError as error:
        if is_no_file(error):
            what = f"{error.filename} is missing ({error.strerror})"
            raise CorruptData(f"{describe(number)}: {what}") from error
        raise StorageError(f"{describe(number)}: {error}") from error
    fresh: dict[_Key, Any] = {}
    if frames:
        size = parts[0].array.chunk_bytes
        try:
            fresh = dict(zip(frames, _decoded(list(frames.values()), size), strict=True))
        except zstandard.ZstdError as error:
            key = next(key for key, frame in frames.items() if not _decodes(frame, size))
            what = f"chunk {key[1]} of {key[0]}"
            raise CorruptData(f"{describe(owners[key])}: {what}: {error}") from error
        if keep or _kept().room >= len(fresh) * size:
            _kept().keep((key, bytes(chunk)) for key, chunk in fresh.items())
    return _joined(pieces, keys, {**held, **fresh})


def _joined(
    pieces: Sequence[_Piece], keys: Sequence[list[_Key]], chunks: Mapping[_Key, Any]
) -> bytearray:
    """The bytes of pieces, back to back, given the keys of each and all chunks."""
    values: list[Any] = []
    for piece, wanted in zip(pieces, keys, strict=True):
        first = len(values)
        values += map(chunks.__getitem__, wanted)
        if piece.beyond:
            values[-1] = memoryview(values[-1])[: -piece.beyond]
        if piece.before:
            values[first] = memoryview(values[first])[piece.before :]
    return bytearray().join(values)


def _pieces(number: int, part: Part) -> Iterator[_Piece]:
    array, start, stop = part
    first, last = start // array.chunk, (stop - 1) // array.chunk
    before = (start - first * array.chunk) * array.value_bytes
    beyond = ((last + 1) * array.chunk - stop) * array.value_bytes
    first_file, last_file = first // CHUNKS_PER_OBJECT, last // CHUNKS_PER_OBJECT
    for outer in range(first_file, last_file + 1):
        base = outer * CHUNKS_PER_OBJECT
        yield _Piece(
            number,
            array.index(outer),
            max(first - base, 0),
            min(last + 1 - base, CHUNKS_PER_OBJECT),
            before if outer == first_file else 0,
            beyond if outer == last_file else 0,
        )


def _decoded(frames: list[bytes], size: int) -> list[Any]:
    """The chunks of `size` bytes that frames hold, as buffers.

    Raises:
        ZstdError: a frame is damaged, or holds another number of bytes.
    """
    count = max(1, min(THREADS, len(frames) // CHUNKS_A_THREAD))
    bounds = [len(frames) * i // count for i in range(count + 1)]
    shares = [frames[low:high] for low, high in pairwise(bounds)]
    try:
        others = [_threads().submit(_decoded_here, share, size) for share in shares[1:]]
    except RuntimeError:  # Python is ending and starts nothing more
        return list(_decoded_here(frames, size))
    mine = _decoded_here(shares[0], size)
    return [*mine, *chain.from_iterable(other.result() for other in others)]


def _decoded_here(frames: list[Any], size: int) -> Any:
    sizes = np.full(len(frames), size, "<u8").tobytes()
    return zstandard.ZstdDecompressor().multi_decompress_to_buffer(frames, decompressed_sizes=sizes)


def _decodes(frame: bytes, size: int) -> bool:
    try:
        _decoded_here([frame], size)
    except zstandard.ZstdError:
        return False
    return True


def _checked(data: bytes, what: str) -> bytes:
    """Bytes without the crc32c that ends them.

    Raises:
        CorruptData: it is not theirs.
    """
    body = data[:-_CHECK]
    if google_crc32c.value(body) != int.from_bytes(data[-_CHECK:], "little"):
        raise CorruptData(f"{what} does not fit its crc32c")
    return body


@functools.cache
def _files() -> Latest[str, _File]:
    """The files used last by all readers of this process."""
    return Latest(OPEN_FILES)


@functools.cache
def _indices() -> Latest[str, _Index]:
    """The indices used last by all readers of this process."""
    return Latest(INDICES)


@functools.cache
def _kept() -> Latest[_Key, bytes]:
    """The chunks used last by all readers of this process."""
    return Latest(KEPT_BYTES, len)


@functools.cache
def _turns() -> threading.BoundedSemaphore:
    """One for each read that may be under way."""
    return threading.BoundedSemaphore(THREADS)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads that decode for all readers of this process, besides those that read."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="forebay-decode")
