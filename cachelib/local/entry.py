"""Entry: a copy of one stored object as a file: its bytes, and at the end what proves them.

The end of a file is a crc32c for each block of the body, where whoever reads it needs one, and 40
bytes: what this is, the entry's own name, sizes, and a crc32c of all that. A file that was cut
short, left half written by a crash, or put in the place of another is none.
"""

from __future__ import annotations

import re
import struct
from typing import Literal, NamedTuple

import google_crc32c
import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.canonical import digest

Form = Literal["encoded", "raw"]
"""Bodies as objects are stored, or the values that they decode to."""

FORMS: tuple[Form, ...] = ("encoded", "raw")

_MAGIC = b"forebay\x01"
_END = struct.Struct("<8s16sQII")  # magic, digest in the name, bytes, number of checks, crc32c

END_BYTES = _END.size
"""Bytes behind the body of an entry without checks."""

_ENTRY = re.compile(r"forebay-[0-9a-f]{32}\.(encoded|raw)")
_PART = re.compile(_ENTRY.pattern + r"\.[0-9a-f]{16}\.part")


class Tail(NamedTuple):
    """What the end of an entry says of its body.

    Attributes:
        size: of the body, in bytes.
        checks: crc32c of each of its blocks, uint32 of shape (blocks,); of shape (0,) where the
            body carries its own.
    """

    size: int
    checks: np.ndarray


def name_of(what: str, form: Form) -> str:
    """The name of the entry for an object, given a text that is the same for equal objects only."""
    return f"forebay-{digest(what.encode())}.{form}"


def is_entry(name: str) -> bool:
    """Whether a file name is that of an entry."""
    return _ENTRY.fullmatch(name) is not None


def is_part(name: str) -> bool:
    """Whether a file name is that of an entry that is being written."""
    return _PART.fullmatch(name) is not None


def checks_of(body: bytes | bytearray, block: int) -> np.ndarray:
    """The crc32c of each block of a body: uint32 of shape (blocks,)."""
    found = [google_crc32c.value(bytes(body[i : i + block])) for i in range(0, len(body), block)]
    return np.array(found, np.uint32)


def tail_of(name: str, tail: Tail) -> bytes:
    """The end of the entry of a name."""
    checks = tail.checks.astype("<u4").tobytes()
    told = _END.pack(_MAGIC, _digest_in(name), tail.size, len(tail.checks), 0)[:-4]
    return checks + told + google_crc32c.value(checks + told).to_bytes(4, "little")


def read_tail(name: str, end: bytes, total: int) -> Tail:
    """What the end of a file says, if that is the entry of a name.

    Args:
        end: the file's last bytes, as many as it may take (see `tail_bytes`), or all.
        total: bytes of the file.

    Raises:
        CorruptData: it is not, or is not whole.
    """
    if len(end) < END_BYTES:
        raise CorruptData(f"{name} has {total} bytes, fewer than the {END_BYTES} of its end")
    magic, digest_there, size, count, check = _END.unpack(end[-END_BYTES:])
    length = END_BYTES + 4 * count
    if magic != _MAGIC or digest_there != _digest_in(name):
        raise CorruptData(f"{name} does not end as the entry of that name")
    if length > len(end) or size + length != total:
        raise CorruptData(f"{name} has {total} bytes, and its end tells of {size + length}")
    if google_crc32c.value(end[len(end) - length : -4]) != check:
        raise CorruptData(f"the end of {name} does not fit its crc32c")
    checks = np.frombuffer(end[len(end) - length : -END_BYTES], "<u4")
    return Tail(size, checks.astype(np.uint32, copy=False))


def tail_bytes(checks: int) -> int:
    """Bytes behind the body of an entry with so many checks."""
    return END_BYTES + 4 * checks


def _digest_in(name: str) -> bytes:
    return bytes.fromhex(name.partition("-")[2].partition(".")[0])
