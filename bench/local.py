"""Random batches through a folder on this machine, against a bare memmap and against the store.

    python bench/local.py CACHE

CACHE is a cache on local disk with a field `tokens`. It is served as s3:// by a process on this
machine that answers each request after --latency milliseconds. All contenders read the same random
windows in batches, in one process and in turns; the files are in the page cache.

    memmap       the ids as one raw file, mapped: `windows[indices]`
    raw          `open(url, local=..., local_format="raw")`, once all is there
    encoded      the same without `local_format`
    raw, first   the same by a process that has proven no block yet
    remote       without `local`
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.reader.s3 import serving

Batch = Callable[[np.ndarray], np.ndarray]


def rate(batch: Batch, indices: np.ndarray, seconds: float) -> float:
    """Windows a second, in batches that take turns."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        batch(indices[count % len(indices)])
        count += 1
    return count * indices.shape[1] / (time.perf_counter() - began)


def compare(options: argparse.Namespace, work: Path) -> None:
    """Fill folders from the store and measure; in the environment of the store."""
    import cachelib

    def opened(**local: str) -> Batch:
        windows = cachelib.open("s3://bucket", partial=True, **local).windows(options.length)  # type: ignore[call-overload]
        return lambda indices: windows.take(indices)["tokens"]

    remote = opened()
    there = cachelib.open(options.cache, partial=True).windows(options.length)
    rows = len(there)
    with (work / "ids").open("wb") as file:
        for first in range(0, rows, 4096):
            there.take(np.arange(first, min(first + 4096, rows)))["tokens"].tofile(file)
    dtype = there.take([0])["tokens"].dtype
    ids = np.memmap(work / "ids", dtype, "r").reshape(-1, options.length)
    contenders: dict[str, Batch] = {"memmap": lambda indices: ids[indices]}
    for form in ("raw", "encoded"):
        local = {"local": str(work / form), "local_format": form}
        began = time.perf_counter()
        cache = cachelib.open("s3://bucket", partial=True, **local)  # type: ignore[call-overload]
        cache.windows(options.length).take(np.arange(0, rows, 64))
        cache.local.wait()
        seconds = time.perf_counter() - began
        print(f"{form}: filled in {seconds:.1f} s: {cache.local}", flush=True)
        contenders[form] = opened(**local)
    indices = np.random.default_rng(0).integers(0, rows, (4096, options.batch))
    found: dict[str, list[float]] = {"raw, first": [rate(contenders["raw"], indices, 0.5)]}
    for batch in contenders.values():
        rate(batch, indices, options.seconds)
    for _ in range(options.turns):
        for name, batch in contenders.items():
            found.setdefault(name, []).append(rate(batch, indices, options.seconds / 4))
    found["remote"] = [rate(remote, indices, options.seconds)]
    bare = np.array(found["memmap"])
    for name, turns in found.items():
        ratio = np.median(bare / np.array(turns))
        print(f"{name:12}{max(turns):12,.0f} windows/s{ratio:10.2f} times as long as memmap")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--latency", type=float, default=50, help="milliseconds")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="local-", dir=options.cache.resolve().parent))
    try:
        with serving(options.cache, options.latency / 1000) as variables:
            os.environ.update(variables)
            compare(options, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
