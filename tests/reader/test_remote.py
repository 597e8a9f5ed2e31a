"""A cache on a store that is reached by requests which take time: many are under way at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from cachelib.format.storage import REQUESTS
from tests.reader.s3 import PEAK, serving
from tests.reader.stored import write_commit

ROOT = Path(__file__).parents[2]

READ = """
import json
import cachelib

cache = cachelib.open("s3://bucket/cache")
train = cache.windows(8).shuffle(seed=0)
with train.loader(batch_size=64, prefetch=4) as loader:
    batches = [batch["tokens"].tolist() for batch in loader]
origins = [origin.source for origin in loader.explain(3, 5)]
assert cache.provenance([3])[0].position == 3
print(json.dumps([batches, origins]))
"""


@pytest.mark.engine
def test_reads_from_s3_with_many_requests_under_way(tmp_path: Path) -> None:
    write_commit(tmp_path / "cache", [[16] * 4] * 128)

    def read(url: str, variables: dict[str, str]) -> str:
        done = subprocess.run(
            [sys.executable, "-c", READ.replace("s3://bucket/cache", url)],
            cwd=ROOT,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with serving(tmp_path, latency=0.1) as variables:
        found = read("s3://bucket/cache", variables)
        with urlopen(variables["AWS_ENDPOINT_URL_S3"] + PEAK) as told:
            peak = int(told.read())
    assert found == read(str(tmp_path / "cache"), {})
    # Four batches are read at once, each from some 50 shards.
    assert REQUESTS // 2 < peak <= REQUESTS
