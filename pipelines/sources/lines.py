"""Byte ranges to blocks of whole lines: a line belongs to the range in which it begins.

A line ends with LF and begins at 0 or after an LF, whatever else it holds; so any cut of a file
into ranges gives every line once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cachelib.errors import SourceError
from pipelines.sources import unicode

BLOCK = 1 << 20
"""Bytes of the shortest block but for the last; a block ends with the last line of a chunk."""

RECORD_LIMIT = 1 << 30
"""Bytes of the longest record; what is longer has no line ends, and is no such file."""

LF, CR = 10, 13


@dataclass(frozen=True, eq=False)
class Block:
    """Whole lines, back to back.

    Attributes:
        data: the bytes, without the byte-order mark of a file; the last line of a file may lack
            its LF.
        origin: position of ``data[0]``.
        start, stop: positions covered: every line of the range that begins in [start, stop) is
            in ``data``, and no other.
        mark: length of the byte-order mark that was dropped; the first line begins before it.
    """

    data: bytes
    origin: int
    start: int
    stop: int
    mark: int = 0

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Where lines begin and end in ``data``, each int64 (lines,); the end is without LF."""
        ends = np.flatnonzero(np.frombuffer(self.data, np.uint8) == LF)
        if self.data and self.data[-1] != LF:
            ends = np.append(ends, len(self.data))
        begins = np.empty_like(ends)
        if len(begins):
            begins[0] = 0
            begins[1:] = ends[:-1] + 1
        return begins, ends

    def positions(self, begins: np.ndarray) -> np.ndarray:
        """Positions in the source of the lines that begin there in ``data``, int64 (lines,)."""
        positions = begins + self.origin
        if self.mark and len(begins) and begins[0] == 0:
            positions[0] -= self.mark
        return positions


def blocks(
    chunks_from: Callable[[int, int | None], Iterator[bytes]],
    start: int,
    stop: int | None,
    url: str,
    size: int = BLOCK,
) -> Iterator[Block]:
    """The lines that begin in [start, stop), as contiguous blocks; at least one block.

    Args:
        chunks_from: (position, until) -> the bytes of the source from there to its end.
        start, stop: the range in bytes; ``stop`` None is the end of the source.
        url: names the source in errors.
        size: bytes of the shortest block but for the last.

    Raises:
        SourceError: the source is UTF-16 or UTF-32, or has a line over `RECORD_LIMIT`.
    """
    if stop is not None and stop <= start:
        yield Block(b"", start, start, start)
        return
    origin = max(start - 1, 0)
    chunks = chunks_from(origin, stop)
    mark = 0
    if start == 0:
        head, mark = without_mark(chunks, url)
        origin = mark
    else:
        head, origin = _to_first_line(chunks, origin)
    if stop is not None and origin - mark >= stop:
        yield Block(b"", start, start, stop)
        return
    covered = start
    end = origin  # position after what has been read
    lines: list[memoryview] = []  # whole lines from `origin` on
    tail: list[memoryview] = []  # the beginning of the line after them
    tail_size = 0
    for chunk in itertools.chain([head], chunks):
        view = memoryview(chunk)
        whole = _whole(chunk, end, stop)
        end += len(chunk)
        if whole:
            lines += [*tail, view[:whole]]
            tail, tail_size = [view[whole:]], len(chunk) - whole
        else:
            tail.append(view)
            tail_size += len(chunk)
        after = end - tail_size
        if stop is not None and lines and after >= stop:
            yield Block(b"".join(lines), origin, covered, stop, mark)
            return
        if lines and after - origin >= size:
            yield Block(b"".join(lines), origin, covered, after, mark)
            covered = origin = after
            lines, mark = [], 0
        if tail_size > RECORD_LIMIT:
            raise SourceError(
                f"{url}: a line of more than {RECORD_LIMIT} bytes begins at byte {after}; "
                "check that the file has the format it is read as"
            )
    yield Block(
        b"".join(lines + tail), origin, covered, max(end, start) if stop is None else stop, mark
    )


def _whole(chunk: bytes, position: int, stop: int | None) -> int:
    """Length of the part of a chunk that ends with the last LF of the range, or 0.

    The last LF of a range is the first one at or after its last byte, since the line after that
    begins at ``stop`` or later.
    """
    if stop is not None and position + len(chunk) >= stop:
        last = chunk.find(b"\n", max(stop - 1 - position, 0))
        if last >= 0:
            return last + 1
    return chunk.rfind(b"\n") + 1


def _to_first_line(chunks: Iterator[bytes], position: int) -> tuple[bytes, int]:
    """What follows the first LF, and its position."""
    for chunk in chunks:
        found = chunk.find(b"\n")
        if found >= 0:
            return chunk[found + 1 :], position + found + 1
        position += len(chunk)
    return b"", position


def without_mark(chunks: Iterator[bytes], url: str) -> tuple[bytes, int]:
    """The beginning of a file without the byte-order mark, and the length of that."""
    head = b""
    while len(head) < 4 and (chunk := next(chunks, b"")):
        head += chunk
    return drop_mark(head, url)


def drop_mark(head: bytes, url: str) -> tuple[bytes, int]:
    """Bytes from the beginning of a file without the UTF-8 mark, and the length of that.

    Raises:
        SourceError: the mark is that of another encoding.
    """
    if encoding := unicode.other_encoding(head):
        raise SourceError(f"{url}: is {encoding}, not UTF-8; convert it, for example with iconv")
    if head.startswith(unicode.UTF8_MARK):
        return head[len(unicode.UTF8_MARK) :], len(unicode.UTF8_MARK)
    return head, 0
