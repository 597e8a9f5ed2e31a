"""How long opening a cache and resuming a run take, from small caches to huge ones.

    python bench/scale.py

The ledgers are real ones, of shards that are not there: neither opening nor resuming reads a shard.
They lie in --work, on local disk in the page cache. The fastest of --repeat turns counts.

    open       seconds of `cachelib.open`; `reads` are the objects it reads
    resume     seconds from opening the cache to knowing which rows the next batch holds: the cache
               at a version, windows of 2,048 tokens shuffled and repeated, a loader from a saved
               state, the rows of its batch of 64
    batch      milliseconds to know the rows of the batch at a position, of 10^10 rows
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

import cachelib
from cachelib.dataset import Dataset
from cachelib.format.storage import Storage

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.reader.stored import write_simulated


def fastest(act: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of several turns."""
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def reads_of(act: Callable[[], object]) -> int:
    """Objects that are read."""
    count = 0
    read_many = Storage.read_many

    def counting(storage: Storage, keys: Iterable[str]) -> list[bytes | None]:
        nonlocal count
        wanted = list(keys)
        count += len(wanted)
        return read_many(storage, wanted)

    with mock.patch.object(Storage, "read_many", counting):
        act()
    return count


def train(path: Path, version: int | None = None) -> Dataset:
    return cachelib.open(path, version).windows(2048).shuffle(seed=0).repeat()


def resumed(path: Path, state: dict[str, object]) -> object:
    version = state["version"]
    assert isinstance(version, int)
    ds = train(path, version)
    loader = ds.loader(64, start=state)
    return ds.trace(loader.span(loader.step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--work", type=Path, default=None, help="folder for the ledgers")
    options = parser.parse_args()
    os.fsync = lambda fd: None  # writing the ledgers is not what is measured
    work = Path(tempfile.mkdtemp(prefix="scale-", dir=options.work))
    try:
        print(f"{'shards':>12}{'commits':>9}{'open s':>9}{'reads':>7}")
        for shards, commits in ((1000, 127), (10_000, 127), (100_000, 127), (100_000, 128)):
            path = work / f"shards-{shards}-{commits}"
            write_simulated(path, shards, 1000, commits)
            seconds = fastest(partial(cachelib.open, path), options.repeat)
            reads = reads_of(partial(cachelib.open, path))
            print(f"{shards:12,}{commits:9}{seconds:9.3f}{reads:7}")
        print(f"\n{'rows':>16}{'resume s':>11}   (1,000 shards, 10 commits)")
        for rows in (10**6, 10**8, 10**10):
            path = work / f"rows-{rows}"
            write_simulated(path, 1000, rows // 1000, 10)
            state = json.loads(json.dumps(train(path).loader(64, start=10**6 // 64).state_dict()))
            seconds = fastest(partial(resumed, path, state), options.repeat)
            print(f"{rows:16,}{seconds:11.4f}")
        print(f"\n{'position':>22}{'batch ms':>10}")
        ds = train(path)
        for position in (0, 10**6, 10**9, 10**12, 10**15):
            rows_at = np.arange(position, position + 64)
            seconds = fastest(partial(ds.trace, rows_at), options.repeat)
            print(f"{position:22,}{seconds * 1e3:10.3f}")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
