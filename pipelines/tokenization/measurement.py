"""On which characters do two engines differ? Measured, code point by code point.

Every code point that text can hold is set into a few contexts, many to a document. Where the two
engines give different ids for a document, its code points are tried one by one, and what is left
is compared again, so that every difference seen is either explained by single code points or
reported as unexplained.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pipelines.tokenization.arrow import as_texts
from pipelines.tokenization.code_points import CODE_POINTS, CodePointSet
from pipelines.tokenization.engines import Engine, differing_rows
from pipelines.tokenization.memory import remembered

EDITION = b"1"

# Between letters of each case, digits, after an apostrophe, beside punctuation, after space, with
# itself, among combining marks of two classes, before and after a line end.
_DETAILED = "a{0}b A{0}B 1{0}2 x'{0} .{0}, {0}{0} {0}\u0301{0}\u0323 {0}\n{0}\n"
_BRIEF = "a{0}b {0} "
_ALIKE = "a{0}"
# Nearly all that is written lies in the first two planes. The next two hold ideographs, the
# fifteenth begins with tags and variation selectors; all else is unassigned or for private use.
_CONTEXTS = (
    (range(0x20000), _DETAILED),
    (range(0x20000, 0x40000), _BRIEF),
    (range(0x40000, 0xE0000), _ALIKE),
    (range(0xE0000, 0xE1000), _DETAILED),
    (range(0xE1000, 0x110000), _ALIKE),
)
_SURROGATES = range(0xD800, 0xE000)

_PER_DOCUMENT = 64
_PER_BATCH = 64 * _PER_DOCUMENT

# A fifth of the characters assigned in Unicode 17 (159,801). With more of them, the fast engine
# has another idea of the tokenizer, and little of a text in such characters would be left to it.
LIMIT = 32_000


class UnexplainedDifference(Exception):
    """The engines differ, and not for the sake of single, rare characters."""


def measure(
    fast: Engine, exact: Engine, code_points: Sequence[int] = range(CODE_POINTS)
) -> CodePointSet:
    """The code points on which ``fast`` gives other ids than ``exact``.

    Takes some seconds on two cores for all of Unicode.

    Args:
        code_points: those to try, ascending.

    Raises:
        UnexplainedDifference: they differ on ASCII, on more than LIMIT code points, or on texts
            without any code point on which they differ by itself.
    """
    differing: list[int] = []
    compare = functools.partial(_differing_points, fast, exact)
    # Two at a time: while one batch is compared, the engines encode the other.
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(compare, _batches(code_points)):
            differing += found
            if differing and differing[0] < 0x80:
                raise UnexplainedDifference(
                    f"they differ on texts with the ASCII character U+{differing[0]:04X}"
                )
            if len(differing) > LIMIT:
                raise UnexplainedDifference(
                    f"they differ on more than {LIMIT:,} characters, from U+{differing[0]:04X} on"
                )
    return CodePointSet.of(differing)


def _batches(code_points: Sequence[int]) -> Iterator[tuple[str, np.ndarray]]:
    """(context, ascending code points) of a size that is quick to compare."""
    points = np.asarray(code_points, np.int64)
    points = points[(points < _SURROGATES.start) | (points >= _SURROGATES.stop)]
    for block, context in _CONTEXTS:
        within = points[(points >= block.start) & (points < block.stop)]
        for start in range(0, len(within), _PER_BATCH):
            yield context, within[start : start + _PER_BATCH]


def _differing_points(fast: Engine, exact: Engine, batch: tuple[str, np.ndarray]) -> list[int]:
    """Those of a batch's code points on which the engines differ, ascending."""
    context, points = batch[0], batch[1].tolist()
    documents = [points[i : i + _PER_DOCUMENT] for i in range(0, len(points), _PER_DOCUMENT)]
    suspects = [documents[row] for row in _differing(fast, exact, context, documents)]
    if not suspects:
        return []
    alone = [[point] for document in suspects for point in document]
    found = {alone[row][0] for row in _differing(fast, exact, context, alone)}
    rest = [[point for point in document if point not in found] for document in suspects]
    unexplained = _differing(fast, exact, context, rest)
    if len(unexplained):
        left = rest[unexplained[0]]
        raise UnexplainedDifference(
            f"they differ on a text with characters from U+{left[0]:04X} to U+{left[-1]:04X}, "
            "and on none of them alone"
        )
    return sorted(found)


def _differing(fast: Engine, exact: Engine, context: str, documents: list[list[int]]) -> np.ndarray:
    """Indices of the documents, given as code points to be set in the context, that differ."""
    around = context.split("{0}")
    texts = as_texts(
        ["".join([chr(point).join(around) for point in points]) for points in documents]
    )
    return differing_rows(fast.encode(texts), exact.encode(texts))


def measured(
    engines: Callable[[], tuple[Engine, Engine]], about: bytes, folder: Path | None = None
) -> CodePointSet:
    """``measure``, remembered in a folder of this user.

    Args:
        engines: loads the fast and the exact engine; called only where nothing is remembered.
        about: all that the result depends on: the tokenizer, the engines' versions.
        folder: as for `remembered`.
    """
    ranges = remembered(
        "code-points", EDITION + b" " + about, lambda: measure(*engines()).ranges, folder=folder
    )
    return CodePointSet(tuple((first, last) for first, last in ranges))
