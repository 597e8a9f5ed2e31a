"""Printing: what the commands that read caches write to a terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any


def printable(text: str) -> str:
    """Text with all that could garble a terminal written as escapes; line ends stay."""
    return "".join(
        c
        if c == "\n" or c.isprintable() or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(value, ensure_ascii=True))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as they need: numbers to the right, words to the left."""
    cells = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    widths = [max(len(title), *(len(row[i]) for row in cells), 0) for i, title in enumerate(header)]
    right = [
        any(isinstance(row[i], int) for row in rows) and header[i] != "" for i in range(len(header))
    ]
    for row in [list(header), *cells]:
        line = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        print("  " + line.rstrip())
