"""Compares reading a Forebay cache with other readers of the same ids, in one run.

    python bench/read.py CACHE [--others PYTHON] [--repeat 3] [--only forebay memmap]

CACHE is a cache with a field `tokens`, as `forebay build` makes one of bench/corpus.py's text. The
other readers get its ids as rows of --length (uint32), written in their own way, and run under the
interpreter --others; one that is not installed there is left out, and the table says so. Contenders
take turns, each measurement in a process of its own with the files in the page cache, and the best
turn of each counts: whatever else the machine does only ever slows one down.

    random     windows a second, in batches of --batch random ones, as the reader offers it
    loader     windows a second of the reader's own shuffled loader
    first      seconds from the start of a process to its loader's first batch
    resumed    the same from the middle of the epoch
    B/token    bytes of files a token
    peak       largest resident memory of a process that loads, mapped files included
    others     cores kept busy by anything else during the best turn of the loader
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from machine import busy_seconds, children_seconds, size_of

HERE = Path(__file__).resolve().parent
NAMES = ("memmap", "datasets", "streaming", "grain", "litdata", "forebay", "forebay-blocks")


@dataclass
class Best:
    """The best of the turns so far."""

    random: float = 0.0
    loader: float = 0.0
    first: float = float("inf")
    resumed: float = float("inf")
    peak: int = 0
    others: float = 0.0
    bytes_per_token: float = 0.0
    random_turns: list[float] = field(default_factory=list)
    loader_turns: list[float] = field(default_factory=list)


def call(python: str, *arguments: object) -> dict[str, Any] | str:
    """The JSON of a run of `readers.py`, with `began` and `others`; or why there is none."""
    busy, own, began = busy_seconds(), children_seconds(), time.time()
    command = [python, str(HERE / "readers.py"), *map(str, arguments)]
    paths = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=paths)
    wall = time.time() - began
    others = (busy_seconds() - busy - (children_seconds() - own)) / wall
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "began": began, "others": max(0.0, others)}


def write_ids(cache: Any, length: int, path: Path) -> int:
    """The ids of all whole windows as a raw file of uint32; returns how many windows."""
    windows = cache.elements("tokens") // length
    with path.open("wb") as file:
        for first in range(0, windows, 4096):
            starts = np.arange(first, min(first + 4096, windows), dtype=np.int64) * length
            cache.read_elements("tokens", starts, length).astype(np.uint32).tofile(file)
    return windows


def turn(python: str, name: str, at: Path, rows: int, options: Any, best: Best) -> str | None:
    """Measure a contender once more; returns why it cannot be, or None."""
    common = ["--length", options.length, "--batch", options.batch, "--seconds", options.seconds]
    middle = rows // options.batch // 2
    found = {
        what: call(python, name, kind, at, "--rows", rows, "--skip", skip, *common)
        for what, kind, skip in (
            ("first", "first", 0),
            ("resumed", "first", middle),
            ("random", "random", 0),
            ("loader", "loader", 0),
        )
    }
    for what, result in found.items():
        if isinstance(result, str):
            return f"{what}: {result}"
        if what == "first":
            best.first = min(best.first, result["at"] - result["began"])
        elif what == "resumed":
            best.resumed = min(best.resumed, result["at"] - result["began"])
        elif what == "random":
            best.random_turns.append(result["rate"])
            best.random = max(best.random, result["rate"])
        else:
            best.loader_turns.append(result["rate"])
            best.peak = max(best.peak, result["peak"])
            if result["rate"] > best.loader:
                best.loader, best.others = result["rate"], result["others"]
    return None


def table(results: dict[str, Best], left_out: dict[str, str]) -> str:
    lines = [
        f"{'':16}{'random':>9}{'loader':>9}{'first s':>9}{'resumed s':>11}{'B/token':>9}"
        f"{'peak MiB':>10}{'others':>8}   turns of random, of loader (thousands)"
    ]
    for name, b in results.items():
        turns = ", ".join(
            " ".join(f"{rate / 1e3:.1f}" for rate in rates)
            for rates in (b.random_turns, b.loader_turns)
        )
        lines.append(
            f"{name:16}{b.random:9,.0f}{b.loader:9,.0f}{b.first:9.2f}{b.resumed:11.2f}"
            f"{b.bytes_per_token:9.2f}{b.peak / 2**20:10.0f}{b.others:8.2f}   {turns}"
        )
    lines += [f"left out {name}: {why}" for name, why in left_out.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--others", default=sys.executable, help="interpreter of the other readers")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args()

    import cachelib

    cache = cachelib.open(options.cache)
    work = Path(tempfile.mkdtemp(prefix="read-", dir=HERE / "data"))
    results: dict[str, Best] = {}
    left_out: dict[str, str] = {}
    try:
        ids = work / "ids.bin"
        rows = write_ids(cache, options.length, ids)
        tokens = rows * options.length
        print(f"{tokens / 1e6:.0f} M tokens, {rows:,} windows; {os.cpu_count()} cores", flush=True)
        folders = {}
        for name in options.only:
            folders[name] = options.cache.resolve()
            if not name.startswith("forebay"):
                folders[name] = work / name
                folders[name].mkdir()
                done = call(
                    options.others, name, "write", ids, folders[name], "--length", options.length
                )
                if isinstance(done, str):
                    left_out[name] = done
                    continue
            results[name] = Best(bytes_per_token=size_of(folders[name]) / tokens)
        for number in range(options.repeat):
            for name, best in list(results.items()):
                python = sys.executable if name.startswith("forebay") else options.others
                why = turn(python, name, folders[name], rows, options, best)
                if why is not None:
                    left_out[name] = why
                    del results[name]
                print(f"turn {number + 1}: {name}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(work)
    print(table(results, left_out))


if __name__ == "__main__":
    main()
