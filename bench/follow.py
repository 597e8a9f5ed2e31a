"""How soon a training has its first batch when it starts together with the build of its cache.

    python bench/follow.py bench/data/300MB --tokenizer tokenizer.json

The build and the reader are processes of their own, begun at the same moment.

    first      seconds from there to the first batch of --batch shuffled windows of --length tokens
    done       share of all windows that were there then
    served     seconds to the last batch, when the reader has followed the cache to its end
    build      seconds that the build took
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

READ = "import sys; from bench.follow import read; read(sys.argv[1], *map(int, sys.argv[2:]))"


def read(cache: str, length: int, batch: int) -> None:
    """Follow a cache to its end, and print when each batch came; in the process that reads."""
    import cachelib
    from cachelib.nodes.base import reach

    windows = cachelib.open(cache, follow=True).windows(length).shuffle(seed=0)
    loader = windows.loader(batch)
    next(loader)
    first, there = time.time(), reach(windows.node)
    count = 1 + sum(1 for _ in loader)
    print(json.dumps({"first": first, "last": time.time(), "there": there, "rows": count * batch}))


def measure(options: argparse.Namespace, cache: Path) -> dict[str, float]:
    """Seconds from the common start, of one build and one reader."""
    build = [sys.executable, "-m", "pipelines.entry", "build", str(options.corpus), "--quiet"]
    build += ["--tokenizer", str(options.tokenizer), "--to", str(cache), "--finish"]
    reader = [sys.executable, "-c", READ, str(cache), str(options.length), str(options.batch)]
    began = time.time()
    with (
        subprocess.Popen(build, stdout=subprocess.DEVNULL) as builder,
        subprocess.Popen(reader, stdout=subprocess.PIPE, text=True) as following,
    ):
        if builder.wait():
            following.kill()
            sys.exit("the build failed")
        built = time.time()
        told: Any = json.loads(following.communicate()[0])
    return {
        "first": told["first"] - began,
        "done": told["there"] / told["rows"],
        "served": told["last"] - began,
        "build": built - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print("first    done  served  build")
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(options, Path(folder) / "cache")
        print(
            f"{found['first']:5.1f}  {found['done']:5.0%}  {found['served']:6.1f}  "
            f"{found['build']:5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
