"""Stream: the unbounded pipeline that takes files in as they come, begun, watched and ended."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, StandardOptions
from apache_beam.runners.runner import PipelineState

from cachelib.errors import ForebayError, SourceError
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.words import counted
from pipelines.commit import seal
from pipelines.config import BuildConfig, ConfigError, GrowthConfig, setting
from pipelines.progress import alive
from pipelines.request import find_sources, inquire
from pipelines.sources import Discovery
from pipelines.streams.clock import Impulses
from pipelines.streams.transforms import CommitStream, FindFiles, SealEras, StreamShards
from pipelines.streams.units import Stream
from pipelines.tasks import tokenizer_objects

POLL_SECONDS = 0.5
"""How often the ledger is looked at for what to tell."""

PRISM = "PrismRunner"


def stream(
    config: BuildConfig,
    growth: GrowthConfig,
    *,
    stopped: threading.Event,
    tell: Callable[[str], None] = lambda line: None,
    beam_arguments: Sequence[str] = (),
) -> int:
    """Take in files as they come by an unbounded pipeline, until it is stopped.

    What is in work then is cancelled; the next stream begins where the ledger ends.

    Args:
        config, growth: as `growing_config` gives them.
        stopped: set to end it.
        tell: called with a line for each commit that is seen.
        beam_arguments: further options of the Beam runner.

    Returns:
        the newest version, -1 where there is no cache yet.

    Raises:
        ForebayError: of the kind that fits; what was committed stays.
    """
    described = describe(config)
    storage = described.storage
    head = Ledger(storage).head()
    if head is not None and Ledger(storage).commit(head).finished and not config.reopen:
        raise ForebayError(
            f"{storage.url} was marked complete at version {head}; {setting('reopen', True)} "
            "goes on with it"
        )
    result = _begin(described, config, growth, beam_arguments)
    seen = -1 if head is None else head
    try:
        with alive(storage, "stream"):
            while not stopped.is_set() and not PipelineState.is_terminal(result.state):
                stopped.wait(POLL_SECONDS)
                seen = _tell_of(storage, seen, tell)
        if not stopped.is_set():
            result.wait_until_finish()
            raise ForebayError(f"the pipeline ended as {result.state}; begin the stream again")
    finally:
        if not PipelineState.is_terminal(result.state):
            result.cancel()
    if Ledger(storage).head() is not None:
        seen = seal(storage).version
    return seen


def describe(config: BuildConfig) -> Stream:
    """The stream of a configuration; puts its tokenizer into the cache.

    Raises:
        ConfigError: something is to be held out, which streams do not.
        IncompatibleCache: the cache's rows were made in another way.
    """
    if config.holdout is not None:
        raise ConfigError("holdout (--holdout) is for build and watch: a stream fills one cache")
    try:
        discovery = find_sources(config)
    except SourceError:  # there may be none yet, or a damaged one, which is set aside later
        discovery = Discovery((), (), (), time.time_ns())
    request = inquire(config, discovery)
    for key, data in tokenizer_objects(request.files).items():
        request.storage.put_if_absent(key, data)
    return Stream.of(request)


def file_stream(
    pipeline: beam.Pipeline, described: Stream, config: BuildConfig, growth: GrowthConfig
) -> beam.PCollection:
    """The whole pipeline: from files that come to the versions of commits."""
    impulses = pipeline | "Looks" >> Impulses(growth.every)
    _ = impulses | "SealEras" >> SealEras(described, growth.seal_after, growth.seal_bytes)
    return (
        impulses
        | "FindFiles"
        >> FindFiles(described, config.inputs, format=config.format, settle_seconds=growth.settle)
        | "StreamShards" >> StreamShards(described)
        | "CommitStream" >> CommitStream(described, growth.every)
    )


def _begin(
    described: Stream, config: BuildConfig, growth: GrowthConfig, arguments: Sequence[str]
) -> Any:
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    runner = PRISM if config.runner == "embedded" else config.runner
    flags = [*arguments, f"--runner={runner}"]
    if "prism" in runner.lower() and not any("prism_location" in flag for flag in flags):
        found = shutil.which("prism") or str(Path.home() / "go" / "bin" / "prism")
        if os.access(found, os.X_OK):
            flags.append(f"--prism_location={found}")
    if not any("environment_type" in flag for flag in flags):
        flags.append("--environment_type=LOOPBACK")
    options = PipelineOptions(flags)
    options.view_as(StandardOptions).streaming = True
    options.view_as(SetupOptions).save_main_session = False
    pipeline = beam.Pipeline(options=options)
    file_stream(pipeline, described, config, growth)
    return pipeline.run()


def _tell_of(storage: Storage, seen: int, tell: Callable[[str], None]) -> int:
    """Tell of commits since a version; returns the newest."""
    ledger = Ledger(storage)
    head = ledger.head()
    if head is None or head <= seen:
        return seen
    for commit in ledger.commits(seen + 1, head + 1):
        rejects = sum(commit.rejects.values())
        if commit.records:
            lost = f", {counted(rejects, 'reject')}" if rejects else ""
            rows = int(commit.entries.rows.sum())
            tell(f"version {commit.version}: {counted(rows, 'row')} more{lost}")
    return head
