"""Portable: an engine that speaks Beam's job API is reached, waited for, and told of in words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.runner import PipelineState

from cachelib.errors import EngineError
from pipelines.engines import prism

ANSWER_SECONDS = 10.0
"""How long a job service or a worker pool may take to be reached."""

LOOK_SECONDS = 2.0
"""How often it is looked whether an engine that is waited for is there."""

LONGEST_SECONDS = 365 * 86_400
"""How long a pipeline may run: Beam follows it for 300 s only, unless told otherwise."""

GONE_SECONDS = 2.0
"""Within which a Prism whose pipeline failed is found to be gone."""

_SPEAK_IT = ("prism", "portable", "flink", "spark")
"""What the runners that speak the job API have in their names."""

_START_SERVICE = "start it, or correct --job_endpoint"

_START_POOL = (
    "start it with `python -m apache_beam.runners.worker.worker_pool_main --service_port={}`, or "
    "correct --environment_config"
)


class Engine:
    """An engine that is reached: pipelines begin and end on it, or it is said to be gone.

    Beam's own calls wait for ever, or for minutes, where a job service is killed or hangs.

    Attributes:
        flags: Beam's options for pipelines on it.
    """

    def __init__(self, flags: Sequence[str], look: Callable[[], None] | None) -> None:
        self.flags = list(flags)
        self._look = look

    def begin(self, pipeline: beam.Pipeline) -> Any:
        """Submit a pipeline; returns Beam's result, which is still to come."""
        return self._attended(pipeline.run)

    def wait(self, result: Any) -> None:
        """Wait until a pipeline has ended; raises what it failed by, and cancels it otherwise."""
        try:
            self._attended(result.wait_until_finish)
        except BaseException:
            cancel(result)
            raise

    def _attended(self, call: Callable[[], Any]) -> Any:
        """Call, and look meanwhile whether the engine is there."""
        if self._look is None:
            return call()
        answer: Future[Any] = Future()

        def work() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=work, name="forebay-engine", daemon=True).start()
        while not wait([answer], LOOK_SECONDS).done:
            self._look()
        return answer.result()


@contextmanager
def reached(runner: str, arguments: Sequence[str]) -> Iterator[Engine]:
    """An engine that is there as long as the block runs.

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
    with ExitStack() as stack:
        look: Callable[[], None] | None = None
        if endpoint and endpoint != "embed":
            look = partial(_reach, endpoint, "no job service answers", _START_SERVICE)
            look()
        elif not endpoint and "prism" in runner.lower():
            begun = stack.enter_context(prism.running(flags))
            flags.append(f"--job_endpoint={begun.endpoint}")
            look = begun.check
            stack.enter_context(_blaming(begun))
        try:
            yield Engine(flags, look)
        except grpc.RpcError as error:
            raise EngineError(
                f"the job service{f' at {endpoint}' if endpoint else ''} is gone, or the "
                f"connection to it ({_told(error)}). See that it runs, and begin again"
            ) from error


def ends_with_us(runner: str, arguments: Sequence[str]) -> bool:
    """Whether the engine, or its workers, are there only as long as this process.

    Args:
        runner, arguments: as of `reached`.
    """
    options = PipelineOptions(_flags(runner, arguments)).view_as(PortableOptions)
    begun = not options.job_endpoint and "prism" in runner.lower()
    return begun or options.environment_type == "LOOPBACK"


@contextmanager
def _blaming(begun: prism.Prism) -> Iterator[None]:
    """Say that Prism is gone rather than what came of that."""
    try:
        yield
    except Exception:
        begun.check(GONE_SECONDS)
        raise


def cancel(result: Any) -> None:
    """Cancel a pipeline unless it has ended; an engine that is gone need not be told."""
    with suppress(Exception):
        if PipelineState.is_terminal(result.state):
            return
    with suppress(Exception):
        result.cancel()


def _flags(runner: str, arguments: Sequence[str]) -> list[str]:
    """Beam's options, with what the job API needs if it is not said."""
    flags = [*arguments, f"--runner={runner}"]
    if any(name in runner.lower() for name in _SPEAK_IT):
        if not any("environment_type" in flag for flag in flags):
            flags.append("--environment_type=LOOPBACK")
        if not any("job_server_timeout" in flag for flag in flags):
            flags.append(f"--job_server_timeout={LONGEST_SECONDS}")
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
