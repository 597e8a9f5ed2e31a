"""A whole .json file that is one array: its elements are the records.

The array is cut into elements as it streams, and these are read as lines of JSON are; so an
element that is no record is a reject, and an array that is cut short is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from cachelib.errors import SourceError
from pipelines.sources import jsonl
from pipelines.sources.assemble import Rows
from pipelines.sources.lines import BLOCK, RECORD_LIMIT, without_mark
from pipelines.sources.records import Reading, Records

TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},]|"', re.S)
"""A whole string, a bracket, a comma, or the quote of a string that has not ended.

Possessive, so that a string of millions of escapes takes no memory for ways back.
"""

SPACE = b" \t\r\n"


def read(
    chunks: Iterator[bytes], url: str, start: int, stop: int | None, reading: Reading
) -> Iterator[Records]:
    """The elements that begin in [start, stop), positions in bytes of the decompressed file.

    Raises:
        SourceError: the file is not one array, or is cut short.
    """
    batch: list[tuple[int, bytes]] = []
    size = 0
    covered = start
    end = 0
    for position, element, end in _elements(chunks, url):  # noqa: B007 (the last end is used)
        if stop is not None and position >= stop:
            break
        if position < start or not element:
            continue
        if size >= BLOCK:
            yield _decode(batch, reading, covered, position)
            batch, size, covered = [], 0, position
        batch.append((position, element))
        size += len(element)
    yield _decode(batch, reading, covered, max(end, covered) if stop is None else stop)


def _decode(batch: list[tuple[int, bytes]], reading: Reading, start: int, stop: int) -> Records:
    if any(b"\n" in element for _, element in batch):
        rows = Rows(reading)
        for position, element in batch:
            jsonl.add_record(rows, position, element)
        return rows.take(start, stop)
    lengths = np.array([len(element) for _, element in batch], np.int64)
    ends = np.cumsum(lengths + 1) - 1
    lines = jsonl.Lines(
        data=b"\n".join(element for _, element in batch),
        begins=ends - lengths,
        ends=ends,
        positions=np.array([position for position, _ in batch], np.int64),
    )
    return jsonl.decode(lines, reading, start, stop)


def _elements(chunks: Iterator[bytes], url: str) -> Iterator[tuple[int, bytes, int]]:
    """Position, bytes without space around them, and position of the end, of each element.

    The last one is empty, and its end is that of the file.
    """
    data, mark = without_mark(chunks, url)
    origin = mark  # position of data[0]
    at = 0  # what comes before has been looked at
    begin = -1  # of the element in data; -1 before the array
    depth = 0
    first = True
    while True:
        token = TOKEN.search(data, at)
        # A string may go on in the next chunk, and so may everything before it is known.
        if token is None or token[0] == b'"':
            at = token.start() if token else len(data)
            grown = _grow(data[max(begin, 0) :], chunks)
            if grown is None:
                raise SourceError(
                    f"{url}: the JSON array is cut short: it ends at byte {origin + len(data)} "
                    "without a closing bracket; fetch or write the file again"
                )
            shift = max(begin, 0)
            origin, at, begin = origin + shift, at - shift, min(begin, 0)
            data = grown
            if len(data) > RECORD_LIMIT:
                raise SourceError(
                    f"{url}: a record of more than {RECORD_LIMIT} bytes begins at byte {origin}; "
                    "check that the file has the format it is read as"
                )
            continue
        char, at = token[0], token.end()
        if begin >= 0 and char.startswith(b'"'):
            continue
        if begin < 0:
            if char != b"[" or data[: token.start()].strip(SPACE):
                raise SourceError(f"{url}: is read as JSON, but is not one array; name its format")
            begin, depth = at, 1
        elif char in (b"[", b"{"):
            depth += 1
        elif char in (b"]", b"}") and depth > 1:
            depth -= 1
        elif depth == 1 and char == b"}":
            raise SourceError(
                f"{url}: the JSON array has a bracket at byte {origin + token.start()} that closes "
                "nothing; mend the file"
            )
        elif depth == 1:
            raw = data[begin : token.start()]
            element = raw.strip(SPACE)
            if element:
                lead = len(raw) - len(raw.lstrip(SPACE))
                yield origin + begin + lead, element, origin + at
            elif char == b"," or not first:
                raise SourceError(
                    f"{url}: in the JSON array a value is missing before byte "
                    f"{origin + token.start()}; mend the file"
                )
            begin, first = at, False
            if char == b"]":
                break
    rest = data[at:].strip(SPACE)
    end = origin + len(data)
    for chunk in chunks:
        rest = rest or chunk.strip(SPACE)
        end += len(chunk)
    if rest:
        raise SourceError(f"{url}: has more than one JSON array; name its format")
    yield end, b"", end


def _grow(data: bytes, chunks: Iterator[bytes]) -> bytes | None:
    """The data and at least as much again, so that a huge element costs linear time."""
    pieces, wanted = [data], max(len(data), 1)
    while wanted > 0 and (chunk := next(chunks, b"")):
        pieces.append(chunk)
        wanted -= len(chunk)
    return b"".join(pieces) if len(pieces) > 1 else None
