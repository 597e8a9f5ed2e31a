"""Gc: what no version needs that is kept is given up by a commit, and then deleted by a Beam run.

Only what commits gave up is deleted, and no later commit may name it (`Ledger.append`). So whoever
is killed here leaves nothing half done that the next gc does not end, and any number of them may
run at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cachelib.errors import CacheNotFound, CorruptData, LedgerConflict
from cachelib.format.commit import Commit
from cachelib.format.ledger import Ledger, no_cache
from cachelib.format.pins import Pin, all_pins
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import retire
from cachelib.words import counted, size
from pipelines.maintenance.garbage import (
    Attempt,
    Expired,
    Garbage,
    History,
    attributed,
    garbage,
    in_progress,
    position,
)
from pipelines.maintenance.objects import Stored, listed
from pipelines.maintenance.removal import published
from pipelines.maintenance.survey import UNFINISHED, Survey, loose_attempts, written
from pipelines.plan import shard_id
from pipelines.ranges import remove_runs, shards_begun
from pipelines.runs import RUNS
from pipelines.tasks import load_plan

KEEP = 10
"""Newest versions that are kept, if nothing else is said."""

YOUNGER = 7 * 24 * 3600.0
"""Age in seconds below which versions and unfinished work are kept, if nothing else is said."""

UNFINISHED_SECONDS = 3600.0
"""Age below which a file that is being written is left alone in any case."""

PARTS_BEGUN = 8
"""Parts of a split that may have been begun before the first of them is published, at most."""

COMMITS_AT_ONCE = 64
TRIES = 1000
ATTEMPTS_AT_ONCE = 64
"""Attempts that one task deletes."""


@dataclass(frozen=True)
class Collected:
    """What a gc did, or would do.

    Attributes:
        url: of the cache.
        version: the newest version afterwards.
        dry_run: whether nothing was done.
        kept: the first of the newest versions that are kept.
        pins: names and versions that are kept besides.
        expired: versions [start, stop) that cannot be read any more, those of earlier times
            included.
        newly_expired: how many of them could be read before.
        attempts, objects, bytes: that were deleted; of objects that no attempt is, as well.
        waiting: attempts that no version names, but that are too young, or of a plan in progress.
        broken: names of pins whose versions have expired.
    """

    url: str
    version: int
    dry_run: bool
    kept: int
    pins: dict[str, int]
    expired: tuple[tuple[int, int], ...]
    newly_expired: int
    attempts: int
    objects: int
    bytes: int
    waiting: int
    broken: tuple[str, ...]


@dataclass(frozen=True)
class _Candidates:
    """What may go, as was looked up once: what is written later is no part of it.

    Attributes:
        survey: of what lies in the cache.
        first: the first version that is kept for its age.
        old, young: attempts that no version named, which may go, or must wait.
        plans: those in progress.
    """

    survey: Survey
    first: int
    old: frozenset[Attempt]
    young: frozenset[Attempt]
    plans: tuple[str, ...]


@dataclass(frozen=True)
class _Found:
    """What is to be done, as of a version.

    Attributes:
        head: the commit of that version.
        first, pins: the versions that are kept.
        garbage, expired: what is to go.
        new: attempts that no commit gave up yet.
        waiting: how many attempts no version names that are to stay.
    """

    head: Commit
    first: int
    pins: tuple[Pin, ...]
    garbage: Garbage
    expired: list[Expired]
    new: frozenset[Attempt]
    waiting: int

    def expires(self, version: int) -> bool:
        return any(start <= version < stop for start, stop, _ in self.expired)

    @property
    def settled(self) -> bool:
        """Whether the ledger says so already."""
        said = [] if self.head.collected is None else self.head.collected["expired"]
        return not self.new and [list(each) for each in self.expired] == said


def gc(
    cache: str | os.PathLike[str],
    *,
    keep: int = KEEP,
    younger: float = YOUNGER,
    dry_run: bool = False,
    runner: str = "embedded",
    workers: int = 0,
    beam_arguments: Sequence[str] = (),
) -> Collected:
    """Delete what no version needs that is kept, and what killed or failed writers left behind.

    Kept are the newest versions, those that are younger than an age, those that have a pin, and
    what a plan in progress has written. A version of which anything was deleted has expired:
    opening it raises `SnapshotExpired`. Commits are never deleted.

    Args:
        cache: its path or URL.
        keep: number of the newest versions that are kept, at least 1.
        younger: age in seconds below which versions are kept, and what writers have not committed.
        dry_run: only tell what would be done.
        runner, workers, beam_arguments: as of a build.

    Raises:
        ValueError: keep or younger are too small.
        CacheNotFound, CorruptData: there is no cache, or its ledger is damaged.
        StorageError: something could not be deleted; the next gc goes on with it.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    if not younger >= 0:
        raise ValueError(f"younger must be an age in seconds, 0 or more, got {younger}")
    storage = Storage.at(cache)
    ledger = Ledger(storage)
    cutoff = time.time() - younger
    if ledger.head() is None:
        raise _nothing_committed(storage)
    before = _versions(ledger.snapshot().commit)
    survey = Survey.of(listed(storage, "shards"))
    history = History()
    _catch_up(ledger, history, ledger.snapshot())
    candidates = _candidates(storage, history, survey, younger, cutoff)
    found = _settled(ledger, history, candidates, keep, younger, dry_run)
    doomed = sorted(
        attempt
        for attempt in found.garbage.attempts
        if attempt in survey.folders
        or (attempt[0] in survey.manifests and published(storage, attempt))
    )
    remains = list(_remains(storage, candidates, younger, cutoff))
    if not dry_run:
        if doomed:
            _run(storage, doomed, runner, workers, beam_arguments)
        for stored in remains:
            storage.delete(stored.key)
        remove_runs(storage)
    folders = [survey.folders[attempt] for attempt in doomed if attempt in survey.folders]
    return Collected(
        url=storage.url,
        version=found.head.version,
        dry_run=dry_run,
        kept=found.first,
        pins={pin.name: pin.version for pin in found.pins},
        expired=found.garbage.expired,
        newly_expired=sum(stop - start for start, stop in found.garbage.expired) - before,
        attempts=len(doomed),
        objects=sum(folder.objects for folder in folders) + len(remains),
        bytes=sum(folder.bytes for folder in folders) + sum(each.size for each in remains),
        waiting=found.waiting,
        broken=tuple(pin.name for pin in found.pins if found.expires(pin.version)),
    )


