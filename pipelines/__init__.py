"""Everything that fills a cache.

    pipelines.build(inputs=["data/*.jsonl"], tokenizer="tok.json", to="cache/")

`pipelines.transforms` has the PTransforms for pipelines of your own.
"""

from __future__ import annotations

from typing import Any

__all__ = ["build", "compact", "delete", "gc"]


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
