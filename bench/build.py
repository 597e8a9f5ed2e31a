"""Compares a Forebay build with programs that do the same work, on the same text, in one run.

    python bench/build.py bench/data/300MB --tokenizer tokenizer.json [--repeat 3] [--only forebay]

Every contender runs as a whole process, imports included, with the files in the page cache and
earlier output flushed to disk. With --repeat the contenders take turns and the fastest turn of each
counts: whatever else the machine does only ever slows one down.

    wall      seconds from start to exit, and those of the slowest turn
    first     seconds from start to the first record
    running   MB/s from the first record to the last
    peak      largest sum of resident memory over the process tree, sampled (pages shared between
              processes count once for each)
    others    cores kept busy by anything else meanwhile: near 0 on a quiet machine
    x bare    speed as a multiple of the better bare loop: whole process / once running
    forebay   how many times as fast Forebay's whole process is

MB are 10^6 bytes of the JSONL files. The last line of a contender is JSON. A baseline says when its
first record came and when its work ended; Forebay says how long its waves took, from the start of
the first wave on, so its `first` also holds what it does after the last one.
The usual tokenizer of `datasets` is slow, so it runs on the smallest files, up to --datasets-limit
MB; its time from first to last record is scaled to the whole text and the table says so.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from machine import busy_seconds, children_seconds, size_of

HERE = Path(__file__).resolve().parent
MB = 1e6
SAMPLE_SECONDS = 0.1

Command = Callable[[Sequence[str], str, str], list[str]]


def forebay(files: Sequence[str], tokenizer: str, to: str) -> list[str]:
    program = "from pipelines.entry import command; command()"  # of this working tree
    command = [sys.executable, "-c", program, "build", *files, "--tokenizer", tokenizer, "--to", to]
    return [*command, "--finish", "--quiet", "--json-summary"]


def baseline(contender: str, processes: int) -> Command:
    def command(files: Sequence[str], tokenizer: str, to: str) -> list[str]:
        script = [sys.executable, str(HERE / "baselines.py"), contender, *files]
        return [*script, "--processes", str(processes), "--tokenizer", tokenizer, "--to", to]

    return command


CONTENDERS: dict[str, Command] = {
    "forebay": forebay,
    "bare-1": baseline("bare", 1),
    "bare-2": baseline("bare", 2),
    "datasets-gigatoken": baseline("datasets-gt", 2),
    "datasets": baseline("datasets", 2),
}


@dataclass(frozen=True)
class Result:
    """One run. Times in seconds, sizes in bytes; wall and tokens are for the whole text."""

    wall: float
    first: float
    running: float  # bytes of source per second, first record to last
    tokens: float
    bytes_per_token: float
    peak: int
    others: float
    scale: float  # whole text over the text that was read
    slowest: float | None


def tree_memory(process: psutil.Process) -> int:
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_info().rss
        except psutil.Error:
            continue  # it has just ended
    return total


class PeakMemory:
    """Samples the memory of a process and its descendants until it ends."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._process = psutil.Process(pid)
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        try:
            while self._process.status() != psutil.STATUS_ZOMBIE:
                self.peak = max(self.peak, tree_memory(self._process))
                time.sleep(SAMPLE_SECONDS)
        except psutil.Error:
            pass


def last_json(output: str) -> dict[str, Any]:
    lines = output.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"no JSON in the last line printed: {output[-500:]!r}")
    summary: dict[str, Any] = json.loads(lines[-1])
    return summary


def read_summary(summary: dict[str, Any], start: float, wall: float) -> tuple[int, float, float]:
    """(tokens, seconds to the first record, seconds of work) of a baseline or of Forebay."""
    if "first_record" in summary:
        first = summary["first_record"]
        return summary["tokens"], first - start, summary["end"] - first
    return summary["new_tokens"], wall - summary["working"], summary["working"]


