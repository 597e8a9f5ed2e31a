"""Words: counts, sizes and names of files as people read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def counted(count: int, noun: str) -> str:
    """A number of things, as in "1 row" and "2,000 rows"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def size(count: float) -> str:
    """A number of bytes to three digits or so, in powers of 1,000, as in "4.5 MB"."""
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if count >= 0.9995 * 1000**power:
            return f"{count / 1000**power:,.{1 if count < 99.95 * 1000**power else 0}f} {unit}"
    return counted(round(count), "byte")


def about(count: float) -> str:
    """An estimate to two digits, as in "12,000,000"."""
    return f"{float(f'{count:.2g}'):,.0f}"


def legible(text: str) -> str:
    """Names of files, and what is said with them, as valid Unicode.

    Bytes of names that are not UTF-8 are written as in ``\\xff``, here and in all outputs.
    """
    others = re.sub(r"[\ud800-\udc7f\udd00-\udfff]", lambda c: f"\\u{ord(c[0]):04x}", text)
    return others.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def example(reject: Mapping[str, Any], characters: int = 80) -> str:
    """Where a stored reject is, what was found there, and how its record begins."""
    excerpt = repr(reject["excerpt"][:characters])
    place = f"{reject['source']}:{reject['position']}"
    return ": ".join(part for part in (place, reject["detail"], excerpt) if part)
