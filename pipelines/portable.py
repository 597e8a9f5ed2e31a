"""Portable: engines that Beam's job API speaks to are found, reached and, if begun here, ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner

from cachelib.errors import EngineError

PRISM = "PrismRunner"

ANSWER_SECONDS = 20.0
"""How long a job service or a worker pool may take to be reached."""

_START_POOL = (
    "start it with `python -m apache_beam.runners.worker.worker_pool_main --service_port={}`, or "
    "correct --environment_config"
)


def flags_of(runner: str, arguments: Sequence[str]) -> list[str]:
    """The options of a runner of that name, with where Prism lies if it is here and not said."""
    flags = [*arguments, f"--runner={runner}"]
    if _is_prism(runner) and not any("prism_location" in flag for flag in flags):
        found = shutil.which("prism") or str(Path.home() / "go" / "bin" / "prism")
        if os.access(found, os.X_OK):
            flags.append(f"--prism_location={found}")
    return flags


@contextmanager
def engine(options: PipelineOptions) -> Iterator[beam.runners.PipelineRunner | None]:
    """The runner of a pipeline if it is Prism, begun here, which ends with the block; else None.

    Beam ends it with the interpreter, which a command does not wait for, and shares it with other
    pipelines of the process.

    Raises:
        EngineError: the job service cannot be reached, or is lost while the block runs.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    begun: list[JobServer] = []
    runner = None
    if endpoint and endpoint != "embed":
        _reach(endpoint, "no job service answers", "start it, or correct --job_endpoint")
    elif not endpoint and _is_prism(options.view_as(StandardOptions).runner or ""):
        pool = _pool(options.view_as(PortableOptions))
        if pool is not None:  # Prism ends without a word where there is none
            _reach(pool, "no worker pool answers", _START_POOL.format(pool.rpartition(":")[2]))

        def begin(options: PipelineOptions) -> JobServer:
            begun.append(PrismJobServer(options))
            return begun[0]

        runner = PrismRunner()
        runner.default_job_server = begin
    try:
        yield runner
    except grpc.RpcError as error:
        raise EngineError(
            f"the job service{f' at {endpoint}' if endpoint else ', Prism,'} is gone, or the "
            f"connection to it ({_told(error)}). See that it runs, and begin again"
        ) from error
    finally:
        for server in begun:
            with suppress(AttributeError):  # it was not started
                server.stop()


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


def _is_prism(runner: str) -> bool:
    return "prism" in runner.lower()
