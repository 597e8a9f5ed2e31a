"""Submission: a whole build is handed to an engine by one pipeline, which goes on without us."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from cachelib.format.ledger import Ledger
from cachelib.words import counted
from pipelines.commit import finish
from pipelines.config import BuildConfig, build_config
from pipelines.planning import check_first_records, next_plan, taken_in
from pipelines.ranges import remove_runs
from pipelines.request import find_sources, inquire
from pipelines.tasks import forget_failures, raising_failures
from pipelines.whole import Whole, whole_of

PARTS = ("Cache", "Holdout")
"""The parts of the graph, by whether they fill the cache of what is held out."""


@dataclass(frozen=True)
class Submitted:
    """What was handed to an engine.

    Attributes:
        plans: the names of plans by the URLs of their caches; none of a cache that is up to date.
        notes: what the user should know.
    """

    plans: dict[str, str]
    notes: tuple[str, ...]


def submit(
    config: BuildConfig | None = None, *, beam_arguments: Sequence[str] = (), **values: Any
) -> Submitted:
    """Hand to an engine all that a build would do; returns while it is carried out.

    An engine, or workers, that are there only as long as this process are waited for.

    Args:
        config: a checked configuration; or its keys as keyword arguments.
        beam_arguments: further options of the Beam runner.

    Raises:
        ForebayError: of the kind that fits; nothing was begun.
    """
    config = build_config(values) if config is None else config
    runners = importlib.import_module("pipelines.runners")
    waits = runners.ends_with_us(config.runner, beam_arguments)
    discovery = find_sources(config)
    wholes: dict[str, Whole] = {}
    plans: dict[str, str] = {}
    notes: dict[str, None] = {}
    for held in (False, True) if config.holdout is not None else (False,):
        request = inquire(config, discovery, held=held)
        planned = next_plan(request)
        notes |= dict.fromkeys(planned.notes)
        if planned.plan is None:
            if config.finish and Ledger(request.storage).head() is not None:
                finish(request.storage)
            remove_runs(request.storage)
            continue
        check_first_records(request, planned)
        plans[request.storage.url] = planned.plan.name
        wholes[PARTS[held]] = whole_of(
            request, planned.plan, finishes=config.finish, fails=not waits
        )
        known = {source.name for source in planned.plan.sources}
        known.update(taken_in(Ledger(request.storage)))
        later = sum(source.name not in known for source in discovery.sources)
        if later:
            goes_on = f"{request.storage.url}: goes on with a stored plan, and lacks"
            notes[f"{goes_on} {counted(later, 'source')} more: submit again when it is done"] = None
    jobs = [job for whole in wholes.values() for job in (whole.job, *whole.branches)]
    if wholes:
        forget_failures(jobs)
        with raising_failures(*jobs) if waits else nullcontext():
            runners.run_wholes(
                wholes,
                config.runner,
                workers=config.workers,
                processes=config.processes,
                arguments=beam_arguments,
                wait=waits,
            )
    return Submitted(plans, tuple(notes))
