"""How soon a file that arrives is a row that can be read, and how much arrives, sustained.

    python bench/stream.py bench/data/300MB --tokenizer T

`watch` and `stream` (on Prism) take in files that are renamed into place. First small files come
one after another: the time from the rename to the version in which a reader finds its rows is the
latency. Then large files lie there at once: bytes of source from the start of that load until all
rows can be read are the rate.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cachelib
from cachelib.errors import CacheNotFound

HERE = Path(__file__).resolve().parent
MB = 1e6
POLL = 0.01
LONGEST = 120.0


def rows(path: Path) -> int:
    try:
        return len(cachelib.open(path))
    except CacheNotFound:
        return 0


def wait_for(to: Path, goal: int, process: subprocess.Popen[bytes]) -> float:
    """The time at which a reader finds so many rows."""
    began = time.monotonic()
    while rows(to) < goal:
        if process.poll() is not None:
            raise SystemExit(f"the command ended with {process.returncode}")
        if time.monotonic() - began > LONGEST:
            raise SystemExit(f"{rows(to)} of {goal} rows after {LONGEST:.0f} s")
        time.sleep(POLL)
    return time.monotonic()


@contextmanager
def running(
    command: str, folder: Path, to: Path, arguments: list[str]
) -> Iterator[subprocess.Popen[bytes]]:
    program = "from pipelines.entry import command; command()"  # of this working tree
    process = subprocess.Popen(
        [sys.executable, "-c", program, command, str(folder), "--to", str(to), *arguments],
        cwd=HERE.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def put(folder: Path, name: str, lines: list[bytes]) -> float:
    draft = folder / f"{name}.tmp"
    draft.write_bytes(b"".join(lines))
    draft.rename(folder / f"{name}.jsonl")
    return time.monotonic()


def measure(
    command: str, lines: list[bytes], load: list[list[bytes]], options: argparse.Namespace
) -> tuple[list[float], float]:
    """Latencies in seconds, and bytes a second under load."""
    with tempfile.TemporaryDirectory(dir=HERE / "data") as work:
        folder, to = Path(work) / "in", Path(work) / "cache"
        folder.mkdir()
        put(folder, "first", lines[:1])
        arguments = [
            "--tokenizer",
            options.tokenizer,
            "--settle",
            "0",
            "--every",
            str(options.every),
        ]
        with running(command, folder, to, arguments) as process:
            wait_for(to, 1, process)
            there = 1
            latencies = []
            for number in range(options.files):
                time.sleep(0.37 * options.every)  # out of step with the looks
                own = lines[there : there + options.documents]
                at = put(folder, f"small-{number}", own)
                there += len(own)
                latencies.append(wait_for(to, there, process) - at)
            began = time.monotonic()
            for number, own in enumerate(load):
                put(folder, f"large-{number}", own)
                there += len(own)
            size = sum(len(line) for own in load for line in own)
            rate = size / (wait_for(to, there, process) - began)
        return latencies, rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, help="folder of JSONL files (bench/corpus.py makes one)")
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--every", type=float, default=1.0, help="seconds of a look and a window")
    parser.add_argument("--files", type=int, default=15, help="small files")
    parser.add_argument("--documents", type=int, default=20, help="in a small file")
    parser.add_argument("--load", type=float, default=60, metavar="MB", help="of the large files")
    parser.add_argument(
        "--only", nargs="+", choices=("watch", "stream"), default=["watch", "stream"]
    )
    options = parser.parse_args()
    options.tokenizer = str(Path(options.tokenizer).resolve())

    files = sorted(options.text.resolve().glob("*.jsonl"))
    if not files:
        raise SystemExit(f"no *.jsonl in {options.text}; make some with bench/corpus.py")
    with files[0].open("rb") as file:
        lines = [file.readline() for _ in range(1 + options.files * options.documents)]
    load, size = [], 0
    for path in files[1:]:
        with path.open("rb") as file:
            own = []
            while size < options.load * MB and (line := file.readline()):
                own.append(line)
                size += len(line)
        if own:
            load.append(own)
    print(f"{os.cpu_count()} cores; a look every {options.every:g} s; {size / MB:.0f} MB of load")
    print(f"{'':8}{'median s':>10}{'slowest s':>11}{'MB/s':>7}")
    for command in options.only:
        latencies, rate = measure(command, lines, load, options)
        median = statistics.median(latencies)
        print(f"{command:8}{median:10.2f}{max(latencies):11.2f}{rate / MB:7.1f}", flush=True)


if __name__ == "__main__":
    main()
