"""Stream: the unbounded pipeline that takes files in as they come, begun, watched and ended."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, StandardOptions
from apache_beam.runners.runner import PipelineState

from cachelib.errors import ForebayError, SourceError
from cachelib.format.ledger import Ledger
from pipelines.commit import seal
from pipelines.config import OWN_RUNNERS, BuildConfig, ConfigError, GrowthConfig, setting
from pipelines.engines import portable
from pipelines.progress import alive
from pipelines.request import find_sources, inquire
from pipelines.sources import Discovery
from pipelines.streams.clock import Impulses
from pipelines.streams.following import Following
from pipelines.streams.news import forget
from pipelines.streams.transforms import CommitStream, FindFiles, SealEras, StreamShards
from pipelines.streams.units import Stream
from pipelines.tally import Tally
from pipelines.tasks import tokenizer_objects

POLL_SECONDS = 0.5
"""How often the store is looked at for what to tell."""

PRISM = "PrismRunner"


def stream(
    config: BuildConfig,
    growth: GrowthConfig,
    *,
    stopped: threading.Event,
    tell: Callable[[str], None] = lambda line: None,
    beam_arguments: Sequence[str] = (),
) -> Tally:
    """Take in files as they come by an unbounded pipeline, until it is stopped.

    What is in work then is cancelled; the next stream begins where the ledger ends.

    Args:
        config, growth: as `growing_config` gives them.
        stopped: set to end it.
        tell: called with a line for whatever happens.
        beam_arguments: further options of the Beam runner.

    Returns:
        what it did. Commits count as its own that streams with the same making of rows made.

    Raises:
        ConfigError: the runner is one of ours, which end with their input.
        CacheNotFound: the cache was deleted meanwhile.
        ForebayError: of the kind that fits; what was committed stays.
    """
    described = replace(_checked(config), run=f"stream-{secrets.token_hex(8)}")
    storage = described.storage
    following = Following(described, tell)
    try:
        with alive(storage, "stream", following.status):
            _run(described, config, growth, following, stopped, beam_arguments)
            following.look()
            if Ledger(storage).head() is not None:
                seal(storage)
            following.look()
    finally:
        forget(storage, described.run)
    return following.seen


def begin(config: BuildConfig, growth: GrowthConfig, *, beam_arguments: Sequence[str] = ()) -> None:
    """Hand the unbounded pipeline to an engine, and return; it is cancelled or drained there.

    Args:
        config, growth: as `growing_config` gives them.
        beam_arguments: further options of the Beam runner.

    Raises:
        ConfigError: the engine or its workers end with this process.
        ForebayError: of the kind that fits; nothing was begun.
    """
    described = _checked(config)
    if portable.ends_with_us(config.runner, beam_arguments):
        raise ConfigError(
            f"runner (--runner) {config.runner} or its workers would end with this command, and "
            "the stream with them: `forebay stream` stays with it"
        )
    with portable.reached(config.runner, beam_arguments) as engine:
        engine.begin(_pipeline(described, config, growth, engine.flags))


def _checked(config: BuildConfig) -> Stream:
    """The stream of a configuration, if it can be begun."""
    if "runner" in config.model_fields_set and config.runner in OWN_RUNNERS:
        raise ConfigError(
            f"runner (--runner) {config.runner} ends with its input, and a stream goes on: leave "
            "it out for Prism, or name a Beam runner of unbounded pipelines; watch takes files in "
            "without one"
        )
    described = describe(config)
    head = Ledger(described.storage).head()
    if head is not None and Ledger(described.storage).commit(head).finished and not config.reopen:
        raise ForebayError(
            f"{described.storage.url} was marked complete at version {head}; "
            f"{setting('reopen', True)} goes on with it"
        )
    return described


def _run(
    described: Stream,
    config: BuildConfig,
    growth: GrowthConfig,
    following: Following,
    stopped: threading.Event,
    arguments: Sequence[str],
) -> None:
    """Run the pipeline until it is to stop; what is in work then is cancelled."""
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    runner = PRISM if config.runner == "embedded" else config.runner
    with portable.reached(runner, arguments) as engine:
        result = engine.begin(_pipeline(described, config, growth, engine.flags))
        try:
            while not stopped.is_set():
                if PipelineState.is_terminal(result.state):
                    engine.wait(result)  # raises what it failed by
                    raise ForebayError(
                        f"the pipeline ended as {result.state}; begin the stream again"
                    )
                stopped.wait(POLL_SECONDS)
                following.look()
        finally:
            portable.cancel(result)


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


def _pipeline(
    described: Stream, config: BuildConfig, growth: GrowthConfig, flags: Sequence[str]
) -> beam.Pipeline:
    options = PipelineOptions(list(flags))
    options.view_as(StandardOptions).streaming = True
    options.view_as(SetupOptions).save_main_session = False
    pipeline = beam.Pipeline(options=options)
    file_stream(pipeline, described, config, growth)
    return pipeline
