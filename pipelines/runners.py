"""Runners: waves of a plan on the engine that was asked for."""

from __future__ import annotations

import importlib
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.transforms.environments import (
    EmbeddedPythonGrpcEnvironment,
    Environment,
    SubprocessSDKEnvironment,
    python_sdk_capabilities,
)

from pipelines.config import OWN_RUNNERS, ConfigError
from pipelines.tasks import Job
from pipelines.transforms import (
    CommitRanges,
    CommitShards,
    FillCache,
    MergeRanges,
    MergeShards,
    WriteShards,
)
from pipelines.whole import Whole

NEVER_MS = 1000 * 365 * 86_400
"""A year: no pipeline of threads takes as long."""

LANES_ELSEWHERE = 256
"""Lanes of a pipeline on engines whose number of workers is not known here."""


def run_waves(
    job: Job, runner: str, *, workers: int, processes: bool, arguments: Sequence[str]
) -> None:
    """Write, merge and commit waves by one pipeline; returns when the engine is done with it."""
    run(
        lambda pipeline, lanes: (
            pipeline
            | "Waves" >> beam.Create([job], reshuffle=False)
            | "WriteShards" >> WriteShards(lanes)
            | "MergeShards" >> MergeShards()
            | "CommitShards" >> CommitShards()
        ),
        runner,
        workers=workers,
        processes=processes,
        arguments=arguments,
    )


def run_merge(
    job: Job, key: str, runner: str, *, workers: int, processes: bool, arguments: Sequence[str]
) -> None:
    """Carry out the merge of a plan's runs that is stored at a key; otherwise as `run_waves`."""
    run(
        lambda pipeline, _: (
            pipeline
            | "Plan" >> beam.Create([job], reshuffle=False)
            | "MergeRanges" >> MergeRanges(key)
            | "CommitRanges" >> CommitRanges(key)
        ),
        runner,
        workers=workers,
        processes=processes,
        arguments=arguments,
    )


def run_wholes(
    wholes: Mapping[str, Whole],
    runner: str,
    *,
    workers: int,
    processes: bool,
    arguments: Sequence[str],
    wait: bool = True,
) -> None:
    """Carry out what is left of plans of several caches, by one pipeline; otherwise as `run`.

    Args:
        wholes: each by the name of its part of the graph.
    """

    def build(pipeline: beam.Pipeline, lanes: int) -> None:
        for name, whole in wholes.items():
            _ = pipeline | name >> FillCache(whole, lanes)

    run(build, runner, workers=workers, processes=processes, arguments=arguments, wait=wait)


def ends_with_us(runner: str, arguments: Sequence[str]) -> bool:
    """Whether a pipeline cannot go on without this process; as of `run`."""
    if runner in OWN_RUNNERS:
        return True
    from pipelines.engines import portable

    return portable.ends_with_us(runner, arguments)


def run(
    build: Callable[[beam.Pipeline, int], Any],
    runner: str,
    *,
    workers: int,
    processes: bool,
    arguments: Sequence[str],
    wait: bool = True,
) -> None:
    """Run a pipeline; returns when the engine is done with it.

    Args:
        build: applies transforms to the pipeline; is told for how many lanes.
        runner: "embedded" (FnApiRunner), "bundles" (BundleBasedDirectRunner), "dask", or the name
            of a Beam runner.
        workers, processes: of the embedded runner.
        arguments: further Beam options.
        wait: else returns when the engine has the pipeline, if it needs nothing of this process.

    Raises:
        ConfigError: what the runner needs is not installed.
        EngineError: the engine cannot be reached, is lost or lacks something; says what to do.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    check(runner)
    if runner == "embedded":
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        lanes = workers or default_workers()
        here = [f"--direct_num_workers={lanes}", "--direct_running_mode=in_memory"]
        threads = _threads() if lanes > 1 else None
        engine = FnApiRunner(_processes() if processes else threads)
        _pipeline(build, lanes, [*arguments, *here], engine).run().wait_until_finish()
    elif runner == "bundles":
        from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

        engine = BundleBasedDirectRunner()
        _pipeline(build, LANES_ELSEWHERE, arguments, engine).run().wait_until_finish()
    elif runner == "dask":
        dask = _dask()
        dask.run(_pipeline(build, dask.PARTITIONS, arguments, dask.DaskRunner()))
    else:
        from pipelines.engines import portable

        with portable.reached(runner, arguments) as reached:
            result = reached.begin(_pipeline(build, LANES_ELSEWHERE, reached.flags))
            if wait or portable.ends_with_us(runner, arguments):
                reached.wait(result)


def _pipeline(
    build: Callable[[beam.Pipeline, int], Any],
    lanes: int,
    flags: Sequence[str],
    engine: beam.runners.PipelineRunner | None = None,
) -> beam.Pipeline:
    """A pipeline that is built; of the runner that flags name where no engine is given."""
    options = PipelineOptions(list(flags))
    options.view_as(SetupOptions).save_main_session = False
    pipeline = beam.Pipeline(runner=engine, options=options)
    os.rmdir(pipeline.local_tempdir)  # for other languages only; a killed build would leave it
    build(pipeline, lanes)
    return pipeline


def check(runner: str) -> None:
    """See that a runner, as of `run`, can be imported here.

    Raises:
        ConfigError: it cannot.
    """
    if runner == "dask":
        _dask()
    elif "." in runner:
        module, _, name = runner.rpartition(".")
        try:
            getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"runner (--runner) {runner} cannot be imported: {error}. Install what has it, or "
                "correct the name"
            ) from error


def _dask() -> ModuleType:
    """The module for Dask, which few have installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        return importlib.import_module("pipelines.engines.dask")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"runner (--runner) dask needs {error.name}: pip install 'forebay[pipelines,dask]'"
        ) from error


def _threads() -> Environment:
    """Workers that are threads, as of ``--direct_running_mode=multi_threading``.

    But for its timer: that sends what is encoded after each second, also in the middle of an
    element, which is then decoded as something else.
    """
    return EmbeddedPythonGrpcEnvironment(
        data_buffer_time_limit_ms=NEVER_MS, capabilities=python_sdk_capabilities()
    )


def _processes() -> Environment:
    """Workers that are processes, as of ``--direct_running_mode=multi_processing``.

    But that they log nothing where nothing is logged here: what they are started with does.
    """
    program = (
        f"import logging, sys; logging.disable({logging.root.manager.disable}); "
        "from apache_beam.runners.worker import sdk_worker_main; sdk_worker_main.main(sys.argv)"
    )
    return SubprocessSDKEnvironment.from_command_string(
        f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    )


def default_workers() -> int:
    """One worker for two of the cores that this process may use, at most 8.

    A worker keeps two cores busy: it reads ahead and compresses while it tokenizes.
    """
    return max(1, min(8, cores() // 2))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
