"""A range of a source to its records, whatever its format."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from cachelib.errors import SourceError
from pipelines.sources import arrow, csvs, files, jsonarray, jsonl, lines, mapping, parquet, text
from pipelines.sources.records import Reading, Records, Source


def read(
    url: str, source: Source, start: int, stop: int | None, reading: Reading
) -> Iterator[Records]:
    """Every record that begins in [start, stop), in order and in bounded memory.

    Args:
        url: where the source lies, see `files.url_of`.
        source: what the planner found out about it.
        start: any position: 0, a split edge, or the stop of earlier records, to resume.
        stop: any position, or None for the end of the source.
        reading: how records become text.

    Yields:
        contiguous runs, at least one; the first starts at ``start`` and the last stops at
        ``stop``, or at the true extent. A run is some megabytes, or one huge record.

    Raises:
        SourceChanged: the file does not have the size it was planned with.
        SourceError: the file as a whole is damaged, or has no such column.
    """
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(f"start and stop must be 0 <= start <= stop, got {start} and {stop}")
    if reading.keep and source.format in ("text", "text-lines"):
        names = ", ".join(repr(name) for name, _ in reading.keep)
        raise SourceError(
            f"{url}: is read as {source.format}, which has no fields to keep; "
            f"leave out keep (--keep) of {names}, or name another format"
        )

    with closing(_records(url, source, start, stop, reading)) as found:
        for records in found:
            yield as_read(records, source.name, reading)


def as_read(records: Records, source: str, reading: Reading) -> Records:
    """The records of a source that are read, changed as they are to be."""
    if reading.holdout is not None:
        records = reading.holdout.of(source, records)
    return records if reading.map is None else mapping.apply(records, reading)


def _records(
    url: str, source: Source, start: int, stop: int | None, reading: Reading
) -> Generator[Records, None, None]:
    """All records in [start, stop), whatever is held out."""

    def chunks(position: int = 0, until: int | None = None) -> Iterator[bytes]:
        return files.plain_chunks(url, source, position, until)

    match source.format:
        case "jsonl":
            yield from jsonl.read(lines.blocks(chunks, start, stop, url), reading)
        case "text-lines":
            yield from text.read_lines(lines.blocks(chunks, start, stop, url), reading)
        case "text":
            yield from text.read_file(chunks(), url, start, stop, reading)
        case "json":
            yield from jsonarray.read(chunks(), url, start, stop, reading)
        case "csv" | "tsv":
            whole = lines.blocks(chunks, 0, None, url)
            yield from csvs.read(whole, source.format, url, start, stop, reading)
        case "parquet":
            with files.open_plain(url, source) as file:
                yield from parquet.read(file, url, start, stop, reading)
        case "arrow":
            with files.open_mapped(url, source) as file:
                yield from arrow.read(file, url, start, stop, reading)
