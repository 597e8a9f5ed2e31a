"""CSV and TSV: a header row, then one record a row; every cell is text."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator

from cachelib.errors import SourceError
from pipelines.sources import kept, unicode
from pipelines.sources.assemble import Rows, check_names
from pipelines.sources.lines import BLOCK, RECORD_LIMIT, Block
from pipelines.sources.records import Reading, Records

DELIMITERS = {"csv": ",", "tsv": "\t"}


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
    of cells than the header, or with a quote in a wrong place, is a reject.

    Raises:
        SourceError: no header, a column is missing, or a quote is never closed.
    """
    if csv.field_size_limit() < RECORD_LIMIT:
        csv.field_size_limit(min(RECORD_LIMIT, sys.maxsize))
    lines = _Lines(blocks)
    table = csv.reader(lines, delimiter=DELIMITERS[format], strict=True)
    header = _header(table, url)
    check_names(header, reading, url)
    used = [(name, header.index(name)) for name in _used(reading)]
    rows = Rows(reading)
    covered, position = start, 0
    while stop is None or position < stop:
        lines.taken.clear()
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
            if fault:
                rows.reject(position, "not CSV", fault, lines.record())
            elif len(cells) != len(header):
                found = f"{len(cells)} cells where the header has {len(header)}"
                rows.reject(position, "wrong number of cells", found, lines.record())
            else:
                fields = {name: cells[column] for name, column in used}
                rows.add(
                    position,
                    fields,
                    kept.from_cell,
                    lambda fields=fields: {  # type: ignore[misc]
                        name: _replace(cell) for name, cell in fields.items()
                    },
                    lines.record,
                )
        position += 1
        lines.read += sum(map(len, lines.taken))
        if lines.read >= BLOCK and position > start:
            yield rows.take(covered, position)
            covered, lines.read = position, 0
    yield rows.take(covered, max(position, covered) if stop is None else stop)


class _Lines:
    """The lines of blocks as strings; keeps those of the record being read."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self.lines = _strings(blocks)
        self.taken: list[str] = []
        self.read = 0
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = next(self.lines)
        except StopIteration:
            self.ended = True
            raise
        self.taken.append(line)
        return line

    def record(self) -> str:
        return "".join(self.taken)


def _strings(blocks: Iterator[Block]) -> Iterator[str]:
    for block in blocks:
        yield from _split(block.data.decode("utf-8", "surrogateescape"))


def _split(text: str) -> Iterator[str]:
    """Lines with their LF; only LF ends a line."""
    at = 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        yield text[at:end]
        at = end


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


def _replace(cell: str) -> str:
    return unicode.replace_bytes(cell.encode("utf-8", "surrogateescape"))
