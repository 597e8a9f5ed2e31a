"""Caches of any size are opened, and runs resumed, by as few reads and in as little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cachelib
from cachelib.format.ledger import SEGMENT_ENTRIES
from cachelib.format.storage import Storage
from cachelib.format.succession import CHECKPOINT_EVERY
from tests.reader.stored import write_commit, write_simulated

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reads(monkeypatch):
    """The keys of all objects that are read, and the arrays that are opened."""
    keys: list[str] = []
    read_many, open_array = Storage.read_many, Storage.open_array

    def reading(storage, wanted):
        wanted = list(wanted)
        keys.extend(wanted)
        return read_many(storage, wanted)

    def opening(storage, key, *args, **options):
        keys.append(key)
        return open_array(storage, key, *args, **options)

    monkeypatch.setattr(Storage, "read_many", reading)
    monkeypatch.setattr(Storage, "open_array", opening)
    return keys


def test_opening_takes_as_many_reads_whatever_the_number_of_shards(tmp_path, reads):
    taken = {}
    for shards in (1000, 100_000):
        path = tmp_path / str(shards)
        write_simulated(path, shards, rows=5, commits=CHECKPOINT_EVERY + 3)
        reads.clear()
        assert len(cachelib.open(path)) == shards * 5
        segments = [key for key in reads if "checkpoint" in key]
        taken[shards] = len(reads) - len(segments)
        before = shards * CHECKPOINT_EVERY // (CHECKPOINT_EVERY + 3) + CHECKPOINT_EVERY
        assert len(segments) <= -(-before // SEGMENT_ENTRIES)
    # The hint, whether a newer one is there, the newest itself, and those since the checkpoint.
    assert taken == dict.fromkeys(taken, 4 + 3)


@pytest.mark.parametrize("rows", [10**6, 10**8, 10**10])
def test_a_resume_reads_no_more_of_a_larger_cache(tmp_path, reads, rows):
    shards = 1000
    write_simulated(tmp_path, shards, rows // shards)
    train = cachelib.open(tmp_path).windows(2048).shuffle(seed=0).repeat()
    state = json.loads(json.dumps(train.loader(64, start=10**10).state_dict()))
    reads.clear()
    train = cachelib.open(tmp_path).windows(2048).shuffle(seed=0).repeat()
    loader = train.loader(64, start=state)
    plan = train.trace(loader.span(loader.step))
    assert len(set(plan["row"].tolist())) > 1
    assert len(reads) == 5


OPENING = """
import sys
from pathlib import Path
import numpy as np
import cachelib
from cachelib.reading import arrays, chunks

chunks.KEPT_BYTES = 1 << 20  # so that they are full from the beginning
arrays.OPEN_ARRAYS = chunks.OPEN_FILES = 128

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096

cache = cachelib.open(sys.argv[1])
for first in range(0, 3000, 100):
    starts = np.arange(first, first + 100, dtype=np.int64) * 64
    tokens = cache.read_elements("tokens", starts, 64)
    assert (tokens == np.arange(64)).all()
    cache.provenance(np.arange(first, first + 100))
    assert len(cache._arrays) <= 128
    if first == 900:
        before = resident()
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system tells no memory")
def test_memory_stays_while_shards_are_opened(tmp_path):
    """Between 1,000 and 3,000 shards, which are all the same one by other names."""
    write_commit(tmp_path / "one", [[64]])
    (manifest,) = (tmp_path / "one" / "shards").glob("*/*/zarr.json")
    write_simulated(tmp_path / "many", 3000, rows=1)
    (tmp_path / "many" / "shards").mkdir()
    for number in range(3000):
        folder = tmp_path / "many" / "shards" / str(number)
        folder.mkdir()
        (folder / "0").symlink_to(manifest.parent)
    done = subprocess.run(
        [sys.executable, "-c", OPENING, str(tmp_path / "many")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # What is kept of 2,000 shards, three arrays each, would be some 60 MiB.
    assert int(done.stdout) < 12 << 20


def test_a_batch_far_away_is_planned_by_arithmetic(tmp_path, reads):
    """There is nothing on the way to position 10^12 that could be walked through."""
    write_simulated(tmp_path, 1000, rows=10**9)
    windows = cachelib.open(tmp_path).windows(2048)
    train = windows.shuffle(seed=0).repeat()
    reads.clear()
    plan = train.trace(np.arange(10**12, 10**12 + 64))
    assert plan["epoch"].tolist() == [10**12 // len(windows)] * 64
    assert not reads
