"""Plan: what a build sets out to do, from sources and coverage to splits and waves. Pure.

A split is a run of pieces, each a range of one source: one piece of a large file, or many small
files. Waves are runs of splits; the first is one split, and each is twice the one before, up to a
limit; some of them end an era. A plan is made once, stored under its digest and executed; its
digest leaves out where the sources lie, so that a moved folder continues the same plan.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from cachelib.errors import SourceChanged
from cachelib.format.canonical import digest, digest_of
from cachelib.format.coverage import Coverage
from cachelib.format.schema import Schema
from pipelines.order.orders import SOURCE, Order, parse_order
from pipelines.sources.records import Reading, Source

SPLIT_BYTES = 64 << 20
"""Decompressed bytes of a split and of a part, about."""

WAVE_SPLITS = 64
"""Splits' worth of bytes in a wave, at most."""

ERA_BYTES = 32 << 20
"""Bytes of text from which on a wave ends an era: some 4,000 windows of 2,048 tokens, enough to be
shuffled among one another, and few enough that a follower waits seconds and not minutes for them.
The limit of a wave is that of an era, too."""

PIPELINE_SPLITS = 64
"""Splits' worth of bytes in the waves that one pipeline writes, at most, unless it is one wave."""

# Bytes of text that a stored byte stands for, about; only splits' and waves' sizes rest on it.
_EXPANSION = {"gz": 4.0, "zst": 4.0, "bz2": 5.0, "xz": 6.0, "parquet": 2.5}


@dataclass(frozen=True)
class Piece:
    """Positions [start, stop) of one source; a stop of None is the source's end.

    Attributes:
        source: index into the plan's sources.
    """

    source: int
    start: int
    stop: int | None


@dataclass(frozen=True)
class Split:
    """One unit of work: pieces read one after another.

    Attributes:
        pieces: at least one.
        size: bytes of text, about.
    """

    pieces: tuple[Piece, ...]
    size: int


