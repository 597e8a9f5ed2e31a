"""Memory does not grow with the size of a file."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SMALL, LARGE = 128, 640  # MiB of JSONL; caches of words and buffers fill up over the first 100
ALLOWED = 120  # MiB more for the large file than for the small one

PROGRAM = """
import resource, sys
from pipelines.entry import main
status = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
sys.exit(status)
"""


def write(path: Path, mebibytes: int) -> None:
    """A file of records of some 2 KB, the words of each in another order."""
    draw = random.Random(0)
    words = [f"{draw.choice('abcdefgh')}{i}ing" for i in range(5000)]
    packed = path.suffix == ".gz"
    with gzip.open(path, "wt", compresslevel=1) if packed else path.open("w") as file:
        written = 0
        while written < mebibytes << 20:
            line = json.dumps({"text": " ".join(draw.choices(words, k=300))}) + "\n"
            written += file.write(line)


def peak(source: Path, tokenizer: str, to: Path) -> int:
    """Peak memory of a build of one file, in MiB."""
    options = ["--tokenizer", tokenizer, "--to", str(to), "--quiet", "--split-bytes", "16MB"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "build", str(source), *options],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_file_five_times_as_large_takes_no_more_memory(
    suffix: str, tokenizer: str, tmp_path: Path
) -> None:
    peaks = []
    for size in (SMALL, LARGE):
        write(tmp_path / f"{size}.{suffix}", size)
        peaks.append(peak(tmp_path / f"{size}.{suffix}", tokenizer, tmp_path / f"cache{size}"))
    assert peaks[1] < peaks[0] + ALLOWED, f"{SMALL} and {LARGE} MiB took {peaks} MiB"
