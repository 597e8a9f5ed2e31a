"""Compressed bytes to plain bytes, streaming, in bounded memory, to the true end or an error.

A file may hold several gzip members, bz2 or xz streams, or zstd frames (also empty and skippable
ones); their contents are one stream. Zeros after the last gzip member or xz stream are padding.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from cachelib.errors import SourceError

STEP = 1 << 20
"""Bytes of output made at a time, at most."""

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte of 0x50 to 0x5f
ZSTD_BLOCK = 128 << 10  # the most that one block can hold, RFC 8878 section 3.1.1.2
ZSTD_WINDOW = 1 << 31  # what `zstd --long=31` writes


def detect(head: bytes) -> str | None:
    """The compression of a file, by its first bytes."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gz"
    if head.startswith(ZSTD_MAGIC) or _is_skippable(head[:4]):
        return "zst"
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    return None


def decompress(chunks: Iterator[bytes], compression: str, url: str) -> Iterator[bytes]:
    """The plain bytes, in pieces of at most `STEP`.

    Raises:
        SourceError: the data is damaged, cut short, or followed by something else.
    """
    counted = _Counted(chunks)
    plain = (
        _zstd_frames(counted)
        if compression == "zst"
        else _streams(counted, _DECODERS[compression], padded=compression != "bz2")
    )
    try:
        yield from plain
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, ValueError) as error:
        raise _damaged(url, compression, counted.bytes, str(error)) from error
    except OSError as error:
        # bz2 says "Invalid data stream" by an OSError without a number; others are of the file.
        if error.errno is not None:
            raise
        raise _damaged(url, compression, counted.bytes, str(error)) from error
    except EOFError as error:
        raise SourceError(
            f"{url}: the {compression} data is cut short: it ends inside a stream after "
            f"{counted.bytes} compressed bytes; fetch or write the file again"
        ) from error


def _damaged(url: str, compression: str, position: int, what: str) -> SourceError:
    return SourceError(
        f"{url}: damaged {compression} data before compressed byte {position}: {what}; "
        "fetch or write the file again"
    )


class _Counted:
    """An iterator that knows how many bytes have gone through it."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks = chunks
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = next(self.chunks)
        self.bytes += len(chunk)
        return chunk


_DECODERS: dict[str, Callable[[], Any]] = {
    "gz": lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS),
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ),
}


def _streams(chunks: Iterator[bytes], new: Callable[[], Any], padded: bool) -> Iterator[bytes]:
    """The contents of concatenated streams of the decoders of the standard library."""
    decoder = None
    first = True
    for chunk in chunks:
        data = chunk
        while True:
            if decoder is None:
                if padded and not first:
                    data = data.lstrip(b"\0")
                if not data:
                    break
                decoder, first = new(), False
            plain = decoder.decompress(data, STEP)
            if plain:
                yield plain
            if decoder.eof:
                data, decoder = decoder.unused_data, None
            elif len(plain) < STEP:
                break
            else:
                # zlib hands back what it has not looked at; bz2 and lzma keep it.
                data = getattr(decoder, "unconsumed_tail", b"")
    if decoder is not None:
        raise EOFError


def _zstd_frames(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The contents of zstd frames.

    The frames are walked here, block by block, because the library bounds neither its output for
    a given input nor says whether its input ended inside a frame.
    """
    context = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    take = _taker(chunks)
    while magic := take(4, at_end=b""):
        if _is_skippable(magic):
            left = int.from_bytes(take(4), "little")
            while left:
                left -= len(take(min(left, STEP)))
            continue
        if magic != ZSTD_MAGIC:
            raise ValueError(f"no zstd frame begins with {magic!r}")
        descriptor = take(1)
        flags = descriptor[0]
        single_segment = bool(flags & 0x20)
        content_size = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
        header = take((not single_segment) + (0, 1, 2, 4)[flags & 3] + content_size)
        frame = context.decompressobj()
        pieces = [magic, descriptor, header]
        last = False
        while not last:
            for _ in range(STEP // ZSTD_BLOCK):
                block = take(3)
                word = int.from_bytes(block, "little")
                last, kind, size = bool(word & 1), (word >> 1) & 3, word >> 3
                pieces += [block, take(1 if kind == 1 else size)]
                if last:
                    break
            if last and flags & 4:
                pieces.append(take(4))
            if plain := frame.decompress(b"".join(pieces)):
                yield plain
            pieces = []


def _is_skippable(magic: bytes) -> bool:
    return magic[1:] == ZSTD_SKIPPABLE and 0x50 <= magic[0] <= 0x5F


def _taker(chunks: Iterator[bytes]) -> Callable[..., bytes]:
    """A function that takes the next n bytes; EOFError where fewer are left."""
    data = b""
    position = 0

    def take(count: int, at_end: bytes | None = None) -> bytes:
        nonlocal data, position
        pieces = [data[position : position + count]]
        have = len(pieces[0])
        position += have
        while have < count:
            data, position = next(chunks, b""), 0
            if not data:
                if have == 0 and at_end is not None:
                    return at_end
                raise EOFError
            position = min(count - have, len(data))
            pieces.append(data[:position])
            have += position
        return b"".join(pieces)

    return take


def plain_head(chunks: Iterator[bytes], compression: str, length: int) -> bytes:
    """The first bytes of the content, as far as they are not damaged."""
    plain = b""
    try:
        for piece in decompress(chunks, compression, ""):
            plain += piece
            if len(plain) >= length:
                break
    except SourceError:
        pass  # reading the file says what is damaged
    return plain[:length]
