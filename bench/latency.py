"""How many batches a second a shuffled loader gives where every read takes long to begin.

    python bench/latency.py CACHE

CACHE is a cache on local disk with a field `tokens`. It is served as s3:// by a process on this
machine that answers each request after --latency milliseconds, and read by another one, which takes
part of the two cores; so this measures waiting, not bandwidth.

    under way  requests that may be open at once: what TensorStore does by itself, and what Forebay
               sets (`cachelib.format.storage.REQUESTS`); `peak` are those that were
    first      seconds from opening the cache to the first batch
    batches    batches of --batch windows of --length tokens a second, after the first
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from cachelib.format import storage

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.reader.s3 import PEAK, serving

TENSORSTORE = 32
"""Requests under way where nothing is said."""


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Read batches for some seconds; in the process that reads."""
    storage.REQUESTS = options.requests
    import cachelib

    began = time.perf_counter()
    windows = cachelib.open("s3://bucket").windows(options.length)
    train = windows.shuffle(seed=0, block=64, window=32) if options.blocks else windows.shuffle(0)
    loader = train.repeat().loader(options.batch, prefetch=options.prefetch)
    next(loader)
    first = time.perf_counter() - began
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        next(loader)
        count += 1
    return {"first": first, "rate": count / (time.perf_counter() - began)}


def run(options: argparse.Namespace, latency: float, requests: int, blocks: bool) -> dict[str, Any]:
    """One measurement, with a server and a reader of its own."""
    command = [sys.executable, __file__, str(options.cache), "--requests", str(requests)]
    command += ["--blocks"] * blocks
    for name in ("length", "batch", "prefetch", "seconds"):
        command += [f"--{name}", str(getattr(options, name))]
    with serving(options.cache, latency) as variables:
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        with urlopen(variables["AWS_ENDPOINT_URL_S3"] + PEAK) as told:
            peak = int(told.read())
    return {**json.loads(done.stdout), "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--latency", type=float, default=50, help="milliseconds")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--prefetch", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--requests", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--blocks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.requests is not None:
        print(json.dumps(measure(options)))
        return
    print(f"{'':14}{'latency ms':>11}{'under way':>11}{'peak':>6}{'first s':>9}{'batches/s':>11}")
    for blocks in (False, True):
        for latency in (0.0, options.latency):
            for requests in (TENSORSTORE, storage.REQUESTS):
                found = run(options, latency / 1000, requests, blocks)
                print(
                    f"{'block shuffle' if blocks else 'full shuffle':14}{latency:11.0f}"
                    f"{requests:11}{found['peak']:6}{found['first']:9.2f}{found['rate']:11.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
