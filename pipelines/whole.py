"""Whole: all that is left of a plan as one graph, for engines on which to start one takes minutes.

No Beam here: what the graph carries, and its last step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachelib.errors import ForebayError
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from pipelines.commit import commits_of, finish
from pipelines.plan import Plan
from pipelines.planning import roots_of, store
from pipelines.ranges import PASSES, remove_runs
from pipelines.request import Request
from pipelines.runs import parts_of
from pipelines.tasks import Job, error_of, guarded, load_plan, store_failure

BRANCHES = 24
"""Branches of a graph, at most. Each is some stages, all of which an engine draws and schedules."""


@dataclass(frozen=True)
class Whole:
    """What one pipeline does of a stored plan.

    Attributes:
        job: the waves of the plan that are not committed.
        branches: jobs that write parts, each of which commits after the one before: those of the
            cache, or of runs where rows are sorted.
        passes: keys of the passes that runs may need; none where rows are not sorted.
        finishes: whether the cache is marked complete in the end.
        fails: whether a failure fails the pipeline, where nobody waits who would find it.
    """

    job: Job
    branches: tuple[Job, ...]
    passes: tuple[str, ...]
    finishes: bool
    fails: bool


def branches(waves: range, limit: int = BRANCHES) -> list[range]:
    """Waves dealt out to at most `limit` branches: the first, small ones have one each."""
    if len(waves) <= limit:
        return [range(wave, wave + 1) for wave in waves]
    alone = limit // 2
    left, rest = limit - alone, waves[alone:]
    limits = [rest.start + len(rest) * number // left for number in range(left + 1)]
    return [
        *(range(wave, wave + 1) for wave in waves[:alone]),
        *(range(start, stop) for start, stop in itertools.pairwise(limits)),
    ]


def whole_of(
    request: Request, plan: Plan, *, finishes: bool, fails: bool, may_be_empty: bool = False
) -> Whole:
    """Store a plan, and tell what is left of it."""
    storage, name = request.storage, plan.name
    store(request, storage, plan)
    job = Job(
        storage.url,
        name,
        range(len(commits_of(Ledger(storage), plan, name)[1]), plan.wave_count),
        roots_of(request, plan),
        request.discovery.inspected_ns,
        request.config.max_reject_rate,
        may_be_empty=may_be_empty,
    )
    parts = job
    if plan.order.sorts:
        place, own, own_name = parts_of(storage, plan, name)
        store(request, place, own)
        done = len(commits_of(Ledger(place), own, own_name)[1])
        waves = range(done, own.wave_count)
        parts = replace(job, cache=place.url, plan=own_name, waves=waves, may_be_empty=True)
    return Whole(
        job,
        tuple(replace(parts, waves=waves) for waves in branches(parts.waves)),
        PASSES if plan.order.sorts else (),
        finishes,
        fails,
    )


def conclude(whole: Whole, before: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The end of a graph: the version of the cache, marked complete where that was asked for.

    Args:
        before: what came of the last branch or pass.

    Returns:
        the version, or what kept the plan from being carried out, which is also stored.

    Raises:
        ForebayError: instead of that, where nobody waits.
    """
    result = _conclude(whole, list(before))
    if whole.fails and "failure" in result:
        raise error_of(result)
    return result


def _conclude(whole: Whole, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    job = whole.job
    storage = Storage(job.cache)
    failure = next((r for r in results if "failure" in r), None)
    if failure is not None:
        return store_failure(storage, job, failure)

    def work() -> dict[str, Any]:
        ledger = Ledger(storage)
        if not any("version" in result for result in results):
            plan = load_plan(job.cache, job.plan)
            if len(commits_of(ledger, plan, job.plan)[1]) < plan.wave_count:
                raise ForebayError(f"plan {job.plan} ended without a commit or an error")
        remove_runs(storage)
        return {"version": finish(storage).version if whole.finishes else ledger.snapshot().version}

    return guarded(job, work)
