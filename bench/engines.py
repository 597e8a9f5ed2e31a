"""What engines cost: one build on each in turns, in the same run.

    python bench/engines.py bench/data/300MB --tokenizer tokenizer.json --prism prism

Each build is a process of its own, with a cache of its own. Dask has a scheduler and one or two
workers of one thread each on this machine, begun before; Prism is begun by the build.

    start    seconds of the build of one small file: the engine, the tokenizer, one commit
    s        seconds of the build of the corpus
    MB/s     of text, in the seconds beyond `start`
    ratio    of that to the embedded runner's
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from machine import size_of

from tests.engines.dask_cluster import Cluster

EMBEDDED = "embedded"


def seconds(corpus: Path, options: argparse.Namespace, engine: list[str]) -> float:
    """Of one build, from the command to its end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pipelines.entry", "build", str(corpus), "--quiet"]
        command += ["--tokenizer", str(options.tokenizer), "--to", f"{folder}/cache", *engine]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def engines(options: argparse.Namespace, stack: ExitStack) -> Iterator[tuple[str, list[str]]]:
    """Names and options of the engines that can be had here."""
    yield EMBEDDED, ["--workers", "1"]
    for workers in (1, 2):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = stack.enter_context(Cluster(Path(folder), workers))
        yield f"dask, {workers} worker{'s' if workers > 1 else ''}", cluster.engine
    if options.prism is not None:
        yield "prism", ["--runner", "PrismRunner", f"--prism_location={options.prism}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--prism", type=Path, help="the program; without it Prism is left out")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.jsonl"
        small.write_text('{"text": "one"}\n')
        there = list(engines(options, stack))
        for _ in range(options.runs):
            for name, engine in there:
                pair = seconds(small, options, engine), seconds(options.corpus, options, engine)
                taken.setdefault(name, []).append(pair)
                print(f"{name}: {pair[0]:.1f} and {pair[1]:.1f} s", file=sys.stderr, flush=True)
    megabytes = size_of(options.corpus) / 1e6
    rates = {}
    print("engine            start      s   MB/s  ratio")
    for name, pairs in taken.items():
        start, whole = (statistics.median(each) for each in zip(*pairs, strict=True))
        rates[name] = megabytes / (whole - start)
        ratio = rates[name] / rates[EMBEDDED]
        print(f"{name:16} {start:6.1f} {whole:6.1f} {rates[name]:6.1f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