@dataclass(frozen=True)
class Plan:
    """A stored plan.

    Attributes:
        parent: digest of the commit that the plan follows, "" where there is no cache yet.
        parent_version: that commit's version, -1 where there is none.
        schema, identity: of the rows.
        reading: how records become text.
        tokenizer: the prepared tokenizer, as JSON.
        sources: the files to read.
        splits: the work; without an order, as its rows will lie.
        waves: splits [waves[w], waves[w + 1]) are wave w.
        split_bytes: bytes of a split and of a part, about; see `borders.Borders`.
        order: of the rows; where it sorts, all splits are one wave.
        seals_last: whether the last wave ends an era, however little there is since the one before.
    """

    parent: str
    parent_version: int
    schema: Schema
    identity: dict[str, Any]
    reading: Reading
    tokenizer: dict[str, Any]
    sources: tuple[Source, ...]
    splits: tuple[Split, ...]
    waves: tuple[int, ...]
    split_bytes: int
    order: Order = SOURCE
    seals_last: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "parent": self.parent,
            "parent_version": self.parent_version,
            "schema": self.schema.to_json(),
            "identity": self.identity,
            "reading": self.reading.to_json(),
            "tokenizer": self.tokenizer,
            "sources": _columns(self.sources),
            "splits": [
                [split.size, [[p.source, p.start, p.stop] for p in split.pieces]]
                for split in self.splits
            ],
            "waves": list(self.waves),
            "split_bytes": self.split_bytes,
            # Left out where they say what plans of earlier versions mean, which lack them.
            **({"order": str(self.order)} if self.order.sorts else {}),
            **({} if self.seals_last else {"seals_last": False}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        return cls(
            parent=value["parent"],
            parent_version=value["parent_version"],
            schema=Schema.from_json(value["schema"]),
            identity=dict(value["identity"]),
            reading=Reading.from_json(value["reading"]),
            tokenizer=dict(value["tokenizer"]),
            sources=_sources(value["sources"]),
            splits=tuple(
                Split(tuple(Piece(*piece) for piece in pieces), size)
                for size, pieces in value["splits"]
            ),
            waves=tuple(value["waves"]),
            split_bytes=value["split_bytes"],
            order=parse_order(value.get("order", "source")),
            seals_last=value.get("seals_last", True),
        )

    @property
    def name(self) -> str:
        """The place in the ledger that the plan is made for, and its digest; computed anew."""
        return f"{self.parent_version + 1:06d}-{digest_of(self.to_json())}"

    @property
    def size(self) -> int:
        """Bytes of text to read, about."""
        return sum(split.size for split in self.splits)

    def wave(self, number: int) -> range:
        """The splits of a wave."""
        return self.splits_of(range(number, number + 1))

    def splits_of(self, waves: range) -> range:
        """The splits of waves that follow one another."""
        return range(self.waves[waves.start], self.waves[waves.stop])

    def together(self, wave: int) -> range:
        """The waves that one pipeline writes, from a wave on: at least that one."""
        limit = PIPELINE_SPLITS * self.split_bytes
        size = 0
        for number in range(wave, self.wave_count):
            size += sum(self.splits[split].size for split in self.wave(number))
            if size > limit and number > wave:
                return range(wave, number)
        return range(wave, self.wave_count)

    @property
    def wave_count(self) -> int:
        return len(self.waves) - 1

    def seals(self, wave: int) -> bool:
        """Whether an era ends with a wave."""
        return wave in self._sealing

    @cached_property
    def _sealing(self) -> frozenset[int]:
        """The waves that end an era: each that brings `ERA_BYTES` since the one before, the first
        one of a new cache, whose readers wait for it, the last one, and one of sorted rows."""
        found = set()
        size = 0
        for wave in range(self.wave_count):
            size += sum(self.splits[split].size for split in self.wave(wave))
            first = wave == 0 and not self.parent
            last = wave == self.wave_count - 1 and self.seals_last
            if size >= ERA_BYTES or first or last or self.order.sorts:
                found.add(wave)
                size = 0
        return frozenset(found)


def _columns(sources: Sequence[Source]) -> dict[str, list[Any]]:
    return {f.name: [getattr(source, f.name) for source in sources] for f in fields(Source)}


def _sources(columns: Mapping[str, Sequence[Any]]) -> tuple[Source, ...]:
    rows = zip(*(columns[f.name] for f in fields(Source)), strict=True)
    return tuple(_source(*row) for row in rows)


def _source(*values: Any) -> Source:
    named = dict(zip((f.name for f in fields(Source)), values, strict=True))
    return Source(**{**named, "splits_at": tuple(named["splits_at"])})


def shard_id(plan: str, split: int, part: int) -> str:
    """The id of one part's shard: a digest, good for reuse within one plan only."""
    return digest(f"{plan}/{split}/{part}".encode("ascii"))


@dataclass(frozen=True)
class Work:
    """What is to be read, found by `remaining`.

    Attributes:
        pieces: in source order.
        reused: number of sources that are taken in already, wholly.
        changed: names of sources that changed since they were taken in.
        twins: (name, other name) of sources to be read whose content was taken in under another
            name; empty files are none.
    """

    pieces: tuple[Piece, ...]
    reused: int
    changed: tuple[str, ...]
    twins: tuple[tuple[str, str], ...]


def remaining(sources: Sequence[Source], coverage: Coverage) -> Work:
    """What of the sources the coverage lacks."""
    pieces: list[Piece] = []
    reused = 0
    changed = []
    twins = []
    names = {taken.version: name for name, taken in coverage.items()}
    for index, source in enumerate(sources):
        taken = coverage.get(source.name)
        if taken is not None and taken.version != source.version and not taken.ranges:
            taken = None  # it was empty and has been filled
        if taken is None:
            pieces.append(Piece(index, 0, source.extent))
            if source.version in names and source.size:
                twins.append((source.name, names[source.version]))
        elif taken.version != source.version:
            changed.append(source.name)
        else:
            missing = taken.missing(source.extent)
            pieces += [Piece(index, start, stop) for start, stop in missing]
            reused += not missing
    return Work(tuple(pieces), reused, tuple(changed), tuple(twins))


def check_unchanged(work: Work, sources: Sequence[Source], coverage: Coverage) -> None:
    """Refuse sources that are no longer what was taken in.

    Raises:
        SourceChanged: naming the first few.
    """
    if not work.changed:
        return
    by_name = {source.name: source for source in sources}
    name = work.changed[0]
    more = f" (and {len(work.changed) - 1} more)" if len(work.changed) > 1 else ""
    raise SourceChanged(
        f"source {name!r}{more} was taken in with content {coverage[name].version} and is now "
        f"{by_name[name].version} ({by_name[name].path}). Rows of the old content stay in the "
        "cache. If this is another file, give its input a name (NAME=PATTERN); if it was edited, "
        "restore it or build a new cache; changed: skip (--changed skip) leaves it out"
    )


def bytes_of(source: Source, start: int, stop: int | None) -> int:
    """Bytes of text in a range of a source, about."""
    kind = source.compression or source.format
    whole = source.size * _EXPANSION.get(kind, 1.0)
    if source.extent is None:
        return max(0, int(whole) - start)
    end = source.extent if stop is None else stop
    return int(whole * (end - start) / max(1, source.extent))


def split_unit(source: Source, split_bytes: int) -> int:
    """Positions of a source that may be cut at whose multiples a split ends, about.

    Bytes where positions are bytes; rows of about that many bytes where they are rows.
    """
    if source.format in ("parquet", "arrow") and source.extent:
        return max(1, split_bytes * source.extent // max(1, bytes_of(source, 0, None)))
    return split_bytes


def _cut(piece: Piece, source: Source, split_bytes: int) -> Iterator[Piece]:
    """A piece cut where its source may be cut, into pieces of about a split each."""
    if piece.stop is None or source.extent is None or source.compression is not None:
        yield piece
        return
    unit = split_unit(source, split_bytes)
    start = piece.start
    while start < piece.stop:
        stop = min(piece.stop, (start // unit + 1) * unit)
        if source.format in ("parquet", "arrow"):
            allowed = source.splits_at
            after = bisect.bisect_left(allowed, stop)
            stop = allowed[after] if after < len(allowed) else piece.stop
            stop = min(stop, piece.stop)
        elif source.format not in ("jsonl", "text-lines"):
            stop = piece.stop
        yield Piece(piece.source, start, stop)
        start = stop
    if piece.start == piece.stop:
        yield piece


def make_splits(
    pieces: Iterable[Piece], sources: Sequence[Source], split_bytes: int
) -> tuple[Split, ...]:
    """Pieces as splits of about `split_bytes`: large pieces cut, small ones joined, order kept."""
    splits: list[Split] = []
    run: list[Piece] = []
    size = 0
    for whole in pieces:
        for piece in _cut(whole, sources[whole.source], split_bytes):
            more = bytes_of(sources[piece.source], piece.start, piece.stop)
            if run and size + more > split_bytes:
                splits.append(Split(tuple(run), size))
                run, size = [], 0
            run.append(piece)
            size += more
    if run:
        splits.append(Split(tuple(run), size))
    return tuple(splits)


def spread(splits: Sequence[Split], sources: Sequence[Source]) -> tuple[Split, ...]:
    """Splits in the order of a hash of what they begin with, so that early ones are a sample."""

    def key(split: Split) -> str:
        first = split.pieces[0]
        return digest(f"spread/{sources[first.source].name}/{first.start}".encode())

    return tuple(sorted(splits, key=key))


def make_waves(splits: Sequence[Split], split_bytes: int) -> tuple[int, ...]:
    """Limits of waves over splits: the first wave is one split, each about twice the one before.

    A remainder smaller than half its wave joins the wave before it.
    """
    limits = [0]
    target = split_bytes
    size = 0
    for index, split in enumerate(splits):
        size += max(1, split.size)
        if size >= target or index == 0:
            limits.append(index + 1)
            target = min(2 * target, WAVE_SPLITS * split_bytes)
            size = 0
    if limits[-1] < len(splits):
        if size < target // 2 and len(limits) > 2:
            limits[-1] = len(splits)
        else:
            limits.append(len(splits))
    return tuple(limits)
