"""What reading costs where every read takes long to begin, by where the order is made.

    python bench/order.py bench/data/300MB --tokenizer tokenizer.json

Builds a cache of the text in the order of its sources and one with --order shuffle(0), serves both
as s3:// by a process on this machine that answers each request after --latency milliseconds, and
reads batches of windows of them:

    full       cache.windows(...).shuffle(0): a permutation of all windows
    block      cache.windows(...).shuffle(0, block=64, window=32)
    sequence   the windows of the shuffled cache, one after another

    build s    seconds of the build as a whole process, the fastest of --repeat turns
    reads      requests a batch, of --batches batches after the first
    KiB        bytes of the answers a batch; a batch holds --batch windows of --length tokens
    batches    batches a second meanwhile
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.reader.s3 import COUNTS, serving

HERE = Path(__file__).resolve().parent
ORDERS = {"full": "source", "block": "source", "sequence": "shuffle(0)"}


def build(options: argparse.Namespace, order: str, to: Path) -> float:
    """Build a cache in a process of its own; seconds."""
    program = "from pipelines.entry import command; command()"  # of this working tree
    command = [sys.executable, "-c", program, "build", str(options.text), "--order", order]
    command += ["--tokenizer", options.tokenizer, "--to", str(to), "--finish", "--quiet"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=HERE.parent)
    return time.perf_counter() - began


def counts() -> tuple[int, int]:
    """Requests and bytes that the server has answered so far."""
    with urlopen(os.environ["AWS_ENDPOINT_URL_S3"] + COUNTS) as told:
        requests, sent = map(int, told.read().split())
    return requests, sent


def read(options: argparse.Namespace) -> dict[str, float]:
    """Read batches; in the process that reads."""
    import cachelib

    windows = cachelib.open("s3://bucket").windows(options.length)
    if options.read == "full":
        windows = windows.shuffle(0)
    elif options.read == "block":
        windows = windows.shuffle(0, block=64, window=32)
    loader = windows.loader(options.batch, prefetch=options.prefetch)
    next(loader)
    before, began = counts(), time.perf_counter()
    for _ in range(options.batches):
        next(loader)
    seconds = time.perf_counter() - began
    requests, sent = (after - first for first, after in zip(before, counts(), strict=True))
    return {
        "requests": requests / options.batches,
        "sent": sent / options.batches,
        "rate": options.batches / seconds,
    }


def measure(options: argparse.Namespace, kind: str, cache: Path) -> dict[str, Any]:
    """One way to read, with a server and a reader of its own."""
    command = [sys.executable, __file__, str(options.text), "--read", kind]
    for name in ("tokenizer", "length", "batch", "batches", "prefetch"):
        command += [f"--{name}", str(getattr(options, name))]
    with serving(cache, options.latency / 1000) as variables:
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--latency", type=float, default=50, help="milliseconds")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--prefetch", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3, help="builds of each order")
    parser.add_argument("--read", choices=ORDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        print(json.dumps(read(options)))
        return
    with tempfile.TemporaryDirectory(prefix="order-", dir=HERE / "data") as folder:
        print(f"{'order':12}{'build s':>9}  turns")
        for order in dict.fromkeys(ORDERS.values()):
            turns = [
                build(options, order, Path(folder, f"{order}-{turn}"))
                for turn in range(options.repeat)
            ]
            told = " ".join(f"{seconds:.1f}" for seconds in turns)
            print(f"{order:12}{min(turns):9.1f}  {told}", flush=True)
        print(f"\n{'':12}{'reads':>9}{'KiB':>9}{'batches/s':>11}")
        for kind, order in ORDERS.items():
            found = measure(options, kind, Path(folder, f"{order}-0"))
            print(
                f"{kind:12}{found['requests']:9.1f}{found['sent'] / 1024:9.0f}"
                f"{found['rate']:11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
