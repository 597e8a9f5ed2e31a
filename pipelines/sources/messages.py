"""Messages: records that come one by one, each with its position, instead of in a file."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.sources import unicode
from pipelines.sources.assemble import Rows
from pipelines.sources.jsonl import add_record
from pipelines.sources.records import Reading, Records

MESSAGE_FORMATS = ("jsonl", "text-lines")
"""What a message may be: a JSON object, or a document."""


def decode_messages(
    messages: Sequence[tuple[int, bytes]], reading: Reading, format: str
) -> Records:
    """The records of messages at contiguous, ascending positions; at least one."""
    rows = Rows(reading)
    for position, data in messages:
        if format == "jsonl":
            add_record(rows, position, data)
        else:
            _add_text(rows, position, data)
    return rows.take(messages[0][0], messages[-1][0] + 1)


def _add_text(rows: Rows, position: int, data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    field = rows.reading.text_field

    def clean() -> dict[str, str]:
        return {field: unicode.replace_bytes(data)}

    rows.add(position, {field: text}, lambda value, kind: value, clean, lambda: data)