def run(command: list[str], to: Path, read: int, whole: int) -> Result:
    """Run one contender that reads `read` bytes of a text of `whole` bytes and writes to `to`."""
    os.sync()
    busy, own, start = busy_seconds(), children_seconds(), time.time()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE.parent
    )
    memory = PeakMemory(process.pid)
    output, errors = process.communicate()
    wall = time.time() - start
    others = (busy_seconds() - busy - (children_seconds() - own)) / wall
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {process.returncode}:\n{errors[-3000:]}")
    summary = last_json(output)
    scale = whole / read
    tokens, first, work = read_summary(summary, start, wall)
    return Result(
        wall=wall + work * (scale - 1),
        first=first,
        running=read / work,
        tokens=tokens * scale,
        bytes_per_token=size_of(to) / tokens,
        peak=memory.peak,
        others=max(0.0, others),
        scale=scale,
        slowest=summary.get("slowest_document"),
    )


def smallest(files: list[Path], limit: float) -> list[Path]:
    """The smallest files that together stay within `limit` bytes; at least one."""
    chosen: list[Path] = []
    for path in sorted(files, key=lambda f: f.stat().st_size):
        if chosen and sum(f.stat().st_size for f in [*chosen, path]) > limit:
            break
        chosen.append(path)
    return chosen


def table(results: dict[str, list[Result]], whole: int) -> str:
    nan = float("nan")
    best = {name: min(runs, key=lambda run: run.wall) for name, runs in results.items()}
    bare = [result for name, result in best.items() if name.startswith("bare")]
    bare_wall = min((result.wall for result in bare), default=nan)
    bare_running = max((result.running for result in bare), default=nan)
    ours = best["forebay"].wall if "forebay" in best else nan
    lines = [
        f"{'':19}{'wall s':>8}{'slowest':>9}{'first s':>9}{'MB/s':>7}{'running':>9}{'Mtok/s':>8}"
        f"{'B/token':>9}{'peak MiB':>10}{'others':>8}{'x bare':>13}{'forebay':>9}"
    ]
    for name, r in best.items():
        lines.append(
            f"{name:19}{r.wall:8.2f}{max(run.wall for run in results[name]):9.2f}{r.first:9.2f}"
            f"{whole / MB / r.wall:7.1f}{r.running / MB:9.1f}{r.tokens / r.wall / 1e6:8.2f}"
            f"{r.bytes_per_token:9.2f}{max(run.peak for run in results[name]) / 2**20:10.0f}"
            f"{r.others:8.2f}{f'{bare_wall / r.wall:.2f} / {r.running / bare_running:.2f}':>13}"
            f"{r.wall / ours:9.2f}"
        )
    for name, r in best.items():
        if r.scale > 1:
            lines.append(f"{name} ran on 1/{r.scale:.1f} of the text; its times are scaled")
        if r.slowest is not None:
            lines.append(f"{name}: slowest single document {r.slowest:.3f} s")
    counts = {name: f"{r.tokens:,.0f}" for name, r in best.items() if r.scale == 1}
    if len(set(counts.values())) > 1:
        lines.append(f"the numbers of tokens differ: {counts}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, help="folder of JSONL files (bench/corpus.py makes one)")
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--datasets-limit", type=float, default=60, metavar="MB")
    options = parser.parse_args()

    files = sorted(options.text.resolve().glob("*.jsonl"))
    if not files:
        raise SystemExit(f"no *.jsonl in {options.text}; make some with bench/corpus.py")
    for path in files:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    whole = sum(path.stat().st_size for path in files)
    tokenizer = str(Path(options.tokenizer).resolve())
    print(f"{whole / MB:.0f} MB in {len(files)} files; {os.cpu_count()} cores", flush=True)

    results: dict[str, list[Result]] = {name: [] for name in options.only}
    for turn in range(options.repeat):
        for name in options.only:
            chosen = smallest(files, options.datasets_limit * MB) if name == "datasets" else files
            read = sum(path.stat().st_size for path in chosen)
            to = Path(tempfile.mkdtemp(prefix="out-", dir=HERE / "data"))
            try:
                command = CONTENDERS[name]([str(f) for f in chosen], tokenizer, str(to))
                result = run(command, to, read, whole)
            finally:
                shutil.rmtree(to)
            results[name].append(result)
            print(f"turn {turn + 1}: {name} {result.wall:.2f} s", file=sys.stderr, flush=True)
    print(table(results, whole))


if __name__ == "__main__":
    main()
