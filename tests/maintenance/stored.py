"""What is stored on disk, to the byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import zstandard


def stored(path: Path) -> Iterator[bytes]:
    """Every file in a folder as it is, and all that is compressed in it."""
    for file in path.rglob("*"):
        if not file.is_file():
            continue
        data = file.read_bytes()
        yield data
        for found in re.finditer(re.escape(b"\x28\xb5\x2f\xfd"), data):
            with suppress(zstandard.ZstdError):
                yield zstandard.ZstdDecompressor().decompressobj().decompress(data[found.start() :])
