"""Plain text: one document a line, or one a file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipelines.sources import unicode
from pipelines.sources.lines import CR, Block, drop_mark
from pipelines.sources.records import Reading, Records, Reject, excerpt


def read_lines(blocks: Iterator[Block], reading: Reading) -> Iterator[Records]:
    """One document a line, without its LF or CR LF; empty lines are none."""
    for block in blocks:
        begins, ends = block.bounds()
        octets = np.frombuffer(block.data, np.uint8)
        positions = block.positions(begins)
        closed = ends < len(octets)  # the last line of a file may end without LF
        carriage = closed & (ends > begins)
        carriage[carriage] = octets[ends[carriage] - 1] == CR
        line_ends = np.concatenate([ends[closed], ends[carriage] - 1])
        lengths = ends - begins - carriage
        full = lengths > 0
        texts = _strings(np.delete(octets, line_ends), lengths[full])
        yield _records(texts, positions[full], reading, block.start, block.stop)


def read_file(
    chunks: Iterator[bytes], url: str, start: int, stop: int | None, reading: Reading
) -> Iterator[Records]:
    """One document a file, at position 0 of the extent 1."""
    if start > 0 or stop == 0:
        yield Records.empty(reading, start, max(start, 1) if stop is None else stop)
        return
    data, _ = drop_mark(b"".join(chunks), url)
    texts = _strings(np.frombuffer(data, np.uint8), np.array([len(data)]))
    yield _records(texts, np.zeros(1, np.int64), reading, 0, 1 if stop is None else stop)


def _strings(octets: np.ndarray, lengths: np.ndarray) -> pa.LargeBinaryArray:
    """Values of the given lengths, back to back."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def _records(
    raw: pa.LargeBinaryArray, positions: np.ndarray, reading: Reading, start: int, stop: int
) -> Records:
    texts, invalid = unicode.decode_column(raw, reading.invalid_unicode)
    if reading.invalid_unicode == "replace" or not invalid.any():
        return Records(texts, {}, positions, (), int(invalid.sum()), start, stop)
    rejects = tuple(
        Reject(int(positions[row]), "invalid Unicode", "not UTF-8", excerpt(raw[int(row)].as_py()))
        for row in np.flatnonzero(invalid)
    )
    good = ~invalid
    return Records(texts.filter(pa.array(good)), {}, positions[good], rejects, 0, start, stop)
