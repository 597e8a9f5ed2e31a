"""Makes the golden cache of format version 1 anew: `python -m tests.golden.make`.

Three builds from the sources beside this file: the first creates the cache in several waves, the
second appends to it, the third finds nothing new and marks it complete. Attempt folders have random
names, so a new golden cache is another one with the same rows; the one in the repository is made
anew only before a release has written caches of its format.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CACHE = HERE / "format-1"
SOURCES = HERE / "sources"
TOKENIZER = HERE / "tokenizer.json"
OPTIONS: dict[str, Any] = {
    "tokenizer": str(TOKENIZER),
    "eos": "<|end|>",
    "keep": {"id": "str", "score": "float32"},
    "split_bytes": 2048,
    "max_reject_rate": 0.1,
    "workers": 1,
}


def make(to: Path) -> None:
    """Write the golden cache into a folder, which is replaced."""
    from pipelines.launcher import build

    shutil.rmtree(to, ignore_errors=True)
    build(inputs=[str(SOURCES / "a.jsonl")], to=str(to), **OPTIONS)
    build(inputs=[str(SOURCES)], to=str(to), **OPTIONS)
    build(inputs=[str(SOURCES)], to=str(to), finish=True, **OPTIONS)
    shutil.rmtree(to / "_status", ignore_errors=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else CACHE)
