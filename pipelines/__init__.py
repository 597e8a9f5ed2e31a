"""Everything that fills a cache.

    pipelines.build(inputs=["data/*.jsonl"], tokenizer="tok.json", to="cache/")

`pipelines.transforms` has the PTransforms for pipelines of your own.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "build",
    "compact",
    "delete",
    "gc",
    "read_jsonl",
    "read_parquet",
    "read_text",
    "stream",
    "submit",
    "watch",
]


def build(**values: Any) -> Any:
    """Bring a cache up to date with its sources; see `pipelines.launcher.build`."""
    from pipelines.launcher import build as run

    return run(**values)


def compact(cache: Any, **options: Any) -> Any:
    """Pack small shards into larger ones; see `pipelines.maintenance.launcher.compact`."""
    from pipelines.maintenance.launcher import compact as run

    return run(cache, **options)


def delete(cache: Any, **options: Any) -> Any:
    """Delete rows of a cache; see `pipelines.maintenance.launcher.delete`."""
    from pipelines.maintenance.launcher import delete as run

    return run(cache, **options)


def gc(cache: Any, **options: Any) -> Any:
    """Delete what no version needs that is kept; see `pipelines.maintenance.gc.gc`."""
    from pipelines.maintenance.gc import gc as run

    return run(cache, **options)


def read_jsonl(inputs: Any, **options: Any) -> Any:
    """What a cache is to be made of JSON Lines; see `pipelines.lazy.read_jsonl`."""
    from pipelines.lazy import read_jsonl as read

    return read(inputs, **options)


def read_parquet(inputs: Any, **options: Any) -> Any:
    """What a cache is to be made of Parquet files; see `pipelines.lazy.read_parquet`."""
    from pipelines.lazy import read_parquet as read

    return read(inputs, **options)


def read_text(inputs: Any, **options: Any) -> Any:
    """What a cache is to be made of files of text; see `pipelines.lazy.read_text`."""
    from pipelines.lazy import read_text as read

    return read(inputs, **options)


def stream(stopped: Any, **values: Any) -> Any:
    """Take in files by an unbounded pipeline; see `pipelines.streams.launcher.stream`."""
    from pipelines.config import growing_config
    from pipelines.streams.launcher import stream as run

    return run(*growing_config(values, "stream"), stopped=stopped)


def submit(**values: Any) -> Any:
    """Hand a build to an engine, and return; see `pipelines.submission.submit`."""
    from pipelines.submission import submit as run

    return run(**values)


def watch(stopped: Any, **values: Any) -> Any:
    """Take in files as they come until an event is set; see `pipelines.watching.watch`."""
    from pipelines.config import growing_config
    from pipelines.watching import watch as run

    return run(*growing_config(values), stopped=stopped)
