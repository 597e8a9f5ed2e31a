"""Commit: one step of a cache, as it is stored in the object ``_ledger/<n as 20 digits>.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib.errors import (
    IncompatibleCache,
)
from cachelib.format.canonical import digest_of
from cachelib.format.entries import Entries, Replacement
from cachelib.format.schema import Schema
from cachelib.ragged import offsets_of

FORMAT = 1
"""Version of the on-disk format that this code writes."""


OPERATIONS = ("create", "append", "seal", "compact", "delete", "retire", "finish")


def commit_key(version: int) -> str:
    return f"_ledger/{version:020d}.json"


@dataclass(frozen=True)
class Commit:
    """One step of a cache: a pure function of plan, parent and adopted manifests.

    Attributes:
        version: number of the commit, from 0.
        parent: digest of the commit before, "" for the first.
        operation: one of `OPERATIONS`.
        task: which plan and wave it carries out, for the one who made the plan.
        schema, identity: the fields, and how rows are made from sources.
        row_base: row indices given out before this commit; its entries follow on.
        entries: shards added.
        coverage: digest of the object that says which sources were taken in, or None.
        records, rejects, counts: what was read for this commit.
        totals: after this commit: {"rows", "elements": {field: n}, "digest", "shards"} of what is
            left, and "span", the row indices given out, where rows were deleted.
        seals: whether an era ends with this commit, at the last row that there is then.
        finished: whether the cache is complete.
        base: the checkpoint that stands for the commits up to its version, or None.
        removed: ids of the shards that the entries stand for, in row order; () where they follow
            on.
        groups: (shards of ``removed``, entries that stand for them), in row order.
        retired: name of the object that says which attempts will be deleted, or None.
        collected: what all retire commits up to this one gave up, or None: {"expired": [[start,
            stop, version of the retire commit], ...], the versions [start, stop) that need arrays
            which were given up, and "attempts": names of objects as `retired`}.
    """

    version: int
    parent: str
    operation: str
    task: dict[str, Any]
    schema: Schema
    identity: dict[str, Any]
    row_base: int
    entries: Entries
    coverage: str | None
    records: int
    rejects: dict[str, int]
    counts: dict[str, int]
    totals: dict[str, Any]
    seals: bool
    finished: bool
    base: dict[str, Any] | None
    removed: tuple[str, ...] = ()
    groups: tuple[tuple[int, int], ...] = ()
    retired: str | None = None
    collected: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ValueError(f"operation {self.operation!r} is none of {OPERATIONS}")

    @property
    def digest(self) -> str:
        return digest_of(self.to_json())

    @property
    def span(self) -> int:
        """Row indices given out up to and with this commit."""
        span: int = self.totals.get("span", self.totals["rows"])
        return span

    def expired_by(self, version: int) -> int | None:
        """The retire commit that let a version expire, as of this commit, or None."""
        ranges = [] if self.collected is None else self.collected["expired"]
        return next((by for start, stop, by in ranges if start <= version < stop), None)

    @property
    def replacements(self) -> list[Replacement]:
        """What its entries stand for, where they do not follow on."""
        removed = offsets_of(np.array([count for count, _ in self.groups], np.int64)).tolist()
        added = offsets_of(np.array([count for _, count in self.groups], np.int64)).tolist()
        return [
            Replacement(self.removed[low:high], self.entries.slice(first, last))
            for low, high, first, last in zip(removed, removed[1:], added, added[1:], strict=False)
        ]

    def to_json(self) -> dict[str, Any]:
        value = {
            **vars(self),
            "format": FORMAT,
            "schema": self.schema.to_json(),
            "entries": self.entries.to_json(),
            "removed": list(self.removed),
            "groups": [list(group) for group in self.groups],
        }
        absent = [name for name in _OPTIONAL if not value[name]]
        return {key: each for key, each in value.items() if key not in absent}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Commit:
        """A commit from its stored JSON.

        Raises:
            IncompatibleCache: it was written in a newer format.
        """
        if value.get("format") != FORMAT:
            raise IncompatibleCache(
                f"{where} is in format {value.get('format')}, this Forebay reads format {FORMAT}: "
                "upgrade Forebay to read it"
            )
        rest = {key: v for key, v in value.items() if key != "format"}
        try:
            return cls(
                **{
                    **rest,
                    "schema": Schema.from_json(value["schema"]),
                    "entries": Entries.from_json(value["entries"]),
                    "removed": tuple(value.get("removed", ())),
                    "groups": tuple((old, new) for old, new in value.get("groups", ())),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise IncompatibleCache(
                f"{where} says what this Forebay does not know ({error}): upgrade Forebay"
            ) from error


_OPTIONAL = ("removed", "groups", "retired", "collected")
"""Keys of a commit that are left out where they say nothing."""
