"""Dask: a pipeline on a cluster by Beam's DaskRunner, spread over its workers, and waited for.

Beam's runner lets Reshuffle do nothing, so that all that comes of one element would be one task of
one worker; and it groups by as many tasks as the square of the number of partitions. Here Reshuffle
makes partitions, and what is grouped is gathered first: it is manifests, all of one key.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PTransformOverride
from apache_beam.runners.dask import overrides
from apache_beam.runners.dask.dask_runner import DaskOptions, DaskRunner
from apache_beam.runners.dask.transform_evaluator import TRANSLATIONS, DaskBagOp
from distributed import Client, Future, wait
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from cachelib.errors import EngineError

__all__ = ["PARTITIONS", "DaskRunner", "run"]

PARTITIONS = 256
"""Tasks that a stage is spread over: no more threads of workers than that have something to do."""

NEEDED = ("apache_beam", "pipelines.transforms")
"""Modules that scheduler and workers must find, to read tasks."""

LOOK_SECONDS = 5.0
"""How often it is looked whether there are workers."""

ANSWER_SECONDS = 120.0
"""How long a scheduler may take to answer."""

CHECK_SECONDS = 10.0
CLOSE_SECONDS = 10.0

NO_WORKERS_SECONDS = 600.0
"""How long there may be no worker: clusters that grow when there is work take minutes."""


class Spread(beam.PTransform):
    """Reshuffle on Dask: elements in many partitions."""

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        return beam.pvalue.PCollection.from_(elements)


class Gathered(beam.PTransform):
    """Elements in one partition."""

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        return beam.pvalue.PCollection.from_(elements)


class GroupByKey(beam.PTransform):
    """GroupByKey on Dask, in one partition."""

    def expand(self, pairs: beam.PCollection) -> beam.PCollection:
        return pairs | "Gathered" >> Gathered() | "Group" >> overrides._GroupByKey()


class _SpreadBag(DaskBagOp):
    def apply(self, input_bag: Any, side_inputs: Any = None) -> Any:
        return input_bag.repartition(npartitions=max(PARTITIONS, input_bag.npartitions))


class _GatheredBag(DaskBagOp):
    def apply(self, input_bag: Any, side_inputs: Any = None) -> Any:
        return input_bag.repartition(npartitions=1)


TRANSLATIONS |= {Spread: _SpreadBag, Gathered: _GatheredBag}


class _Override(PTransformOverride):
    """Puts a transform without arguments in the place of those of a class."""

    def __init__(self, old: type, new: type) -> None:
        self._old = old
        self._new = new

    def matches(self, applied_ptransform: AppliedPTransform) -> bool:
        return type(applied_ptransform.transform) is self._old

    def get_replacement_transform_for_applied_ptransform(
        self, applied_ptransform: AppliedPTransform
    ) -> beam.PTransform:
        return self._new()


def run(pipeline: beam.Pipeline) -> None:
    """Run a pipeline whose runner is a DaskRunner; returns when its last transform is done.

    Raises:
        EngineError: the scheduler cannot be reached or is lost, or the workers are not there, keep
            dying or cannot do the work; says what to do.
    """
    with _words():
        _check(pipeline.options.view_as(DaskOptions))
        pipeline.replace_all(
            [_Override(beam.Reshuffle, Spread), _Override(beam.GroupByKey, GroupByKey)]
        )
        result = pipeline.run(test_runner_api=False)
        try:
            _finish(result.client, result.futures)
        finally:
            with suppress(TimeoutError):
                result.client.close(timeout=CLOSE_SECONDS)


@contextmanager
def _words() -> Iterator[None]:
    """Says what errors of Dask mean, and what to do."""
    try:
        yield
    except (FutureCancelledError, FuturesCancelledError, CommClosedError) as error:
        raise EngineError(
            "the Dask scheduler is gone, or the connection to it. Start one, and begin again"
        ) from error
    except KilledWorker as error:
        raise EngineError(
            f"{error.allowed_failures + 1} workers died in one and the same task, the last at "
            f"{error.last_worker.address}. Its log tells why: most often it is memory"
        ) from error


def _check(options: DaskOptions) -> None:
    """See that there is a scheduler, and that it and its workers have the code."""
    place = options.address or options.scheduler_file
    if place is None:
        return  # Beam starts a cluster on this machine
    if options.address is None and not os.path.exists(place):
        raise EngineError(
            f"--dask_scheduler_file={place}: there is no such file. `dask scheduler "
            f"--scheduler-file {place}` writes it where a scheduler runs"
        )
    known = options.get_all_options(drop_default=True, current_only=True)
    DaskOptions._extract_bag_kwargs(known)
    try:
        client = Client(**known, set_as_default=False)
    except OSError as error:
        raise EngineError(
            f"no Dask scheduler answers at {place}: {error}. Start one with `dask scheduler`, or "
            "correct --dask_client_address"
        ) from error
    with client:
        _check_code(client, place)


def _check_code(client: Client, place: str) -> None:
    """See that those who read tasks find the code: a worker without it dies of its first task."""
    lacking: dict[str, str] = {}
    with suppress(TimeoutError, ValueError):  # one hangs; or running functions is forbidden
        for module in NEEDED:
            asked: dict[str, Any] = client.sync(
                client._run, find_spec, module, on_error="return", callback_timeout=CHECK_SECONDS
            )
            lacking |= {at: module for at, found in asked.items() if _is_missing(found)}
            try:
                found = client.run_on_scheduler(find_spec, module)
            except ModuleNotFoundError as error:
                found = error
            if _is_missing(found):
                lacking[f"the scheduler {place}"] = module
    if lacking:
        at, module = next(iter(lacking.items()))
        raise EngineError(
            f"{at} cannot import {module} (and {len(lacking) - 1} more of the cluster lack "
            "modules): install forebay[pipelines,dask], as it is here, on the scheduler and "
            "all workers"
        )


def _is_missing(found: object) -> bool:
    return found is None or isinstance(found, ModuleNotFoundError)


def _finish(client: Client, futures: Sequence[Future]) -> None:
    """Wait for futures while there are workers; raises what a task raised."""
    seen = time.monotonic()
    while True:
        with suppress(TimeoutError):
            wait(futures, timeout=LOOK_SECONDS)
            client.gather(futures)
            return
        if _workers(client):
            seen = time.monotonic()
        elif time.monotonic() - seen > NO_WORKERS_SECONDS:
            raise EngineError(
                f"the Dask scheduler at {client.scheduler.address} has had no worker for "
                f"{NO_WORKERS_SECONDS:.0f} s. Start some with `dask worker "
                f"{client.scheduler.address}`; if they end at once, see their log"
            )


def _workers(client: Client) -> int:
    try:
        return len(client.sync(client.scheduler.ncores, callback_timeout=ANSWER_SECONDS))
    except TimeoutError as error:
        raise EngineError(
            f"the Dask scheduler at {client.scheduler.address} has not answered for "
            f"{ANSWER_SECONDS:.0f} s. End it, start another one, and begin again"
        ) from error
    except OSError:
        return 0  # it is lost, which all that waits for it is told at once
