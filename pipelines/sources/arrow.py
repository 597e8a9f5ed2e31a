"""Arrow IPC files and streams, such as HF `save_to_disk` writes; rows of record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.ipc

from cachelib.errors import SourceError
from pipelines.sources import assemble
from pipelines.sources.lines import BLOCK
from pipelines.sources.records import Reading, Records

FILE_MAGIC = b"ARROW1"
END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end mark of a stream: a message of no length."""


def extent(file: BinaryIO | pa.NativeFile, url: str) -> tuple[int, tuple[int, ...]]:
    """The number of rows, and the rows with which record batches begin, without 0.

    Looks at every batch; over a memory map this reads little but their headers.
    """
    _, batches = _open(file, url, None)
    starts, row = [], 0
    for batch in batches:
        starts.append(row)
        row += len(batch)
    return row, tuple(start for start in dict.fromkeys(starts) if 0 < start < row)


def read(
    file: BinaryIO | pa.NativeFile, url: str, start: int, stop: int | None, reading: Reading
) -> Iterator[Records]:
    """The rows [start, stop), positions counted in the file."""
    names = [reading.text_field, *(name for name, _ in reading.keep)]
    schema, batches = _open(file, url, names)
    assemble.check_columns(schema, reading, url)
    row, covered = 0, start
    for batch in batches:
        if stop is not None and row >= stop:
            break
        last = row + len(batch) if stop is None else min(row + len(batch), stop)
        step = max(1, len(batch) * BLOCK // max(_size(batch, names), 1))
        while covered < last:
            until = min(covered + step, last)
            part = batch.slice(covered - row, until - covered)
            columns = {name: part.column(name) for name in names}
            yield assemble.from_columns(columns, covered, reading, covered, until)
            covered = until
        row += len(batch)
    end = row if stop is None else stop
    if covered < end or start >= end:
        yield Records.empty(reading, covered, max(end, covered))


def _size(batch: pa.RecordBatch, names: list[str]) -> int:
    return sum(batch.column(name).nbytes for name in names)


def _open(
    file: BinaryIO | pa.NativeFile, url: str, names: list[str] | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the record batches of a file or a stream."""
    try:
        is_file = file.read(len(FILE_MAGIC)) == FILE_MAGIC
        file.seek(0)
        reader: Any = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
        schema = reader.schema
        # A mapped batch costs nothing whole, but would be copied to leave columns out.
        mapped = isinstance(file, pa.MemoryMappedFile)
        if names and set(names) <= set(schema.names) and not mapped:
            wanted = sorted({schema.get_field_index(name) for name in names} - {-1})
            file.seek(0)
            options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
            reader = (
                pa.ipc.open_file(file, options=options)
                if is_file
                else pa.ipc.open_stream(file, options=options)
            )
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{url}: is not a whole Arrow IPC file or stream: {error}; fetch or write it again"
        ) from error
    return schema, _batches(file, reader, is_file, url)


def _batches(
    file: BinaryIO | pa.NativeFile, reader: Any, is_file: bool, url: str
) -> Iterator[pa.RecordBatch]:
    row = 0
    index = 0
    while not is_file or index < reader.num_record_batches:
        try:
            batch = reader.get_batch(index) if is_file else reader.read_next_batch()
        except StopIteration:
            _check_end(file, url)
            return
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{url}: damaged Arrow data in the record batch that begins with row {row}: "
                f"{error}; fetch or write the file again"
            ) from error
        yield batch
        row += len(batch)
        index += 1


def _check_end(file: BinaryIO | pa.NativeFile, url: str) -> None:
    """SourceError unless a stream has its end mark where the file ends.

    Arrow takes a stream that is cut after a whole batch, and does not look behind the mark.
    """
    end = file.tell()
    file.seek(max(end - len(END), 0))
    if file.read(len(END)) != END:
        raise SourceError(
            f"{url}: the Arrow stream has no end mark, so it may be cut short; write it again"
        )
    if file.read(1):
        raise SourceError(
            f"{url}: more follows the end of the Arrow stream at byte {end}; make it one stream"
        )
