"""Entries: the shards of a cache in row order, as columns, and which of their rows are left."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.shard import Manifest
from cachelib.ragged import offsets_of, ranges


@dataclass(frozen=True, eq=False)
class Extents:
    """The rows that are left of the shards of some entries: runs without a gap, in row order.

    Attributes:
        entry: int64 (extents,), the number of the entry, ascending.
        first: int64 (extents,), the first row, counted from the first row index of the entry.
        stored: int64 (extents,), the place of that row in the shard's arrays.
        rows: int64 (extents,), how many, at least 1.
        begins: for each field with offsets, int64 (extents,): the place of its first value.
        elements: for each field with offsets, int64 (extents,): its values.
    """

    entry: np.ndarray
    first: np.ndarray
    stored: np.ndarray
    rows: np.ndarray
    begins: dict[str, np.ndarray]
    elements: dict[str, np.ndarray]

    @classmethod
    def whole(cls, rows: np.ndarray, elements: Mapping[str, np.ndarray]) -> Extents:
        """Those of shards of which nothing was deleted."""
        entry = np.flatnonzero(rows > 0)
        none = np.zeros(len(entry), np.int64)
        counts = {name: found[entry] for name, found in elements.items()}
        return cls(entry, none, none, rows[entry], dict.fromkeys(counts, none), counts)

    def of_entries(self, start: int, stop: int) -> Extents:
        """Those of entries [start, stop), numbered anew."""
        part = slice(*np.searchsorted(self.entry, (start, stop)).tolist())
        return Extents(
            self.entry[part] - start,
            self.first[part],
            self.stored[part],
            self.rows[part],
            {f: column[part] for f, column in self.begins.items()},
            {f: column[part] for f, column in self.elements.items()},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": self.entry.tolist(),
            "first": self.first.tolist(),
            "stored": self.stored.tolist(),
            "rows": self.rows.tolist(),
            "begins": {f: column.tolist() for f, column in self.begins.items()},
            "elements": {f: column.tolist() for f, column in self.elements.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Extents:
        def columns(name: str) -> dict[str, np.ndarray]:
            return {f: np.array(column, np.int64) for f, column in value[name].items()}

        return cls(
            entry=np.array(value["entry"], np.int64),
            first=np.array(value["first"], np.int64),
            stored=np.array(value["stored"], np.int64),
            rows=np.array(value["rows"], np.int64),
            begins=columns("begins"),
            elements=columns("elements"),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Extents], counts: Sequence[int]) -> Extents:
        """Those of all parts, which are of so many entries each; at least one part."""
        shifts = np.repeat(offsets_of(np.array(counts))[:-1], [len(part.entry) for part in parts])
        fields = parts[0].elements
        return cls(
            np.concatenate([part.entry for part in parts]) + shifts,
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.stored for part in parts]),
            np.concatenate([part.rows for part in parts]),
            {f: np.concatenate([part.begins[f] for part in parts]) for f in fields},
            {f: np.concatenate([part.elements[f] for part in parts]) for f in fields},
        )


@dataclass(frozen=True, eq=False)
class Entries:
    """Shards in row order, as columns.

    Attributes:
        shard, attempt: ids, one a shard.
        rows: int64 of shape (shards,), rows in the shard's arrays.
        elements: int64 of shape (shards,) for each field that has offsets, likewise.
        digests: content digests of the rows that are left, as text.
        spans: int64 of shape (shards,), row indices that a shard takes up; None where each takes up
            as many as it has rows and all of them are left.
        extents: which rows are left; None like ``spans``.
    """

    shard: tuple[str, ...] = ()
    attempt: tuple[str, ...] = ()
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    elements: dict[str, np.ndarray] = field(default_factory=dict)
    digests: tuple[str, ...] = ()
    spans: np.ndarray | None = None
    extents: Extents | None = None

    def __len__(self) -> int:
        return len(self.shard)

    @classmethod
    def of(cls, manifests: Sequence[Manifest], fields: Sequence[str]) -> Entries:
        """The entries of manifests, in the order given; `fields` are those with offsets."""
        return cls(
            tuple(m.shard for m in manifests),
            tuple(m.attempt for m in manifests),
            np.array([m.rows for m in manifests], np.int64),
            {f: np.array([m.elements.get(f, 0) for m in manifests], np.int64) for f in fields},
            tuple(m.digest for m in manifests),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Entries]) -> Entries:
        """All entries of the parts, in order."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls()
        whole = all(part.whole for part in parts)
        return cls(
            tuple(itertools.chain.from_iterable(part.shard for part in parts)),
            tuple(itertools.chain.from_iterable(part.attempt for part in parts)),
            np.concatenate([part.rows for part in parts]),
            {f: np.concatenate([part.elements[f] for part in parts]) for f in parts[0].elements},
            tuple(itertools.chain.from_iterable(part.digests for part in parts)),
            None if whole else np.concatenate([part.row_spans for part in parts]),
            None
            if whole
            else Extents.concatenate([part.left for part in parts], [len(part) for part in parts]),
        )

    @property
    def whole(self) -> bool:
        """Whether no row was deleted."""
        return self.extents is None

    @property
    def row_spans(self) -> np.ndarray:
        """Row indices that each shard takes up: int64 of shape (shards,)."""
        return self.rows if self.spans is None else self.spans

    @property
    def left(self) -> Extents:
        """The rows that are left."""
        return Extents.whole(self.rows, self.elements) if self.extents is None else self.extents

    @property
    def rows_left(self) -> int:
        """How many rows are left."""
        return int((self.rows if self.extents is None else self.extents.rows).sum())

    def elements_left(self, field: str) -> int:
        """How many values of a field with offsets the rows have that are left."""
        counts = self.elements if self.extents is None else self.extents.elements
        return int(counts[field].sum()) if len(self) else 0

    def slice(self, start: int, stop: int) -> Entries:
        """Entries [start, stop); whole where nothing of them was deleted."""
        spans = None if self.spans is None else self.spans[start:stop]
        extents = None if self.extents is None else self.extents.of_entries(start, stop)
        found = Entries(
            self.shard[start:stop],
            self.attempt[start:stop],
            self.rows[start:stop],
            {f: counts[start:stop] for f, counts in self.elements.items()},
            self.digests[start:stop],
            spans,
            extents,
        )
        return found.simplified()

    def kept(self, index: int) -> np.ndarray | None:
        """Of each row in a shard's arrays whether it is left, bool (rows,); None if all are."""
        extents = None if self.extents is None else self.extents.of_entries(index, index + 1)
        if extents is None or extents.rows.sum() == self.rows[index]:
            return None
        kept = np.zeros(int(self.rows[index]), np.bool_)
        kept[ranges(extents.stored, extents.rows)] = True
        return kept

    def simplified(self) -> Entries:
        """The same entries, without the columns that say nothing."""
        if self.extents is None or self.spans is None:
            return self
        if not np.array_equal(self.spans, self.rows) or self.rows_left != self.rows.sum():
            return self
        return replace(self, spans=None, extents=None)

    def replaced(self, groups: Sequence[Replacement]) -> Entries:
        """These entries with runs of them replaced by others that take up the same row indices.

        Raises:
            CorruptData: what is to be replaced is not there, or takes up other indices.
        """
        places = {shard: place for place, shard in enumerate(self.shard)}
        spans = self.row_spans
        parts: list[Entries] = []
        at = 0
        for start, group in sorted(
            ((places.get(group.removed[0], -1), group) for group in groups), key=lambda g: g[0]
        ):
            stop = start + len(group.removed)
            if start < at or self.shard[start:stop] != group.removed:
                raise CorruptData(f"shards {list(group.removed[:3])} are not there in this order")
            if int(spans[start:stop].sum()) != int(group.added.row_spans.sum()):
                raise CorruptData(
                    f"shards {list(group.removed[:3])} take up {spans[start:stop].sum()} row "
                    f"indices, what replaces them {group.added.row_spans.sum()}"
                )
            parts += [self.slice(at, start), group.added]
            at = stop
        parts.append(self.slice(at, len(self)))
        return Entries.concatenate(parts)

    def thinned(self, kept: np.ndarray, offsets: Mapping[str, np.ndarray], digest: str) -> Entries:
        """A single entry of which only some rows are left.

        Args:
            kept: bool (rows,), of each row in the shard's arrays whether it is left; those that
                are deleted already stay so.
            offsets: of each field with offsets, int64 (rows + 1,), as stored.
            digest: content digest of the rows that are left, as text.
        """
        before = self.left
        index = np.full(len(kept), -1, np.int64)  # of each stored row, within the entry's span
        index[ranges(before.stored, before.rows)] = ranges(before.first, before.rows)
        stored = np.flatnonzero(kept & (index >= 0))
        index = index[stored]
        opens = np.ones(len(stored), bool)
        opens[1:] = (np.diff(stored) != 1) | (np.diff(index) != 1)
        at = np.flatnonzero(opens)
        rows = np.diff(np.append(at, len(stored)))
        begins = {f: column[stored[at]] for f, column in offsets.items()}
        ends = {f: column[stored[at] + rows] for f, column in offsets.items()}
        extents = Extents(
            np.zeros(len(at), np.int64),
            index[at],
            stored[at],
            rows,
            begins,
            {f: ends[f] - begins[f] for f in ends},
        )
        spans = self.row_spans
        return replace(self, digests=(digest,), spans=spans, extents=extents).simplified()

    def packed(self, shard: str, attempt: str, digest: str) -> Entries:
        """A single entry whose shard holds the rows that are left of these, in order, back to back.

        Args:
            shard, attempt: ids of the arrays.
            digest: content digest of their rows, as text.
        """
        e = self.left
        first = e.first + offsets_of(self.row_spans)[e.entry]
        opens = np.ones(len(first), bool)
        opens[1:] = first[1:] != first[:-1] + e.rows[:-1]
        at = np.flatnonzero(opens)
        rows = np.diff(offsets_of(e.rows)[np.append(at, len(first))])
        sums = {
            f: offsets_of(counts)[np.append(at, len(first))] for f, counts in e.elements.items()
        }
        extents = Extents(
            np.zeros(len(at), np.int64),
            first[at],
            offsets_of(rows)[:-1],
            rows,
            {f: column[:-1] for f, column in sums.items()},
            {f: np.diff(column) for f, column in sums.items()},
        )
        return Entries(
            (shard,),
            (attempt,),
            np.array([rows.sum()], np.int64),
            {f: np.array([column[-1]], np.int64) for f, column in sums.items()},
            (digest,),
            np.array([self.row_spans.sum()], np.int64),
            extents,
        ).simplified()

    def to_json(self) -> dict[str, Any]:
        value = {
            "shard": list(self.shard),
            "attempt": list(self.attempt),
            "rows": self.rows.tolist(),
            "elements": {f: counts.tolist() for f, counts in self.elements.items()},
            "digest": list(self.digests),
        }
        if self.spans is not None and self.extents is not None:
            value |= {"span": self.spans.tolist(), "extents": self.extents.to_json()}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Entries:
        whole = "extents" not in value
        return cls(
            tuple(value["shard"]),
            tuple(value["attempt"]),
            np.array(value["rows"], np.int64),
            {f: np.array(counts, np.int64) for f, counts in value["elements"].items()},
            tuple(value["digest"]),
            None if whole else np.array(value["span"], np.int64),
            None if whole else Extents.from_json(value["extents"]),
        )


@dataclass(frozen=True, eq=False)
class Replacement:
    """Shards that others stand for, which take up the same row indices.

    Attributes:
        removed: ids of shards that follow one another, at least one.
        added: what stands there instead.
    """

    removed: tuple[str, ...]
    added: Entries
