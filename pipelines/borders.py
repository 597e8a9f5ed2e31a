"""Borders: the records of a split with which parts begin.

Where a part ends depends on where it begins and on what is read alone, so that blocks of any sizes,
and a run that goes on after a published part, have the same borders.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources.records import Records, Source

BY_ROW = ("parquet", "arrow", "csv", "tsv")
"""Formats whose positions are row numbers, and so tell nothing of bytes."""

ROW_BYTES = 16
"""Counted for each row besides its text, so that empty, rejected and left-out ones fill a part."""


class Borders:
    """Finds the borders in the records of one split, which come in order.

    Where positions are bytes, a part ends before the first record past a multiple of `split_bytes`.
    Where they are row numbers, it ends before the first record that has `split_bytes` of such rows
    before it in the part: the bytes of their text and of kept text, and `ROW_BYTES` each. A part
    always holds a record, rejects included.

    Args:
        split_bytes: bytes of a part, about; 1 or more.
    """

    def __init__(self, split_bytes: int) -> None:
        self._split_bytes = split_bytes
        self._holds = False  # whether the part that is being filled holds a record
        self._rows_bytes = 0  # of the rows in it
        self._cell: tuple[int, int] | None = None  # piece and multiple of the last record

    def within(self, piece: int, source: Source, records: Records) -> list[int]:
        """The positions in the next records of a piece at which parts begin, in order."""
        rejected = [reject.position for reject in records.rejects]
        begins = np.union1d(records.positions, rejected).astype(np.int64)
        by_row = source.format in BY_ROW
        return self._by_bytes(records, begins) if by_row else self._by_position(piece, begins)

    def _by_position(self, piece: int, begins: np.ndarray) -> list[int]:
        if len(begins) == 0:
            return []
        cells = begins // self._split_bytes
        last = self._cell[1] if self._cell is not None and self._cell[0] == piece else cells[0]
        found = begins[cells != np.concatenate([[last], cells[:-1]])].tolist()
        self._cell = (piece, int(cells[-1]))
        self._holds = True
        if found:
            self._rows_bytes = 0
        return found

    def _by_bytes(self, records: Records, begins: np.ndarray) -> list[int]:
        sums = np.concatenate([[0], np.cumsum(_sizes(records))])
        before = sums[np.searchsorted(records.positions, begins)]
        before += ROW_BYTES * (begins - records.start)
        found = []
        origin = -self._rows_bytes  # what is before the part that is being filled
        while True:
            at = int(np.searchsorted(before, origin + self._split_bytes))
            at = max(at, 0 if self._holds else 1)
            self._holds = self._holds or len(begins) > 0
            if at >= len(begins):
                break
            found.append(int(begins[at]))
            origin = int(before[at])
        rows = records.stop - records.start
        self._rows_bytes = int(sums[-1]) + ROW_BYTES * rows - origin
        return found


def _sizes(records: Records) -> np.ndarray:
    """Bytes of the text and of kept text of each record: int64 of shape (n,)."""
    sizes = np.zeros(len(records), np.int64)
    for column in (records.text, *records.keep.values()):
        if pa.types.is_large_string(column.type):
            sizes += pc.binary_length(column).to_numpy(zero_copy_only=False)
    return sizes
