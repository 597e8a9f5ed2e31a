"""Eviction: which entries go so that others fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Held(NamedTuple):
    """An entry in a folder.

    Attributes:
        name: of its file.
        size: bytes of its file.
        used: when it was last used, in seconds since the epoch.
    """

    name: str
    size: int
    used: float


def leaving(held: Sequence[Held], excess: int, spared: float = float("inf")) -> list[Held] | None:
    """Those used longest ago that have so many bytes together, and no more of them than needed.

    Args:
        excess: bytes that are to go.
        spared: those used at this time or later stay.

    Returns:
        None where those that may go have fewer bytes: then nothing need go for nothing.
    """
    chosen: list[Held] = []
    freed = 0
    for entry in sorted(held, key=lambda entry: (entry.used, entry.name)):
        if freed >= excess:
            break
        if entry.used >= spared:
            return None
        chosen.append(entry)
        freed += entry.size
    return chosen if freed >= excess else None
