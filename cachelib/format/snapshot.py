"""Snapshot: what a cache holds after one commit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.commit import Commit, commit_key
from cachelib.format.digest import EMPTY, Digest
from cachelib.format.entries import Entries
from cachelib.format.shard import has_offsets
from cachelib.format.storage import Storage
from cachelib.ragged import offsets_of


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a cache holds after one commit.

    Attributes:
        commit: the commit.
        entries: all live shards in row order.
        row_bases: int64 of shape (shards + 1,): global row index at which each shard begins.
        stored_bases: int64 of shape (shards + 1,): the same, counting stored rows only: indices of
            which a compaction dropped the rows have none.
        element_bases: the same for the elements of each field that has offsets.
        eras: int64 of shape (eras,): the row at which each sealed era ends, ascending; rows from
            the last one on belong to no era yet. No era is empty.
    """

    commit: Commit
    entries: Entries
    row_bases: np.ndarray
    stored_bases: np.ndarray
    element_bases: dict[str, np.ndarray]
    eras: np.ndarray

    @classmethod
    def of(cls, commit: Commit, entries: Entries, eras: Sequence[int] = ()) -> Snapshot:
        none = np.zeros(0, np.int64)  # of a cache without any shard
        elements = {
            f.name: offsets_of(entries.elements.get(f.name, none))
            for f in commit.schema.fields
            if has_offsets(f)
        }
        bases, stored = offsets_of(entries.row_spans), offsets_of(entries.rows)
        ends = np.array(sorted({end for end in eras if end > 0}), np.int64)
        return cls(commit, entries, bases, stored, elements, ends)

    @property
    def version(self) -> int:
        return self.commit.version

    @property
    def rows(self) -> int:
        """Row indices given out: as many as rows, where none was deleted."""
        return int(self.row_bases[-1])

    @property
    def digest(self) -> Digest:
        """The content digest of all rows."""
        return Digest.parse(self.commit.totals["digest"])

    @property
    def beginnings(self) -> list[Digest]:
        """The content digests of no rows, and of the rows up to the end of each shard."""
        digests = map(Digest.parse, self.entries.digests)
        return list(itertools.accumulate(digests, Digest.then, initial=EMPTY))


def carried_on(parts: Sequence[Entries], commits: Sequence[Commit], storage: Storage) -> Entries:
    """The entries of a checkpoint's segments, carried on by the commits since.

    Raises:
        CorruptData: a commit replaces what is not there.
    """
    found = list(parts)
    for commit in commits:
        if not commit.removed:
            found.append(commit.entries)
            continue
        try:
            found = [Entries.concatenate(found).replaced(commit.replacements)]
        except CorruptData as error:
            raise CorruptData(f"{storage.where(commit_key(commit.version))}: {error}") from error
    return Entries.concatenate(found)
