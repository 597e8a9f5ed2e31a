"""Texts as Arrow arrays, made and read as plain memory.

``pyarrow.array`` is avoided: where pandas is installed its first call imports it, for up to a
second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cachelib.ragged import offsets_of


def as_texts(texts: Sequence[str] | pa.Array) -> pa.LargeStringArray:
    """Texts as a large_string array without nulls."""
    if not isinstance(texts, pa.Array):
        encoded = [text.encode() for text in texts]
        offsets = offsets_of(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        return pa.LargeStringArray.from_buffers(
            len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))
        )
    if texts.null_count:
        raise ValueError(f"texts must not be null, got {texts.null_count} nulls")
    return texts if texts.type == pa.large_string() else texts.cast(pa.large_string())


def buffers(texts: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """The array's own memory: offsets, int64 (rows + 1,), into UTF-8 bytes, uint8."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or offsets is None:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    window = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return window, np.frombuffer(data or b"", np.uint8)


def take(texts: pa.LargeStringArray, rows: np.ndarray) -> pa.LargeStringArray:
    """The texts at int64 ``rows``, in that order."""
    indices = np.ascontiguousarray(rows, np.int64)
    return texts.take(
        pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)])
    )


def binary(offsets: np.ndarray, data: np.ndarray) -> pa.LargeBinaryArray:
    """Byte strings in given memory: int64 offsets (rows + 1,) into any contiguous array."""
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
