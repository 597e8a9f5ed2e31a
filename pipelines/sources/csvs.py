"""CSV and TSV: a header row, then one record a row; every cell is text."""

from __future__ import annotations

import csv
import functools
import itertools
import re
import sys
from collections.abc import Iterator

from cachelib.errors import SourceError
from pipelines.sources import kept, unicode
from pipelines.sources.assemble import Rows, check_names
from pipelines.sources.lines import RECORD_LIMIT, Block
from pipelines.sources.records import Reading, Records

DELIMITERS = {"csv": ",", "tsv": "\t"}
LINE = re.compile(r"[^\n]*+\n|[^\n]++")


def read(
    blocks: Iterator[Block],
    format: str,
    url: str,
    start: int,
    stop: int | None,
    reading: Reading,
) -> Iterator[Records]:
    """The rows [start, stop), positions counted from the row after the header.

    A row ends with LF or CR LF outside quotes; empty lines are no rows. A row with another number
    of cells than the header, or with text after a closing quote, is a reject; a quote inside a cell
    that does not begin with one is text.

    Raises:
        SourceError: no header, a column is missing, or a quote is never closed.
    """
    if csv.field_size_limit() < RECORD_LIMIT:
        csv.field_size_limit(min(RECORD_LIMIT, sys.maxsize))
    lines = _Lines(blocks)
    table = csv.reader(lines.each, delimiter=DELIMITERS[format], strict=True)
    header = _header(table, url)
    check_names(header, reading, url)
    used = [(name, header.index(name)) for name in _used(reading)]
    rows = Rows(reading)
    covered, position = start, 0
    while stop is None or position < stop:
        lines.record_begins(table.line_num)
        fault = ""
        try:
            cells = next(table, None)
        except csv.Error as error:
            if lines.ended:
                raise SourceError(
                    f"{url}: row {position} has a quote that is never closed: {error}; "
                    "everything after it would be lost, so mend the file"
                ) from error
            cells, fault = [], str(error)
        if cells is None:
            break
        if not cells and not fault:
            continue
        if position >= start:
            record = functools.partial(lines.record, table.line_num)
            if fault:
                rows.reject(position, "not CSV", fault, record())
            elif len(cells) != len(header):
                found = f"{len(cells)} cells where the header has {len(header)}"
                rows.reject(position, "wrong number of cells", found, record())
            else:
                fields = {name: cells[column] for name, column in used}
                rows.add(
                    position, fields, kept.from_cell, functools.partial(_clean, fields), record
                )
        position += 1
        if lines.blocks >= 1 and position > start:
            yield rows.take(covered, position)
            covered, lines.blocks = position, 0
    yield rows.take(covered, max(position, covered) if stop is None else stop)


class _Lines:
    """The lines of blocks as strings, handed to the parser without a step of Python a line.

    Attributes:
        each: the lines, with their LF; only LF ends a line.
        blocks: number of blocks begun since it was last set to 0, the first one aside.
        ended: whether there are no more lines.
    """

    def __init__(self, blocks: Iterator[Block]) -> None:
        self.each = itertools.chain.from_iterable(self._lines(blocks))
        self.blocks = -1
        self.ended = False
        self._held: list[str] = []  # the lines of the block, and before it those of the record
        self._first = 0  # number of lines before the held ones
        self._begins = 0  # number of lines before the record

    def _lines(self, blocks: Iterator[Block]) -> Iterator[list[str]]:
        for block in blocks:
            lines = LINE.findall(block.data.decode("utf-8", "surrogateescape"))
            self._held = self._held[self._begins - self._first :] + lines
            self._first = self._begins
            self.blocks += 1
            yield lines
        self.ended = True

    def record_begins(self, number: int) -> None:
        """A record begins after that many lines."""
        self._begins = number

    def record(self, number: int) -> str:
        """The lines from where the record begins to the end of line ``number``."""
        return "".join(self._held[self._begins - self._first : number - self._first])


def _header(table: Iterator[list[str]], url: str) -> list[str]:
    try:
        header = next((cells for cells in table if cells), None)
    except csv.Error as error:
        raise SourceError(f"{url}: its header row is not CSV: {error}; mend it") from error
    if header is None:
        raise SourceError(f"{url}: has no header row; the first row must name the columns")
    return header


def _used(reading: Reading) -> list[str]:
    return [reading.text_field, *(name for name, _ in reading.keep)]


def _clean(fields: dict[str, str]) -> dict[str, str]:
    """The cells with U+FFFD for what is not UTF-8."""
    return {
        name: unicode.replace_bytes(cell.encode("utf-8", "surrogateescape"))
        for name, cell in fields.items()
    }
