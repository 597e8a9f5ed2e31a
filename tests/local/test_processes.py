"""Several processes that fill, evict from and read one folder at once, some of them killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cachelib.local.entry import FORMS, Form, is_entry
from tests.reader.stored import write_commit

ROOT = Path(__file__).parents[2]

READ = """
import sys
import time
import numpy as np
import cachelib
from cachelib.local import folder, tier

path, local, form, limit, seed, seconds = sys.argv[1:]
folder.SPARED_SECONDS, tier.FULL_SECONDS = -1.0, 0.0  # evict all the time
cache = cachelib.open(path, local=local, local_format=form, local_bytes=int(limit))
rng = np.random.default_rng(int(seed))
until = time.monotonic() + float(seconds)
print("begun", flush=True)
while time.monotonic() < until:
    rows = rng.integers(0, len(cache), 40)
    found = cache.take(rows)
    assert found["label"].tolist() == (10 * rows).tolist()
    starts = rng.integers(0, cache.elements("tokens") - 30, 9)
    expected = starts[:, None] + np.arange(30)
    assert cache.read_elements("tokens", starts, 30).tolist() == expected.tolist()
    cache.local.wait()
counts = cache.local.counts
assert counts.damaged == 0, counts
print(counts.hits, counts.downloaded, counts.evicted)
"""


@pytest.mark.parametrize("form", FORMS)
def test_processes_share_a_folder_and_may_be_killed(tmp_path: Path, form: Form) -> None:
    write_commit(tmp_path / "cache", [[30] * 8] * 40)
    local, limit = tmp_path / "tier", 20_000
    rng = random.Random(0)

    def reader(seed: int, seconds: float) -> subprocess.Popen[str]:
        values = (tmp_path / "cache", local, form, limit, seed, seconds)
        command = [sys.executable, "-c", READ, *map(str, values)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    readers = [reader(seed, 2.5) for seed in range(3)]
    for seed in range(3, 6):
        killed = reader(seed, 60)
        assert killed.stdout is not None
        assert killed.stdout.readline() == "begun\n"
        time.sleep(rng.random() / 3)
        killed.kill()
        killed.wait()
        killed.stdout.close()
    told = [each.communicate(timeout=60)[0].split() for each in readers]
    assert [each.returncode for each in readers] == [0] * 3
    hits, downloaded, evicted = (sum(int(one[at]) for one in told) for at in (1, 2, 3))
    assert min(hits, downloaded, evicted) > 0
    held = [file for file in local.iterdir() if is_entry(file.name)]
    assert sum(file.stat().st_size for file in held) <= limit
