"""Worker: the splits of a plan, read, tokenized and written as shards. No Beam here.

A split becomes one part after another, each a shard that is published before the next is begun.
Where a part ends depends on where it begins and on what is read, so that a retry goes on after the
last published part and makes the same parts as a run that was never interrupted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from cachelib.errors import SourceError
from cachelib.format.shard import Cover, Manifest, ShardWriter, publish, read_manifest
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from pipelines.borders import Borders
from pipelines.choice import chosen
from pipelines.columns import columns_of
from pipelines.overlap import AtOnce, WriteBehind, read_ahead
from pipelines.plan import Piece, Plan, shard_id
from pipelines.runs import RunWriter
from pipelines.sources import read, url_of
from pipelines.sources.records import Reading, Records, Source
from pipelines.sources.watch import Mark, check_inspected, check_unchanged
from pipelines.tokenization import Encoder, differing
from pipelines.tokenization.arrow import buffers, take

READ_AHEAD = 4
"""Blocks of records that are read before they are needed."""

AUDIT = "forebay.audit"
AUDIT_RATE = 1 / 2000
"""Share of rows that are tokenized by both engines before a part is published."""

AUDIT_BYTES = 64 << 10
"""Besides, the first row of a part with no more text than this is: short parts have few rows."""

WRITE_BEHIND = 4
"""Batches of rows that may wait to be written."""

BATCH_BYTES = 2 << 20
"""Bytes of text that are tokenized at once, at least, unless a part ends."""


@dataclass(frozen=True)
class Workplace:
    """All that the work on a plan's splits needs.

    Attributes:
        storage: of the cache.
        plan, name: the plan and its digest.
        roots: where the plan's sources lie in this run.
        inspected_ns: when the sources were inspected for this run, since the epoch.
        encoder: of the plan's tokenizer.
        records: gives those in a range of a source that is no file; None for `sources.read`.
    """

    storage: Storage
    plan: Plan
    name: str
    roots: tuple[str, ...]
    inspected_ns: int
    encoder: Encoder
    records: Callable[[str, Source, int, int | None, Reading], Iterator[Records]] | None = None

    def read(self, url: str, piece: Piece) -> Iterator[Records]:
        """The records of a piece, which lies at a URL."""
        source = self.plan.sources[piece.source]
        return (self.records or read)(url, source, piece.start, piece.stop, self.plan.reading)


@dataclass(frozen=True)
class _Published:
    """A part that an earlier attempt finished."""

    manifest: Manifest


@dataclass(frozen=True)
class _Begin:
    """A split, or what earlier attempts left of it, begins with a part of this number."""

    split: int
    part: int


@dataclass(frozen=True)
class _Batch:
    """Records of one piece of the split that was begun."""

    piece: int
    records: Records
    ends: bool  # whether these are the last of the piece
    url: str
    mark: Mark | None  # of the file, before it was read


@dataclass(frozen=True)
class _End:
    """The split's last piece is read."""


_Event = _Published | _Begin | _Batch | _End


def write_splits(work: Workplace, splits: Iterable[int]) -> Iterator[Manifest]:
    """Write the parts of splits that are not published yet; yields the manifests of all parts.

    While records are tokenized the next are being read, also of the next split, and the ones before
    are being written and published.
    """
    events = read_ahead(_events(work, splits), READ_AHEAD)
    parts: deque[Future[Manifest]] = deque()
    with WriteBehind(WRITE_BEHIND) as behind:
        for event in events:
            if isinstance(event, _Published):
                yield event.manifest
            elif isinstance(event, _Begin):
                for part in _write_parts(work, event, events, behind):
                    parts.append(part)
                    while parts[0].done() and len(parts) > 1:
                        yield parts.popleft().result()
        while parts:
            yield parts.popleft().result()


def _events(work: Workplace, splits: Iterable[int]) -> Iterator[_Event]:
    for split in splits:
        pieces = work.plan.splits[split].pieces
        part, at, done = 0, (0, pieces[0].start), False
        while not done and (manifest := _published(work, split, part)) is not None:
            yield _Published(manifest)
            part += 1
            done = manifest.task["next"] is None
            if not done:
                at = tuple(manifest.task["next"])
        if done:
            continue
        yield _Begin(split, part)
        for index in range(at[0], len(pieces)):
            piece = pieces[index]
            start = at[1] if index == at[0] else piece.start
            yield from _batches(work, index, replace(piece, start=start))
        yield _End()


