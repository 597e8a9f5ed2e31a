"""Everything that fills a cache.

    pipelines.build(inputs=["data/*.jsonl"], tokenizer="tok.json", to="cache/")

`pipelines.transforms` has the PTransforms for pipelines of your own.
"""

from __future__ import annotations

from typing import Any

__all__ = ["build"]


def build(**values: Any) -> Any:
    """Bring a cache up to date with its sources; see `pipelines.launcher.build`."""
    from pipelines.launcher import build as run

    return run(**values)
