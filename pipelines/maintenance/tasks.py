"""Tasks: what the stages of a change do, as functions of small picklable values. No Beam here."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cachelib.errors import ForebayError, LedgerConflict, StorageError
from cachelib.format.canonical import digest_of, seal
from cachelib.format.commit import Commit
from cachelib.format.entries import Entries, Replacement
from cachelib.format.ledger import Ledger
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import replace_shards
from pipelines.maintenance.changes import Change
from pipelines.tasks import error_of, failure_of

TRIES = 1000
"""Times that a commit is tried again after one of another writer."""


@dataclass(frozen=True)
class Job:
    """A change of a cache: all that the graph carries.

    Attributes:
        cache: URL of the cache.
        version: what is changed; what is committed meanwhile stays as it is.
        change: what is done.
    """

    cache: str
    version: int
    change: Change

    @functools.cached_property
    def name(self) -> str:
        """What tells this job from others: the commit that it changes, and how."""
        parent = _snapshot(self.cache, self.version).commit.digest
        return digest_of({"parent": parent, "change": asdict(self.change)})


@functools.lru_cache(maxsize=4)
def _snapshot(cache: str, version: int) -> Snapshot:
    return Ledger(Storage(cache)).snapshot(version)


def units(job: Job) -> list[range]:
    """The runs of shards that are worked on one by one."""
    return job.change.units(_snapshot(job.cache, job.version))


def work(job: Job, unit: range) -> dict[str, Any]:
    """What stands for a run of shards, or a failure, as JSON; {} where it stays as it is."""
    snapshot = _snapshot(job.cache, job.version)
    entries = snapshot.entries.slice(unit.start, unit.stop)
    first_row = int(snapshot.row_bases[unit.start])
    try:
        found = job.change.replacement(
            Storage(job.cache), snapshot.commit.schema, entries, first_row
        )
    except StorageError:
        raise
    except ForebayError as error:
        return failure_of(error)
    if found is None:
        return {}
    return {"unit": [unit.start, unit.stop], "added": found.added.to_json()}


def commit(job: Job, results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Commit all that stands for others by one commit; stores and returns the outcome.

    Returns:
        The version, None where nothing changed; how many runs of shards were ``left`` out, since
        they changed meanwhile; or a failure.
    """
    storage = Storage(job.cache)
    found = [result for result in results if result]
    failures = [result for result in found if "failure" in result]
    try:
        outcome = min(failures, key=str) if failures else _committed(storage, job, found)
    except StorageError:
        raise
    except ForebayError as error:
        outcome = failure_of(error)
    storage.write(outcome_key(job), seal(outcome))
    return outcome


def _committed(storage: Storage, job: Job, results: list[dict[str, Any]]) -> dict[str, Any]:
    before = _snapshot(job.cache, job.version)
    ledger = Ledger(storage)
    made: list[tuple[Entries, Replacement]] = []
    for result in sorted(results, key=lambda each: each["unit"]):
        inputs = before.entries.slice(*result["unit"])
        made.append((inputs, Replacement(inputs.shard, Entries.from_json(result["added"]))))
    for _ in range(TRIES):
        parent = ledger.snapshot()
        own = _own(ledger, job, parent)
        if own is not None:
            return {"version": own.version, "left": len(made) - len(own.groups)}
        places = {shard: place for place, shard in enumerate(parent.entries.shard)}
        there = [replacement for inputs, replacement in made if _live(parent, places, inputs)]
        left = len(made) - len(there)
        if not there or (left and job.change.operation == "delete"):
            return {"version": None, "left": left}
        made_here = replace_shards(
            ledger,
            parent,
            operation=job.change.operation,
            task={"change": job.name, "version": job.version},
            groups=there,
        )
        if ledger.append(made_here).digest == made_here.digest:
            return {"version": made_here.version, "left": left}
    raise LedgerConflict(
        f"{storage.url}: {TRIES} commits of other writers came before this one. Nothing is "
        "damaged; try again when fewer are made"
    )


def _own(ledger: Ledger, job: Job, parent: Snapshot) -> Commit | None:
    """The commit of this job, if another try has made it."""
    since = ledger.commits(job.version + 1, parent.version + 1)
    return next((commit for commit in since if commit.task.get("change") == job.name), None)


def _live(snapshot: Snapshot, places: Mapping[str, int], inputs: Entries) -> bool:
    """Whether shards are still there as they were."""
    start = places.get(inputs.shard[0])
    if start is None:
        return False
    found = snapshot.entries.slice(start, start + len(inputs))
    return found.to_json() == inputs.to_json()


def outcome_key(job: Job) -> str:
    return f"_status/{job.name}.outcome.json"


def take_outcome(job: Job) -> dict[str, Any]:
    """What became of a job; removes it.

    Raises:
        ForebayError: the failure that it left behind, as the error it was.
    """
    storage = Storage(job.cache)
    outcome: dict[str, Any] | None = storage.read_json(outcome_key(job))
    if outcome is None:
        raise ForebayError(f"{job.cache}: the change ended without a commit or an error")
    storage.delete_prefix(outcome_key(job))
    if "failure" in outcome:
        raise error_of(outcome)
    return outcome
