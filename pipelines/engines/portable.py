"""Portable: an engine that speaks Beam's job API is reached, waited for, and told of in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.runner import PipelineState

from cachelib.errors import EngineError
from pipelines.engines import prism

ANSWER_SECONDS = 20.0
"""How long a job service or a worker pool may take to be reached."""

LOOK_SECONDS = 0.2
"""How often it is looked whether a pipeline has ended."""

GONE_SECONDS = 2.0
"""Within which a Prism whose pipeline failed is found to be gone."""

_SPEAK_IT = ("prism", "portable", "flink", "spark")
"""What the runners that speak the job API have in their names."""

_START_POOL = (
    "start it with `python -m apache_beam.runners.worker.worker_pool_main --service_port={}`, or "
    "correct --environment_config"
)


@contextmanager
def reached(runner: str, arguments: Sequence[str]) -> Iterator[list[str]]:
    """Beam's options for pipelines on an engine, which is there as long as the block runs.

    Prism is begun for the block where no other job service is named. Workers are threads of this
    process (LOOPBACK) where no other environment is named, but for engines that do not speak the
    job API.

    Args:
        runner: the name of a Beam runner.
        arguments: further options of Beam.

    Raises:
        EngineError: the engine cannot be reached, or is lost while the block runs.
    """
    flags = _flags(runner, arguments)
    options = PipelineOptions(flags).view_as(PortableOptions)
    endpoint = options.job_endpoint
    pool = _pool(options)
    if pool is not None:  # engines wait for ever, or end without a word, where there is none
        _reach(pool, "no worker pool answers", _START_POOL.format(pool.rpartition(":")[2]))
    if endpoint and endpoint != "embed":
        _reach(endpoint, "no job service answers", "start it, or correct --job_endpoint")
    begun = None
    with ExitStack() as stack:
        if not endpoint and "prism" in runner.lower():
            begun = stack.enter_context(prism.running(flags))
            flags.append(f"--job_endpoint={begun.endpoint}")
        try:
            yield flags
        except EngineError:
            raise
        except Exception as error:
            if begun is not None:
                begun.check(GONE_SECONDS)  # then what came of it says less
            if isinstance(error, grpc.RpcError):
                raise EngineError(
                    f"the job service{f' at {endpoint}' if endpoint else ''} is gone, or the "
                    f"connection to it ({_told(error)}). See that it runs, and begin again"
                ) from error
            raise


def ends_with_us(runner: str, arguments: Sequence[str]) -> bool:
    """Whether the engine, or its workers, are there only as long as this process.

    Args:
        runner, arguments: as of `reached`.
    """
    options = PipelineOptions(_flags(runner, arguments)).view_as(PortableOptions)
    begun = not options.job_endpoint and "prism" in runner.lower()
    return begun or options.environment_type == "LOOPBACK"


def wait(result: Any) -> None:
    """Wait until a pipeline has ended; raises what it failed by.

    It is cancelled where that is interrupted. Beam's own waiting may go on for ever when the engine
    is gone.
    """
    try:
        while not PipelineState.is_terminal(result.state):
            time.sleep(LOOK_SECONDS)
        result.wait_until_finish()
    except BaseException:
        cancel(result)
        raise


def cancel(result: Any) -> None:
    """Cancel a pipeline unless it has ended; an engine that is gone need not be told."""
    with suppress(Exception):
        if PipelineState.is_terminal(result.state):
            return
    with suppress(Exception):
        result.cancel()


def _flags(runner: str, arguments: Sequence[str]) -> list[str]:
    """Beam's options, with where workers are if that is not said."""
    flags = [*arguments, f"--runner={runner}"]
    named = any("environment_type" in flag for flag in flags)
    if not named and any(name in runner.lower() for name in _SPEAK_IT):
        flags.append("--environment_type=LOOPBACK")
    return flags


def _pool(options: PortableOptions) -> str | None:
    """The address of the worker pool that starts workers, where one is to."""
    config = options.environment_config or ""
    plain = options.environment_type == "EXTERNAL" and not config.startswith("{")
    return config if plain and config else None


def _reach(address: str, wrong: str, what_to_do: str) -> None:
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_SECONDS)
        except grpc.FutureTimeoutError as error:
            raise EngineError(
                f"{wrong} at {address} within {ANSWER_SECONDS:.0f} s: {what_to_do}"
            ) from error


def _told(error: grpc.RpcError) -> str:
    """What an error of a call says; the error itself is a page."""
    return error.details() if isinstance(error, grpc.Call) else type(error).__name__
