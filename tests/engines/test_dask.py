"""A Dask cluster of processes gives what FnApiRunner gives, by both of its workers."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import cachelib
import pipelines
from cachelib.format.storage import Storage
from cachelib.verification import verify
from pipelines.launcher import build
from pipelines.progress import Progress
from tests.engines.commands import ROOT, SPLIT, check_same
from tests.engines.dask_cluster import Cluster, has_written

pytestmark = pytest.mark.engine


@pytest.fixture
def on_dask(cluster: Cluster) -> dict[str, Any]:
    return {"runner": "dask", "beam_arguments": [f"--dask_client_address={cluster.address}"]}


@pytest.mark.parametrize("order", ["source", "shuffle(7)", "by(id)"])
def test_every_order_gives_the_same_content(
    folder: Path,
    tokenizer: str,
    tmp_path: Path,
    local: dict[str, Path],
    on_dask: dict[str, Any],
    order: str,
) -> None:
    to = tmp_path / "cache"
    shown: list[Progress] = []
    summary = build(inputs=[str(folder)], tokenizer=tokenizer, to=str(to), order=order,
                    keep={"id": "str"}, split_bytes=SPLIT, show=shown.append,
                    **on_dask)  # fmt: skip
    assert summary.rows == 26_000
    check_same(to, local[order])
    assert [each for each in shown if 0 < each.bytes < each.total]


def test_the_workers_run_the_code_that_is_tested_and_both_of_them_write(
    folder: Path, tokenizer: str, tmp_path: Path, cluster: Cluster, on_dask: dict[str, Any]
) -> None:
    build(inputs=[str(folder)], tokenizer=tokenizer, to=str(tmp_path / "cache"),
          split_bytes=SPLIT, **on_dask)  # fmt: skip
    with Client(cluster.address) as client:
        found = client.run(find_spec, "pipelines.launcher")
        wrote = client.run(has_written)
    assert [Path(spec.origin) for spec in found.values()] == [
        ROOT / "pipelines" / "launcher.py"
    ] * 2
    assert list(wrote.values()) == [True, True]


def test_maintenance_gives_the_same_content(
    local: dict[str, Path], tmp_path: Path, on_dask: dict[str, Any]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    digests = []
    for path, engine in ((here, {}), (there, on_dask)):
        shutil.copytree(local["source"], path)
        deleted = pipelines.delete(path, where=[("id", "in", ["r7", "r10001", "r40000"])], **engine)
        assert deleted.rows == 3
        packed = pipelines.compact(path, shard_bytes=1 << 20, **engine)
        assert packed.version == deleted.version + 1
        assert packed.shards < packed.shards_before
        collected = pipelines.gc(path, keep=1, younger=0, **engine)
        assert collected.attempts == packed.shards_before
        assert not list(verify(Storage.at(path)))
        digests.append(cachelib.open(path).snapshot.digest)
    assert digests[0] == digests[1]
