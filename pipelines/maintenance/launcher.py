"""Maintenance: compact and delete, as a Beam run and one commit each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cachelib.cache import Cache
from cachelib.errors import LedgerConflict
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Schema
from cachelib.format.storage import Storage
from cachelib.nodes.where import Comparisons
from cachelib.ragged import Ragged
from pipelines.maintenance.changes import Change, Compaction, Deletion
from pipelines.maintenance.tasks import Job, take_outcome, units
from pipelines.plan import SPLIT_BYTES

ROUNDS = 20
"""Times that a deletion begins anew, since shards were compacted meanwhile."""


@dataclass(frozen=True)
class Changed:
    """What a change did.

    Attributes:
        url: of the cache.
        before: the version that was changed.
        version: the version with the change, or None where there was nothing to do.
        shards_before, shards: of the cache before and after.
        rows, tokens: that were deleted.
        left: runs of shards that were left as they are, since they changed meanwhile.
    """

    url: str
    before: int
    version: int | None
    shards_before: int
    shards: int
    rows: int
    tokens: int
    left: int


def compact(
    cache: str | os.PathLike[str],
    *,
    shard_bytes: int = SPLIT_BYTES,
    runner: str = "embedded",
    workers: int = 0,
    beam_arguments: Sequence[str] = (),
) -> Changed:
    """Pack small shards into larger ones, and drop the bytes of deleted rows.

    Rows, row indices, eras and the content digest stay. Shards that are deleted from meanwhile are
    left as they are.

    Args:
        cache: its path or URL.
        shard_bytes: bytes of values in a shard, at most.
        runner, workers, beam_arguments: as of a build.

    Raises:
        ValueError: shard_bytes is not above 0.
        CacheNotFound, CorruptData: there is no cache, or what is packed is damaged.
    """
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes must be at least 1, got {shard_bytes}")
    storage = Storage.at(cache)
    return _change(storage, Compaction(shard_bytes), runner, workers, beam_arguments)


def delete(
    cache: str | os.PathLike[str],
    *,
    sources: Sequence[str] = (),
    where: Sequence[tuple[str, str, Any]] = (),
    rows: Sequence[tuple[int, int]] = (),
    runner: str = "embedded",
    workers: int = 0,
    beam_arguments: Sequence[str] = (),
) -> Changed:
    """Delete the rows for which all that is given holds, as a new version.

    Row indices never shift. Older versions still have the rows, and their bytes stay, until
    `compact` and `gc` have run. A source of which all was deleted is not taken in again. Rows that
    are added while this runs are not looked at.

    Args:
        cache: its path or URL.
        sources: names of sources, in which * stands for any characters, / among them, and ? for
            one; with nothing else given, the records that they had rejected go, too.
        where: comparisons on kept columns, as of `Dataset.where`.
        rows: ranges [start, stop) of row indices.
        runner, workers, beam_arguments: as of a build.

    Raises:
        ValueError: nothing is given; or a comparison, pattern or range that cannot be meant.
        KeyError, TypeError: a column that is not there, or cannot be compared so.
        LedgerConflict: shards kept being compacted.
    """
    storage = Storage.at(cache)
    if isinstance(sources, str):
        raise TypeError(f"sources must be a list of patterns, got {sources!r}")
    if not sources and not where and not rows:
        raise ValueError("give sources, where or rows: nothing says what is to be deleted")
    comparisons = Comparisons.of(where) if where else None
    schema = Ledger(storage).snapshot().commit.schema
    if comparisons is not None:
        _check(schema, comparisons)
    for start, stop in rows:
        if not 0 <= start < stop:
            raise ValueError(f"rows must be ranges [start, stop) from 0 on, got {start} to {stop}")
    deletion = Deletion(
        tuple(sources),
        () if comparisons is None else comparisons.comparisons,
        tuple((int(start), int(stop)) for start, stop in rows),
    )
    for _ in range(ROUNDS):
        changed = _change(storage, deletion, runner, workers, beam_arguments)
        if not changed.left:
            return changed
    raise LedgerConflict(
        f"{storage.url}: shards were compacted {ROUNDS} times while their rows were looked at; "
        "nothing was deleted. Try again when no compaction runs"
    )


def _check(schema: Schema, comparisons: Comparisons) -> None:
    """Ask of no rows what will be asked of all, so that what does not fit is told at once."""
    columns: dict[str, Any] = {}
    for name in comparisons.columns:
        f = schema[name]
        empty = np.empty((0, *f.shape), f.dtype)
        columns[name] = Ragged(empty, np.zeros(1, np.int64)) if f.ragged else empty
    comparisons(columns)


def _change(
    storage: Storage, change: Change, runner: str, workers: int, beam_arguments: Sequence[str]
) -> Changed:
    ledger = Ledger(storage)
    before = ledger.snapshot()
    shards = len(before.entries)
    nothing = Changed(storage.url, before.version, None, shards, shards, 0, 0, 0)
    job = Job(storage.url, before.version, change)
    if not units(job):
        return nothing
    from pipelines.maintenance.transforms import ChangeShards
    from pipelines.runners import run

    run(
        lambda pipeline, lanes: pipeline | _created(job) | "ChangeShards" >> ChangeShards(),
        runner,
        workers=workers,
        processes=False,
        arguments=beam_arguments,
    )
    outcome = take_outcome(job)
    if outcome["version"] is None:
        return replace(nothing, left=outcome["left"])
    after = ledger.commit(outcome["version"])
    parent = ledger.commit(after.version - 1)
    return Changed(
        url=storage.url,
        before=before.version,
        version=after.version,
        shards_before=parent.totals["shards"],
        shards=after.totals["shards"],
        rows=parent.totals["rows"] - after.totals["rows"],
        tokens=parent.totals["elements"].get("tokens", 0)
        - after.totals["elements"].get("tokens", 0),
        left=outcome["left"],
    )


def _created(job: Job) -> Any:
    import apache_beam as beam

    return "Jobs" >> beam.Create([job], reshuffle=False)


def deleted_rows(storage: Storage, version: int) -> Any:
    """The rows that the commit of a version deleted: (row index, source, position), in order."""
    before, after = Cache(storage, version - 1), Cache(storage, version)
    for start in range(0, len(before), 1 << 16):
        rows = np.arange(start, min(start + (1 << 16), len(before)))
        was = rows if before.live is None else rows[before.live.contains(rows)]
        gone = was if after.live is None else was[~after.live.contains(was)]
        if after.live is None or not len(gone):
            continue
        for row, place in zip(gone.tolist(), before.provenance(gone), strict=True):
            yield row, place.source, place.position
