"""Sequencing: shards of a stream into commits, each record once. No Beam here.

What counts is the coverage in the ledger, read anew for every commit, never what a runner
remembers. Of a shard that comes, what is covered is ignored; one that is covered in part is written
again without that part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cachelib.errors import AttemptRetired, IncompatibleCache
from cachelib.format import coverage
from cachelib.format.canonical import digest_of
from cachelib.format.commit import Commit
from cachelib.format.coverage import Taken
from cachelib.format.ledger import Ledger
from cachelib.format.schema import POSITION, SOURCE, Schema
from cachelib.format.shard import (
    Cover,
    Manifest,
    ShardWriter,
    publish,
    read_details,
    read_manifest,
    read_rejects,
)
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import follow
from cachelib.ragged import Ragged
from cachelib.reading.scan import Scan
from pipelines.streams.units import MESSAGES, Shard, Stream, manifest_of


@dataclass(frozen=True)
class Sequenced:
    """What became of the shards that came together.

    Attributes:
        commit: the commit that took some in, None where there was nothing new.
        taken, cut, known, changed: how many shards were taken as they are, written again without
            what was covered, covered already, and left out since their source was taken in with
            other content.
        late: those taken of a source of which later positions were covered before.
        given_up: left out since a gc has given them up; their files are handed out again.
        left_out: names of the sources of those that are left out as changed.
    """

    commit: Commit | None
    taken: int
    cut: int
    known: int
    changed: int
    late: int
    given_up: int
    left_out: frozenset[str] = frozenset()


def sequence(stream: Stream, shards: Iterable[Shard]) -> Sequenced:
    """Commit what is new of shards, in the order of their sources and positions.

    Raises:
        IncompatibleCache: the cache was marked complete, or its rows are made in another way.
        AttemptRetired: a gc has given up messages before they were committed.
        StorageError: the ledger could not be read or written; trying again may help.
    """
    ordered = _in_order(shards)
    ledger = Ledger(stream.storage)
    while True:
        head = ledger.head()
        parent = None if head is None else ledger.snapshot(head)
        taken = {} if parent is None else coverage.merge(ledger.coverage_deltas(parent))
        collected = None if parent is None else parent.commit.collected
        found = _choose(stream, ordered, taken, ledger.retired_attempts(collected))
        if not found.chosen:
            return found.told(None)
        if parent is not None and parent.commit.finished:
            raise IncompatibleCache(
                f"{stream.cache} was marked complete at version {parent.version}, and its stream "
                "has more; begin the stream with reopen: true (--reopen) to add it"
            )
        commit = _commit(stream, ledger, parent, found)
        if ledger.append(commit).digest == commit.digest:
            return found.told(commit)


@dataclass
class _Chosen:
    """The shards to commit, and how many of each kind there were."""

    chosen: list[Manifest]
    versions: dict[str, str]
    taken: int = 0
    cut: int = 0
    known: int = 0
    changed: int = 0
    late: int = 0
    given_up: int = 0
    left_out: frozenset[str] = frozenset()

    def told(self, commit: Commit | None) -> Sequenced:
        counts = (self.taken, self.cut, self.known, self.changed, self.late, self.given_up)
        return Sequenced(commit, *counts, self.left_out)


def _in_order(shards: Iterable[Shard]) -> list[Shard]:
    """Shards by source and position, each once."""

    def place(shard: Shard) -> tuple[Any, ...]:
        covers = [(cover[0], cover[1], cover[2]) for cover in shard.manifest["covers"]]
        return covers, shard.manifest["shard"], shard.manifest["attempt"]

    return list({shard.manifest["shard"]: shard for shard in sorted(shards, key=place)}.values())


def _choose(
    stream: Stream,
    shards: Sequence[Shard],
    before: Mapping[str, Taken],
    retired: Collection[tuple[str, str]],
) -> _Chosen:
    taken = dict(before)
    found = _Chosen([], {})
    for shard in shards:
        manifest = manifest_of(shard)
        if any(_has_changed(taken, cover, shard.versions) for cover in manifest.covers):
            found.changed += 1
            found.left_out |= shard.versions.keys()
            continue
        left = [piece for cover in manifest.covers for piece in _left(taken, cover)]
        if not left:
            found.known += 1
            continue
        whole = tuple(left) == manifest.covers
        lost = (manifest.shard, manifest.attempt) in retired
        if not whole and not lost:
            manifest = cut(stream.storage, stream.making.schema, manifest, left)
            lost = (manifest.shard, manifest.attempt) in retired
        if lost:
            _refuse_messages(stream, shard)
            found.given_up += 1
            continue
        found.taken += whole
        found.cut += not whole
        found.late += any(_is_late(before, cover) for cover in left)
        found.chosen.append(manifest)
        found.versions |= {cover.source: shard.versions[cover.source] for cover in left}
        delta = coverage.delta(manifest.covers, shard.versions)
        old = {name: taken[name] for name in delta["source"] if name in taken}
        taken |= coverage.merge([coverage.columns(old), delta])
    return found


def _refuse_messages(stream: Stream, shard: Shard) -> None:
    """AttemptRetired if a shard is of messages, which nobody can hand out again."""
    if MESSAGES in shard.versions.values():
        raise AttemptRetired(
            f"{stream.cache}: messages of {', '.join(sorted(shard.versions))} were written, and "
            "given up by a gc before they were committed; they are not lost where they came from. "
            "Begin the stream anew from what the ledger covers, and let gc keep what is younger "
            "than a commit of the stream takes (--younger)"
        )


def _has_changed(taken: Mapping[str, Taken], cover: Cover, versions: Mapping[str, str]) -> bool:
    old = taken.get(cover.source)
    return old is not None and bool(old.ranges) and old.version != versions[cover.source]


def _left(taken: Mapping[str, Taken], cover: Cover) -> list[Cover]:
    """What of a cover is not taken in yet."""
    old = taken.get(cover.source)
    if old is None or not old.ranges:
        known = old is not None and cover.start == cover.stop and old.extent == cover.stop
        return [] if known else [cover]
    if cover.start == cover.stop:
        return [] if not cover.ends or old.extent is not None else [cover]
    gaps = []
    at = cover.start
    for start, stop in (*old.ranges, (cover.stop, cover.stop)):
        start, stop = (min(max(end, cover.start), cover.stop) for end in (start, stop))
        if start > at:
            gaps.append(
                replace(cover, start=at, stop=start, ends=cover.ends and start == cover.stop)
            )
        at = max(at, stop)
    return gaps


def _is_late(before: Mapping[str, Taken], cover: Cover) -> bool:
    old = before.get(cover.source)
    return old is not None and bool(old.ranges) and old.ranges[-1][1] > cover.start


def _commit(stream: Stream, ledger: Ledger, parent: Snapshot | None, found: _Chosen) -> Commit:
    covers = [cover for manifest in found.chosen for cover in manifest.covers]
    return follow(
        ledger,
        parent,
        operation="create" if parent is None else "append",
        task={"stream": stream.name, "units": len(found.chosen)},
        schema=stream.making.schema,
        identity=stream.making.identity,
        manifests=found.chosen,
        coverage=coverage.delta(covers, found.versions),
    )


def cut(storage: Storage, schema: Schema, manifest: Manifest, left: Sequence[Cover]) -> Manifest:
    """A shard with only those rows and rejects of another one that some covers hold.

    Its id follows from the two, so that whoever cuts alike adopts it. Of what was counted on the
    way nothing is told, since that is known of the whole shard alone.
    """
    ranges = [[cover.source, cover.start, cover.stop] for cover in left]
    shard = digest_of({"cut": manifest.shard, "to": ranges})
    there = read_manifest(storage, shard)
    if there is not None:
        return there
    writer = ShardWriter(storage, schema, shard)
    if manifest.rows:
        names = read_details(storage, manifest.shard, manifest.attempt)["sources"]
        scan = Scan(
            storage, schema, manifest.shard, manifest.attempt, manifest.rows, manifest.elements
        )
        for _, columns in scan.blocks((*schema.fields, SOURCE, POSITION)):
            sources, positions = columns.pop(SOURCE.name), columns.pop(POSITION.name)
            assert isinstance(sources, np.ndarray)
            assert isinstance(positions, np.ndarray)
            for number, name in enumerate(names):
                rows = np.flatnonzero((sources == number) & _within(name, positions, left))
                if len(rows):
                    own = {
                        field: column.take(rows) if isinstance(column, Ragged) else column[rows]
                        for field, column in columns.items()
                    }
                    indices = np.full(len(rows), writer.source(name), np.uint32)
                    writer.append(own, indices, positions[rows])
    for each in read_rejects(storage, manifest.shard, manifest.attempt):
        if _within(each["source"], np.array([each["position"]]), left)[0]:
            writer.reject(**each)
    task = {**manifest.task, "cut": manifest.shard}
    return publish(storage, writer.finish(covers=left, counts={}, task=task))


def _within(source: str, positions: np.ndarray, covers: Sequence[Cover]) -> np.ndarray:
    """Which positions of a source covers hold: bool of their shape."""
    held = np.zeros(positions.shape, bool)
    for cover in covers:
        if cover.source == source:
            held |= (positions >= cover.start) & (positions < cover.stop)
    return held
