"""The one place where invalid Unicode is found, and rejected or replaced.

Records are decoded by ``surrogateescape``, so that both kinds of damage, bytes that are not UTF-8
and lone surrogate escapes, show as surrogates in a ``str`` and only the fields in use matter.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SURROGATE = re.compile("[\ud800-\udfff]")
MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32 (little endian)",
    b"\x00\x00\xfe\xff": "UTF-32 (big endian)",
    b"\xff\xfe": "UTF-16 (little endian)",
    b"\xfe\xff": "UTF-16 (big endian)",
}
UTF8_MARK = b"\xef\xbb\xbf"


def other_encoding(head: bytes) -> str | None:
    """The encoding that the byte-order mark at the beginning of a file names, if not UTF-8."""
    return next((name for mark, name in MARKS.items() if head.startswith(mark)), None)


def is_valid(text: str) -> bool:
    """Whether the string can be written as UTF-8."""
    return text.isascii() or SURROGATE.search(text) is None


def replace_surrogates(text: str) -> str:
    """Every surrogate becomes U+FFFD."""
    return SURROGATE.sub("\ufffd", text)


def replace_bytes(data: bytes) -> str:
    """The text of bytes, with U+FFFD for each maximal part that is not UTF-8."""
    return data.decode("utf-8", "replace")


def is_utf8(data: bytes) -> bool:
    """Whether all the bytes are UTF-8; looks at gigabytes a second and makes no copy."""
    if data.isascii():
        return True
    try:
        one_value(data).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def one_value(data: bytes) -> pa.LargeBinaryArray:
    """Bytes where they lie, as an array of shape (1,): Arrow's kernels outrun Python's."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(data)])


def decode_column(column: pa.Array, policy: str) -> tuple[pa.LargeStringArray, np.ndarray]:
    """The texts of a string or binary column under a policy, and where they were not UTF-8.

    Returns:
        a large_string array of shape (n,), null where the column is null or, with the policy
        "reject", not UTF-8; and a bool array of shape (n,) of the rows that were not UTF-8.
    """
    raw = column.cast(pa.large_binary())
    invalid = np.zeros(len(raw), bool)
    try:
        return raw.cast(pa.large_string()), invalid
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    for row, value in enumerate(raw.to_pylist()):
        try:
            texts.append(None if value is None else value.decode("utf-8"))
        except UnicodeDecodeError:
            invalid[row] = True
            texts.append(replace_bytes(value) if policy == "replace" else None)
    return pa.array(texts, pa.large_string()), invalid


def is_null(column: pa.Array) -> np.ndarray:
    """Bool array of shape (n,): which values are null."""
    return pc.is_null(column).to_numpy(zero_copy_only=False)