def _nothing_committed(storage: Storage) -> CacheNotFound:
    """The error for a place without a commit, which may hold what a killed build wrote."""
    left = [stored for part in ("shards", RUNS.rstrip("/")) for stored in listed(storage, part)]
    error = no_cache(storage)
    if not left:
        return error
    return CacheNotFound(
        f"{error}, but {counted(len(left), 'object')} ({size(sum(o.size for o in left))}) of a "
        "build that committed nothing yet. Build again to go on with it, or delete the folder"
    )


def _versions(head: Commit) -> int:
    """How many versions have expired."""
    ranges = [] if head.collected is None else head.collected["expired"]
    return sum(stop - start for start, stop, _ in ranges)


def _catch_up(ledger: Ledger, history: History, snapshot: Snapshot) -> None:
    """Let a history take in the commits up to a snapshot."""
    for first in range(history.versions, snapshot.version + 1, COMMITS_AT_ONCE):
        for commit in ledger.commits(first, min(first + COMMITS_AT_ONCE, snapshot.version + 1)):
            history.add(commit)


def _settled(
    ledger: Ledger,
    history: History,
    candidates: _Candidates,
    keep: int,
    younger: float,
    dry_run: bool,
) -> _Found:
    """What is garbage, once the ledger says so and pins that were made meanwhile are respected."""
    for _ in range(TRIES):
        snapshot = ledger.snapshot()
        _catch_up(ledger, history, snapshot)
        found = _look(ledger, history, snapshot.commit, candidates, keep)
        if dry_run:
            return found
        if not found.settled:
            _give_up(ledger, snapshot, found, keep, younger)
        elif tuple(all_pins(ledger.storage)) == found.pins:
            return found
    raise LedgerConflict(
        f"{ledger.storage.url}: {TRIES} commits of other writers came before this one. Nothing is "
        "damaged; try again when fewer are made"
    )


def _give_up(ledger: Ledger, parent: Snapshot, found: _Found, keep: int, younger: float) -> None:
    """Commit what is garbage; another writer may have been first, and then that is looked at."""
    ledger.append(
        retire(
            ledger,
            parent,
            task={"keep": keep, "younger": round(younger)},
            attempts=sorted(found.new),
            expired=found.expired,
        )
    )


