"""Rows or columns to Records: the one place where rejects are told from records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from cachelib.errors import SourceError
from pipelines.sources import kept, unicode
from pipelines.sources.records import KEEP_TYPES, Reading, Records, Reject, excerpt


class Rows:
    """Records gathered one by one; for what has no columns."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.size = 0  # characters of text so far
        self._texts: list[str] = []
        self._keep: list[list[Any]] = [[] for _ in reading.keep]
        self._positions: list[int] = []
        self._rejects: list[Reject] = []
        self._replaced = 0

    def add(
        self,
        position: int,
        fields: Mapping[str, Any],
        convert: Callable[[Any, str], Any],
        clean: Callable[[], Mapping[str, Any]],
        record: Callable[[], bytes | str],
    ) -> None:
        """Add a record, or a reject where its text or a kept field is not usable.

        Args:
            position: where it begins.
            fields: its values by field; invalid Unicode shows as surrogates.
            convert: one value to a declared type; raises kept.Unfit.
            clean: its values by field with damaged bytes replaced, for the policy "replace".
            record: the record as found, for the excerpt of a reject.
        """
        values, reason, detail = self._values(fields, convert)
        damaged = [value for value in values if isinstance(value, str)]
        damaged = [value for value in damaged if not unicode.is_valid(value)]
        if not reason and damaged:
            if self.reading.invalid_unicode == "reject":
                found = unicode.SURROGATE.search(damaged[0])
                at = found.start() if found else 0
                reason, detail = "invalid Unicode", f"at character {at} of the value"
            else:
                values, reason, detail = self._values(clean(), convert)
                values = [
                    unicode.replace_surrogates(value) if isinstance(value, str) else value
                    for value in values
                ]
                self._replaced += not reason
        if reason:
            self.reject(position, reason, detail, record())
            return
        self._positions.append(position)
        self._texts.append(values[0])
        self.size += len(values[0])
        for column, value in zip(self._keep, values[1:], strict=True):
            column.append(value)

    def _values(
        self, fields: Mapping[str, Any], convert: Callable[[Any, str], Any]
    ) -> tuple[list[Any], str, str]:
        """Text and kept values, converted; or the reason and detail why not."""
        field = self.reading.text_field
        text = fields.get(field, kept.MISSING)
        if not isinstance(text, str):
            what = kept.describe(text)
            return [], f"text is {what}", f"field {field!r} is {what}"
        values = [text]
        for name, kind in self.reading.keep:
            value = fields.get(name, kept.MISSING)
            try:
                values.append(convert(value, kind))
            except kept.Unfit as error:
                return [], unfit(name, str(error)), f"field {name!r} is kept as {kind}"
        return values, "", ""

    def reject(self, position: int, reason: str, detail: str, record: bytes | str) -> None:
        """Add a record that cannot be used."""
        self._rejects.append(Reject(position, reason, excerpt(detail), excerpt(record)))

    def take(self, start: int, stop: int) -> Records:
        """The records so far, covering the positions [start, stop); begins anew after them."""
        records = Records(
            text=pa.array(self._texts, pa.large_string()),
            keep={
                name: pa.array(values, KEEP_TYPES[kind])
                for (name, kind), values in zip(self.reading.keep, self._keep, strict=True)
            },
            positions=np.array(self._positions, np.int64),
            rejects=tuple(self._rejects),
            replaced=self._replaced,
            start=start,
            stop=stop,
        )
        Rows.__init__(self, self.reading)
        return records


def unfit(name: str, what: str) -> str:
    """The reason of a reject for a kept field that is not of its type."""
    return f"kept field {name!r} is {what}"


def check_columns(schema: pa.Schema, reading: Reading, url: str) -> None:
    """SourceError unless a columnar file has the columns in use, of types that can serve."""
    check_names(schema.names, reading, url)
    for name, kind in ((reading.text_field, "str"), *reading.keep):
        found = schema.field(name).type
        if not kept.fits(found, kind):
            use = "the text" if name == reading.text_field else f"kept as {kind}"
            raise SourceError(
                f"{url}: column {name!r} has type {found}, which cannot be {use}; "
                "name another column, or convert it"
            )


def check_names(names: list[str], reading: Reading, url: str) -> None:
    """SourceError unless each column in use is there, once."""
    for name in (reading.text_field, *(name for name, _ in reading.keep)):
        if names.count(name) != 1:
            fault = "two columns are" if name in names else "no column is"
            there = ", ".join(map(repr, names[:50])) or "none"
            raise SourceError(f"{url}: {fault} called {name!r}; its columns are {there}")


def from_columns(
    columns: Mapping[str, pa.Array], first: int, reading: Reading, start: int, stop: int
) -> Records:
    """Records of columns that `check_columns` let pass.

    Args:
        columns: arrays of shape (n,), by name.
        first: row number of the first row.
        start, stop: the positions covered.
    """
    column = columns[reading.text_field]
    text, invalid = unicode.decode_column(column, reading.invalid_unicode)
    reasons = {int(row): "text is null" for row in np.flatnonzero(unicode.is_null(text) & ~invalid)}
    keep = {}
    for name, kind in reading.keep:
        keep[name], bad, damaged = kept.from_column(columns[name], kind, reading.invalid_unicode)
        invalid |= damaged
        for row, what in bad.items():
            reasons.setdefault(row, unfit(name, what))
    if reading.invalid_unicode == "reject":
        for row in np.flatnonzero(invalid).tolist():
            reasons.setdefault(row, "invalid Unicode")
    positions = np.arange(first, first + len(text), dtype=np.int64)
    rejects = []
    if reasons:
        good = np.ones(len(text), bool)
        good[list(reasons)] = False
        raw = column.cast(pa.large_binary())  # strings of a file may not be UTF-8 either
        for row in sorted(reasons):
            value = raw[row].as_py()
            rejects.append(
                Reject(first + row, reasons[row], f"row {first + row}", excerpt(value or b""))
            )
        text, positions, invalid = text.filter(pa.array(good)), positions[good], invalid[good]
        keep = {name: values.filter(pa.array(good)) for name, values in keep.items()}
    replaced = int(invalid.sum())
    return Records(text, keep, positions, tuple(rejects), replaced, start, stop)
