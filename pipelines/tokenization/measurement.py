"""On which characters do two engines differ? Measured, code point by code point.

Every code point that text can hold is set into a few contexts, many to a document. Where the two
engines give different ids for a document, its code points are tried one by one, and what is left
is compared again, so that every difference seen is either explained by single code points or
reported as unexplained.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson

from pipelines.tokenization.code_points import CODE_POINTS, CodePointSet
from pipelines.tokenization.engines import Engine, as_texts, differing_rows

EDITION = 1

# Between letters of each case, digits, after an apostrophe, beside punctuation, after space, with
# itself, under a combining mark, before and after a line end. The first two planes hold nearly all
# that is written; elsewhere code points come in large alike blocks, and two contexts will do.
_CONTEXTS = "a{0}b A{0}B 1{0}2 x'{0} .{0}, {0}{0} {0}\u0301 {0}\n{0}\n"
_FEW_CONTEXTS = "a{0}b {0} "
_DETAILED = range(0x20000)
_SURROGATES = range(0xD800, 0xE000)

_PER_DOCUMENT = 64
_PER_BATCH = 64 * _PER_DOCUMENT

# A fifth of the characters assigned in Unicode 17 (159,801). With more of them, the fast engine
# has another idea of the tokenizer, and little of a text in such characters would be left to it.
LIMIT = 32_000


class UnexplainedDifference(Exception):
    """The engines differ, and not for the sake of single characters; ``text`` shows where."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


def measure(
    fast: Engine, exact: Engine, code_points: Sequence[int] = range(CODE_POINTS)
) -> CodePointSet:
    """The code points on which ``fast`` gives other ids than ``exact``.

    Takes some seconds on two cores for all of Unicode.

    Raises:
        UnexplainedDifference: they differ on ASCII, on more than LIMIT code points, or on texts
            without any code point on which they differ by itself.
    """
    differing: list[int] = []
    for batch in _batches(code_points):
        documents = [batch[i : i + _PER_DOCUMENT] for i in range(0, len(batch), _PER_DOCUMENT)]
        suspects = [documents[row] for row in _differing(fast, exact, documents)]
        if not suspects:
            continue
        alone = [[point] for document in suspects for point in document]
        found = {alone[row][0] for row in _differing(fast, exact, alone)}
        rest = [[point for point in document if point not in found] for document in suspects]
        unexplained = _differing(fast, exact, rest)
        if len(unexplained):
            points = rest[unexplained[0]]
            raise UnexplainedDifference(
                f"they differ on a text of U+{points[0]:04X} to U+{points[-1]:04X}, and on none "
                "of its characters alone",
                _text(points),
            )
        differing += found
        if found and min(found) < 0x80:
            point = min(found)
            raise UnexplainedDifference(
                f"they differ on the ASCII character U+{point:04X}", _text([point])
            )
        if len(differing) > LIMIT:
            raise UnexplainedDifference(
                f"they differ on more than {LIMIT:,} characters, from U+{min(differing):04X} on",
                _text(sorted(differing)[:1]),
            )
    return CodePointSet.of(differing)


def _batches(code_points: Sequence[int]) -> Iterator[list[int]]:
    points = [point for point in code_points if point not in _SURROGATES]
    for start in range(0, len(points), _PER_BATCH):
        yield points[start : start + _PER_BATCH]


def _text(points: Sequence[int]) -> str:
    return "".join(
        (_CONTEXTS if point in _DETAILED else _FEW_CONTEXTS).replace("{0}", chr(point))
        for point in points
    )


def _differing(fast: Engine, exact: Engine, documents: list[list[int]]) -> np.ndarray:
    texts = as_texts([_text(points) for points in documents])
    return differing_rows(fast.encode(texts), exact.encode(texts))


def measured(fast: Engine, exact: Engine, *about: str, folder: Path | None = None) -> CodePointSet:
    """``measure``, remembered in a folder of this user.

    Args:
        about: all that the result depends on: the tokenizer's digest, the engines' versions.
        folder: where results are kept; by default ``$XDG_CACHE_HOME/forebay`` or
            ``~/.cache/forebay``. A damaged file is measured again; a folder that cannot be
            written is done without.
    """
    key = hashlib.blake2b(orjson.dumps([EDITION, *about]), digest_size=16).hexdigest()
    path = (folder or _user_folder()) / f"code-points-{key}.json"
    remembered = _read(path)
    if remembered is not None:
        return remembered
    result = measure(fast, exact)
    _write(path, result)
    return result


def _user_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "forebay"


def _read(path: Path) -> CodePointSet | None:
    try:
        body, digest = path.read_bytes().split(b"\n")[:2]
        if hashlib.blake2b(body, digest_size=16).hexdigest().encode() != digest:
            return None
        return CodePointSet(tuple((first, last) for first, last in orjson.loads(body)))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, result: CodePointSet) -> None:
    body = orjson.dumps(result.ranges)
    digest = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body + b"\n" + digest + b"\n")
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
