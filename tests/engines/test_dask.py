"""A Dask cluster of processes gives what FnApiRunner gives, by both of its workers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from pipelines.launcher import build
from pipelines.progress import Progress
from tests.engines.commands import ROOT, SPLIT, check_same
from tests.engines.dask_cluster import Cluster, has_written
from tests.engines.maintaining import check_maintenance

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
    check_maintenance(local["source"], tmp_path, on_dask)
