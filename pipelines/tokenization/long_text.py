"""Cutting a long document into pieces whose ids, joined, are the ids of the whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

# Places where hardly any tokenizer joins what is left and right: before the space between two
# words, after a line end, after the end of a Chinese or Japanese sentence or clause.
_PLACES = re.compile(
    rb"[a-z](?= [a-z])|[a-z.,;:)}>]\n(?=[A-Za-z])|(?:\xe3\x80\x82|\xef\xbc\x8c)(?=[\xe3-\xe9])"
)
_ATTEMPTS = 8


def pieces(
    text: memoryview, encode: Callable[[list[str]], list[list[int]]], size: int, window: int
) -> Iterator[str]:
    """Cuts UTF-8 into pieces of at most ``size`` bytes where it can.

    Each cut is tried on its surroundings: ``window`` bytes before and after it, encoded together,
    must give the ids of both encoded alone. Where no such place is found, a piece is longer.

    Args:
        encode: gives the ids of each text.
        size, window: in bytes.
    """
    start, end = 0, len(text)
    while end - start > size:
        cut = next(_cuts(text, start, encode, size, window), end)
        yield str(text[start:cut], "utf-8")
        start = cut
    if start < end:
        yield str(text[start:], "utf-8")


def _cuts(
    text: memoryview,
    start: int,
    encode: Callable[[list[str]], list[list[int]]],
    size: int,
    window: int,
) -> Iterator[int]:
    """Places after ``start`` that can be cut, the best one first."""
    for beginning in range(start, len(text), size):
        stretch = text[beginning : beginning + size]
        places = np.array([match.end() for match in _PLACES.finditer(stretch)], np.int64)
        for place in (beginning + places[-_ATTEMPTS:])[::-1].tolist():
            if place > start and _can_cut(text, place, encode, window):
                yield place


def _can_cut(
    text: memoryview, place: int, encode: Callable[[list[str]], list[list[int]]], window: int
) -> bool:
    # Characters cut in two at the outer ends are left out.
    before = str(text[max(place - window, 0) : place], "utf-8", "ignore")
    after = str(text[place : place + window], "utf-8", "ignore")
    whole, left, right = encode([before + after, before, after])
    return whole == left + right