def _published(work: Workplace, split: int, part: int) -> Manifest | None:
    return read_manifest(work.storage, shard_id(work.name, split, part))


def _batches(work: Workplace, index: int, piece: Piece) -> Iterator[_Batch]:
    source = work.plan.sources[piece.source]
    url = url_of(work.roots[source.root], source)
    before: Records | None = None
    with _blaming(source.name):
        mark = check_inspected(url, source, work.inspected_ns)
        for records in work.read(url, piece):
            if before is not None:
                yield _Batch(index, before, False, url, mark)
            before = records
    if before is None:
        before = Records.empty(work.plan.reading, piece.start, piece.stop or piece.start)
    yield _Batch(index, before, True, url, mark)


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Errors of a source say which one it is."""
    try:
        yield
    except SourceError as error:
        error.source = name
        raise


def _write_parts(
    work: Workplace, begin: _Begin, events: Iterator[_Event], behind: WriteBehind
) -> Iterator[Future[Manifest]]:
    """The parts of one split, from the events up to its end."""
    part = _Part(work, begin.split, begin.part, behind)
    borders = Borders(work.plan.split_bytes)
    for event in events:
        if isinstance(event, _End):
            break
        assert isinstance(event, _Batch)
        piece = work.plan.splits[begin.split].pieces[event.piece]
        source = work.plan.sources[piece.source]
        at = event.records.start
        for border in borders.within(event.piece, source, event.records):
            if border > at:
                part.add(event.piece, source.name, _between(event.records, at, border))
                part.marks[source.name, event.url] = event.mark
            yield part.publish(following=(event.piece, border))
            part = _Part(work, begin.split, part.number + 1, behind)
            at = border
        part.add(event.piece, source.name, _between(event.records, at, event.records.stop))
        part.marks[source.name, event.url] = event.mark
        if event.ends:
            part.close_piece(source, piece)
    yield part.publish(following=None)


def _holds(run: Records) -> bool:
    """Whether any record begins in a run, rejects included."""
    return len(run) > 0 or len(run.rejects) > 0


def _between(records: Records, start: int, stop: int) -> Records:
    """The records that begin in [start, stop)."""
    if (start, stop) == (records.start, records.stop):
        return records
    low, high = np.searchsorted(records.positions, (start, stop))
    return Records(
        text=records.text[low:high],
        keep={name: column[low:high] for name, column in records.keep.items()},
        positions=records.positions[low:high],
        rejects=tuple(r for r in records.rejects if start <= r.position < stop),
        replaced=records.replaced if start == records.start else 0,
        omitted=records.omitted[(records.omitted >= start) & (records.omitted < stop)],
        start=start,
        stop=stop,
    )


@dataclass
class _Part:
    """One part while it is written.

    Its writer and its counts belong to the tasks that are handed to `behind`, one after another.

    Attributes:
        number: of the part in its split.
        behind: does the writing.
        exact: tokenize with the exact engine only.
    """

    work: Workplace
    split: int
    number: int
    behind: WriteBehind | AtOnce
    exact: bool = False
    covers: list[Cover] = field(default_factory=list)
    marks: dict[tuple[str, str], Mark | None] = field(default_factory=dict)
    _covered: int = -1  # the piece of the last cover
    _waiting: list[tuple[str, Records]] = field(default_factory=list)
    _waiting_bytes: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _begun: bool = False  # whether a row was found that is audited whatever its position
    _sample: list[tuple[pa.LargeStringArray, Ragged]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, shard = self.work.plan, shard_id(self.work.name, self.split, self.number)
        self._writer: ShardWriter | RunWriter
        if plan.order.sorts:
            self._writer = RunWriter(self.work.storage, plan.schema, shard, plan.order)
        else:
            self._writer = ShardWriter(self.work.storage, plan.schema, shard)

    def add(self, piece: int, name: str, records: Records) -> None:
        """Take in a run of a source's records, which are of one piece."""
        if self._covered == piece:
            self.covers[-1] = replace(self.covers[-1], stop=records.stop)
        else:
            self._covered = piece
            self.covers.append(Cover(name, records.start, records.stop, False))
        if len(records.omitted):
            self.behind.do(partial(self._count, "omitted", len(records.omitted)))
        if _holds(records):
            self._waiting.append((name, records))
            self._waiting_bytes += records.text.nbytes
            if self._waiting_bytes >= BATCH_BYTES:
                self._flush()

    def close_piece(self, source: Source, piece: Piece) -> None:
        """Note that a piece is read to its end, and whether that is the source's."""
        ends = piece.stop is None or piece.stop == source.extent
        self.covers[-1] = replace(self.covers[-1], ends=ends)

    def _count(self, name: str, more: int) -> None:
        if more:
            self._counts[name] = self._counts.get(name, 0) + more

    def _flush(self) -> None:
        """Tokenize what waits, and hand it over to be written."""
        if not self._waiting:
            return
        runs, self._waiting, self._waiting_bytes = self._waiting, [], 0
        text = _joined([records.text for _, records in runs])
        tokens = self.work.encoder.encode(text, exact=self.exact)
        self.behind.do(lambda: self._write(runs, text, tokens))

    def _write(
        self, runs: list[tuple[str, Records]], text: pa.LargeStringArray, tokens: Ragged
    ) -> None:
        for name, records in runs:
            for r in records.rejects:
                self._writer.reject(name, r.position, r.reason, r.detail, r.excerpt)
            self._count("replaced", records.replaced)
        keep = {
            column: _joined([records.keep[column] for _, records in runs])
            for column in runs[0][1].keep
        }
        indices = np.array([self._writer.source(name) for name, _ in runs], np.uint32)
        self._writer.append(
            columns_of(self.work.plan.schema, tokens, keep),
            np.repeat(indices, [len(records) for _, records in runs]),
            np.concatenate([records.positions for _, records in runs]),
        )
        sizes = np.diff(buffers(text)[0])
        self._count("empty", int(np.count_nonzero(sizes == 0)))
        if not self.exact and self.work.encoder.fast is not None:
            audited = np.concatenate(
                [chosen(AUDIT, 0, name, records.positions, AUDIT_RATE) for name, records in runs]
            )
            if not self._begun:
                first = np.flatnonzero((sizes > 0) & (sizes <= AUDIT_BYTES))[:1]
                audited[first] = self._begun = len(first) > 0
            rows = np.flatnonzero(audited)
            if len(rows):
                self._sample.append((take(text, rows), tokens.take(rows)))

    def publish(self, following: tuple[int, int] | None) -> Future[Manifest]:
        """Have the part finished and published.

        Args:
            following: piece and position at which the next part begins, None after the last.
        """
        self._flush()
        return self.behind.do(lambda: self._publish(following))

    def _publish(self, following: tuple[int, int] | None) -> Manifest:
        """Publish what is written, or what is written anew where the audit finds a difference."""
        if self._audit_differs():
            return self._again(following)
        for (name, url), before in self.marks.items():
            with _blaming(name):
                check_unchanged(url, before)
        manifest = self._writer.finish(
            covers=self.covers,
            counts=self._counts,
            task={
                "plan": self.work.name,
                "split": self.split,
                "part": self.number,
                "next": None if following is None else list(following),
            },
        )
        return publish(self.work.storage, manifest)

    def _audit_differs(self) -> bool:
        wrong = 0
        for text, tokens in self._sample:
            self._count("audited", len(tokens))
            wrong += len(differing(self.work.encoder, text, tokens))
        self._sample = []
        return wrong > 0

    def _again(self, following: tuple[int, int] | None) -> Manifest:
        """Write the part again, tokenized with the exact engine only."""
        again = _Part(self.work, self.split, self.number, AtOnce(), exact=True)
        again._count("redone", 1)
        again.marks |= self.marks
        sources = {source.name: index for index, source in enumerate(self.work.plan.sources)}
        for number, cover in enumerate(self.covers):
            index = sources[cover.source]
            source = self.work.plan.sources[index]
            url = url_of(self.work.roots[source.root], source)
            stop = None if cover.ends and source.extent is None else cover.stop
            with _blaming(cover.source):
                for records in self.work.read(url, Piece(index, cover.start, stop)):
                    again.add(number, cover.source, records)
            again.covers[-1] = cover
        return again.publish(following).result()


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
