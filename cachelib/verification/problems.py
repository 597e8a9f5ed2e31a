"""Problems: what a check finds wrong, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cachelib.errors import ForebayError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        place: URL of the object or folder.
        what: what is wrong with it, in words.
    """

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" if self.place else self.what


@dataclass(frozen=True)
class Progress:
    """How far a check has come.

    Attributes:
        shards, rows: that were read.
        all_shards, all_rows: that are to be read: those of the version checked, and those that
            stood there before, as far as the ledger was read.
        collected: shards of older versions that a gc gave up, and that were not read.
    """

    shards: int
    all_shards: int
    rows: int
    all_rows: int
    collected: int = 0


def caught(check: Iterator[Problem]) -> Iterator[Problem]:
    """The problems that a check finds, the one that ends it included."""
    try:
        yield from check
    except ForebayError as error:
        yield Problem("", str(error))
