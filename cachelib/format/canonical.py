"""Canonical JSON objects that carry their own digest.

A whole-object read can come back short or damaged without an error, so every JSON object is stored
as one line of JSON and a second line with the digest of the first.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cachelib.errors import CorruptData


def canonical(value: Any) -> bytes:
    """The one JSON encoding of a value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def digest(data: bytes) -> str:
    """BLAKE2b of the bytes, 128 bits, as 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def digest_of(value: Any) -> str:
    """The digest of a value's canonical JSON."""
    return digest(canonical(value))


def seal(value: Any) -> bytes:
    """The bytes to store for a JSON value: its canonical line and the line of its digest."""
    line = canonical(value)
    return line + b"\n" + digest(line).encode("ascii") + b"\n"


def unseal(data: bytes, where: str) -> Any:
    """The JSON value in bytes made by `seal`.

    Raises:
        CorruptData: the digest does not match; ``where`` names the object.
    """
    line, _, tail = data.partition(b"\n")
    expected = digest(line).encode("ascii") + b"\n"
    if tail != expected:
        raise CorruptData(
            f"{where}: {len(data)} bytes whose digest line is {tail[:40]!r}, "
            f"expected {expected!r}: the object is cut short or damaged"
        )
    return json.loads(line)
