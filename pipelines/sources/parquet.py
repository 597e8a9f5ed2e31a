"""Parquet: rows of row groups, only the used columns, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cachelib.errors import SourceError
from pipelines.sources import assemble
from pipelines.sources.lines import BLOCK
from pipelines.sources.records import Reading, Records

MOST_ROWS = 8192
"""Rows of a batch, at most: a column of few values says little about its decoded size."""

BUFFER = 1 << 20
"""Bytes read ahead of each column, so that a row group is never held whole."""


def extent(file: BinaryIO, url: str) -> tuple[int, tuple[int, ...]]:
    """The number of rows, and the rows with which row groups begin, without 0."""
    metadata = _open(file, url).metadata
    starts = _group_starts(metadata)
    return metadata.num_rows, tuple(
        start for start in dict.fromkeys(starts) if 0 < start < metadata.num_rows
    )


def read(
    file: BinaryIO, url: str, start: int, stop: int | None, reading: Reading
) -> Iterator[Records]:
    """The rows [start, stop), positions counted in the file."""
    table = _open(file, url)
    assemble.check_columns(table.schema_arrow, reading, url)
    names = [reading.text_field, *(name for name, _ in reading.keep)]
    metadata = table.metadata
    end = metadata.num_rows if stop is None else stop
    covered = start
    for group, row in enumerate(_group_starts(metadata)):
        rows = metadata.row_group(group).num_rows
        if row + rows <= start or row >= end:
            continue
        batches = table.iter_batches(
            _batch_rows(metadata.row_group(group), names),
            row_groups=[group],
            columns=names,
            use_threads=False,
        )
        for batch in _checked(batches, url, row, rows):
            first, last = max(row, covered), min(row + len(batch), end)
            if first < last:
                part = batch.slice(first - row, last - first)
                columns = {name: part.column(name) for name in names}
                yield assemble.from_columns(columns, first, reading, covered, last)
                covered = last
            row += len(batch)
            if row >= end:
                break
    if covered < end or start >= end:
        yield Records.empty(reading, covered, max(end, covered))


def _open(file: BinaryIO, url: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{url}: is not a whole Parquet file: {error}; fetch or write it again"
        ) from error


def _group_starts(metadata: pq.FileMetaData) -> list[int]:
    starts, row = [], 0
    for group in range(metadata.num_row_groups):
        starts.append(row)
        row += metadata.row_group(group).num_rows
    return starts


def _batch_rows(group: pq.RowGroupMetaData, names: list[str]) -> int:
    """Rows of about `BLOCK` bytes."""
    size = 0
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in names:
            size += column.total_uncompressed_size
    return max(1, min(MOST_ROWS, group.num_rows * BLOCK // max(size, 1)))


def _checked(
    batches: Iterator[pa.RecordBatch], url: str, row: int, rows: int
) -> Iterator[pa.RecordBatch]:
    """The batches of a row group; SourceError where it is damaged."""
    found = 0
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{url}: damaged Parquet data in the row group that begins with row {row}: "
                f"{error}; fetch or write the file again"
            ) from error
        if batch is None:
            if found != rows:
                raise SourceError(
                    f"{url}: the row group that begins with row {row} has {found} rows instead of "
                    f"{rows}; fetch or write the file again"
                )
            break
        found += len(batch)
        yield batch