def _look(
    ledger: Ledger, history: History, head: Commit, candidates: _Candidates, keep: int
) -> _Found:
    """What is garbage as of a version."""
    pins = tuple(all_pins(ledger.storage))
    first = min(history.newest(keep), candidates.first)
    retired = ledger.retired_attempts(head.collected)
    named, folders = history.rows, candidates.survey.folders
    gone = {
        attempt
        for attempt in retired & named.keys()
        if named[attempt] and not (attempt in folders and folders[attempt].whole)
    }
    loose = (candidates.old | (candidates.young & retired)) - named.keys()
    found = garbage(history, first, [pin.version for pin in pins], retired, gone, loose)
    before = [] if head.collected is None else head.collected["expired"]
    return _Found(
        head=head,
        first=first,
        pins=pins,
        garbage=found,
        expired=attributed(found.expired, [tuple(each) for each in before], head.version + 1),
        new=found.attempts - retired,
        waiting=len(candidates.young - retired - named.keys()),
    )


def _candidates(
    storage: Storage, history: History, survey: Survey, younger: float, cutoff: float
) -> _Candidates:
    """What may go but for the versions that are kept. The survey is older than the history."""
    plans = _plans_in_progress(storage, history)
    writing = {s for plan, done in plans.items() for s in _writing(storage, survey, plan, done)}
    old: set[Attempt] = set()
    young: set[Attempt] = set()
    for each in loose_attempts(storage, survey, history.rows):
        busy = each.plan in plans or (not each.published and each.attempt[0] in writing)
        aged = younger == 0 or each.modified < cutoff
        (old if aged and not busy else young).add(each.attempt)
    first = _first_young(storage, cutoff, history.versions) if younger > 0 else history.versions
    return _Candidates(survey, first, frozenset(old), frozenset(young), tuple(plans))


def _first_young(storage: Storage, cutoff: float, versions: int) -> int:
    """The first version that was committed since a time, or of which that is not known."""
    first = versions
    for stored in listed(storage, "_ledger"):
        name = stored.key.removeprefix("_ledger/").removesuffix(".json")
        if len(name) == 20 and name.isdigit() and written(stored) >= cutoff:
            first = min(first, int(name))
    return first


def _plans_in_progress(storage: Storage, history: History) -> dict[str, int]:
    """The plans that can be gone on with, and how many of their waves are committed."""
    last = max((version for version, _ in history.appends), default=-1)
    newest = {plan for version, plan in history.appends if version == last}
    names = [key.removeprefix("_plans/").removesuffix(".json") for key in storage.list("_plans/")]
    waves = {}
    for name in names:
        if position(name) > last or name in newest:
            with suppress(CorruptData):  # nobody can go on with that one
                waves[name] = load_plan(storage.url, name).wave_count
    done = [plan for _, plan in history.appends]
    return {name: done.count(name) for name in in_progress(waves, history.appends)}


def _writing(storage: Storage, survey: Survey, name: str, waves: int) -> Iterator[str]:
    """Ids of the shards that a plan in progress may be writing, given its committed waves."""
    plan = load_plan(storage.url, name)
    if plan.order.sorts:
        yield from shards_begun(storage, name)
        return
    for split in plan.splits_of(range(waves, plan.wave_count)):
        part = 0
        while shard_id(name, split, part) in survey.manifests:
            part += 1
        yield from (shard_id(name, split, part + more) for more in range(PARTS_BEGUN))


def _remains(
    storage: Storage, candidates: _Candidates, younger: float, cutoff: float
) -> Iterator[Stored]:
    """Other objects that are to go: old statuses, and files whose writers were killed."""
    for stored in listed(storage, "_status"):
        old = younger == 0 or written(stored) < cutoff
        if old and not stored.key.removeprefix("_status/").startswith(candidates.plans):
            yield stored
    limit = min(cutoff, time.time() - UNFINISHED_SECONDS)
    others = (each for folder in ("_ledger", "_plans", "_refs") for each in listed(storage, folder))
    for stored in (*candidates.survey.unfinished, *others):
        if stored.key.endswith(UNFINISHED) and written(stored) < limit:
            yield stored


def _run(
    storage: Storage,
    attempts: Sequence[Attempt],
    runner: str,
    workers: int,
    beam_arguments: Sequence[str],
) -> None:
    """Delete attempts by a Beam pipeline: their names travel."""
    from pipelines.maintenance.transforms import DeleteAttempts
    from pipelines.runners import run

    groups = [
        (storage.url, list(attempts[first : first + ATTEMPTS_AT_ONCE]))
        for first in range(0, len(attempts), ATTEMPTS_AT_ONCE)
    ]
    run(
        lambda pipeline, lanes: pipeline | DeleteAttempts(groups),
        runner,
        workers=workers,
        processes=False,
        arguments=beam_arguments,
    )
