"""JSON Lines: one record a line.

A block takes the fast path, pyarrow's parser with a schema of the used fields alone. That parser
is more lenient than JSON, so whole-block checks catch what it would let pass; a block with anything
irregular is halved until the irregular lines are alone, and those are read line by line by
Python's json. Both paths give the same records.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pipelines.sources import deepjson, kept, unicode
from pipelines.sources.assemble import Rows
from pipelines.sources.lines import CR, Block
from pipelines.sources.records import KEEP_TYPES, Reading, Records

SPACE = b" \t\r\n"
EXACT = 64 << 10
"""Bytes of an irregular block that is not halved any more."""

LENIENT = (rb"Inf[,\]}\s]", rb"-NaN[,\]}\s]")
"""Numbers that pyarrow takes and Python does not, also where they are words of a text.

Two patterns, since each is found by its literal beginning, at gigabytes a second.
"""


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines of a buffer.

    Attributes:
        data: the bytes; between lines there is one LF.
        begins, ends: int64 of shape (lines,): where they begin and end in ``data``.
        positions: int64 of shape (lines,): where they begin in the source.
    """

    data: bytes
    begins: np.ndarray
    ends: np.ndarray
    positions: np.ndarray

    def __len__(self) -> int:
        return len(self.begins)

    def line(self, index: int) -> bytes:
        return self.data[self.begins[index] : self.ends[index]]

    def slice(self, start: int, stop: int) -> Lines:
        first = self.begins[start]
        return Lines(
            self.data[first : self.ends[stop - 1]],
            self.begins[start:stop] - first,
            self.ends[start:stop] - first,
            self.positions[start:stop],
        )


def read(blocks: Iterator[Block], reading: Reading) -> Iterator[Records]:
    """The records of blocks of lines, one run a block."""
    for block in blocks:
        begins, ends = block.bounds()
        lines = Lines(block.data, begins, ends, block.positions(begins))
        yield decode(lines, reading, block.start, block.stop)


def decode(lines: Lines, reading: Reading, start: int, stop: int) -> Records:
    """The records of lines that cover the positions [start, stop)."""
    records = decode_fast(lines, reading, start, stop)
    if records is not None:
        return records
    if len(lines) == 1 or len(lines.data) <= EXACT:
        return decode_exact(lines, reading, start, stop)
    half = int(np.searchsorted(lines.begins, len(lines.data) // 2))
    half = min(max(half, 1), len(lines) - 1)
    middle = int(lines.positions[half])
    return Records.concatenate(
        [
            decode(lines.slice(0, half), reading, start, middle),
            decode(lines.slice(half, len(lines)), reading, middle, stop),
        ]
    )


def decode_exact(lines: Lines, reading: Reading, start: int, stop: int) -> Records:
    """The records of lines, one by one, as Python's json reads them."""
    rows = Rows(reading)
    for index in range(len(lines)):
        line = lines.line(index)
        if line.strip(SPACE):
            add_record(rows, int(lines.positions[index]), line)
    return rows.take(start, stop)


def add_record(rows: Rows, position: int, line: bytes) -> None:
    """Parse one record and add it to the rows, or to their rejects."""
    try:
        value = deepjson.loads(line.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        rows.reject(position, "not JSON", str(error), line)
        return
    if not isinstance(value, dict):
        what = kept.describe(value)
        rows.reject(position, "not a JSON object", f"the record is {what}", line)
        return

    def clean() -> Any:
        return deepjson.loads(unicode.replace_bytes(line))

    rows.add(position, value, kept.from_json, clean, lambda: line)


def decode_fast(lines: Lines, reading: Reading, start: int, stop: int) -> Records | None:
    """The records of lines by pyarrow's parser; None where it might differ from Python's."""
    data = lines.data
    if not unicode.is_utf8(data) or _may_be_lenient(data):
        return None
    full = _objects(lines)
    if full is None:
        return None
    if len(full) == 0:
        return Records.empty(reading, start, stop)
    columns = _parse(data, reading)
    if columns is None or len(columns[0]) != len(full):
        return None
    missing = np.logical_or.reduce([unicode.is_null(column) for column in columns])
    for index, (_, kind) in enumerate(reading.keep, 1):
        if kind.startswith("float"):
            columns[index], unsafe = _floats(columns[index], kind)
            missing |= unsafe
    positions = lines.positions[full]
    rows = Rows(reading)
    if missing.any():
        for row in np.flatnonzero(missing):
            add_record(rows, int(positions[row]), lines.line(int(full[row])))
        good = pa.array(~missing)
        columns = [column.filter(good) for column in columns]
        positions = positions[~missing]
    rejected = rows.take(start, stop)
    if len(rejected):
        return None
    names = [name for name, _ in reading.keep]
    keep = dict(zip(names, columns[1:], strict=True))
    return Records(columns[0], keep, positions, rejected.rejects, 0, start, stop)


def _may_be_lenient(data: bytes) -> bool:
    """Whether there may be an Inf or -NaN that is a value of its own, not a word of a text."""
    whole = unicode.one_value(data)
    # RE2 tells several times faster than Python's re that there is no such word at all.
    words = [word for word in LENIENT if pc.match_substring_regex(whole, word)[0].as_py()]
    for found in itertools.chain.from_iterable(re.finditer(word, data) for word in words):
        before = data[max(found.start() - 64, 0) : found.start()].rstrip(b" \t\r\n-")
        if not before or before.endswith((b":", b",", b"[")):
            return True
    return False


def _objects(lines: Lines) -> np.ndarray | None:
    """Indices of the lines that are not blank; None unless each begins with { and ends with }.

    A line that ends with } before one that begins with { can only be the end of an object, since
    no value of JSON has the one right after the other, and an LF inside a string is an error. So
    as many objects as lines means one object a line.
    """
    full = np.flatnonzero(lines.ends > lines.begins)
    begins, ends = lines.begins[full], lines.ends[full]
    octets = np.frombuffer(lines.data, np.uint8)
    ends = ends - ((ends - begins > 1) & (octets[ends - 1] == CR))
    regular = (octets[begins] == ord("{")) & (octets[ends - 1] == ord("}"))
    if regular.all():
        return full
    for odd in np.flatnonzero(~regular):
        line = lines.line(int(full[odd])).strip(SPACE)
        if not line:
            full[odd] = -1
        elif not (line.startswith(b"{") and line.endswith(b"}")):
            return None
    return full[full >= 0]


def _parse(data: bytes, reading: Reading) -> list[pa.Array] | None:
    """The used fields, text first, as parsed by pyarrow; None where it finds a fault."""
    fields = [(reading.text_field, pa.large_string())]
    for name, kind in reading.keep:
        # Numbers are parsed as float64 and then rounded, as Python does.
        parsed = pa.float64() if kind.startswith("float") else KEEP_TYPES[kind]
        fields.append((name, parsed))
    try:
        table = pa.json.read_json(
            pa.BufferReader(data),
            # The worker owns the cores. A block that holds it all makes one chunk.
            pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pa.json.ParseOptions(
                explicit_schema=pa.schema(fields),
                newlines_in_values=False,
                unexpected_field_behavior="ignore",
            ),
        )
    except pa.ArrowInvalid:
        return None
    columns = [table.column(name) for name, _ in fields]
    return [
        column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        for column in columns
    ]


def _floats(column: pa.Array, kind: str) -> tuple[pa.Array, np.ndarray]:
    """A float64 column as the declared type, nulls as 0, and where a value may be out of range."""
    values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        values = values.astype(kind)
    return pa.array(values, KEEP_TYPES[kind]), np.isinf(values)
