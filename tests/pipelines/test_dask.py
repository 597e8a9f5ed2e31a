"""A real Dask cluster of processes gives the content that the embedded runner gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import cachelib
from pipelines.launcher import build

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler with two single-threaded workers, each its own process."""
    contact = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    # The code that is tested, wherever another copy of it is installed.
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    quiet = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": paths},
    }
    first = [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
             "--scheduler-file", str(contact)]  # fmt: skip
    processes = [subprocess.Popen(first, **quiet)]  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + 60
        while not contact.exists():
            assert processes[0].poll() is None, "the Dask scheduler ended"
            assert time.monotonic() < deadline, "the Dask scheduler did not start"
            time.sleep(0.1)
        address = json.loads(contact.read_text())["address"]
        worker = [*dask, "worker", address, "--nthreads", "1", "--no-dashboard"]
        processes += [subprocess.Popen(worker, **quiet) for _ in range(2)]  # type: ignore[call-overload]
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_dask_gives_the_same_content(
    corpus: Path, tokenizer: str, tmp_path: Path, scheduler: str
) -> None:
    options: dict[str, Any] = {"inputs": [str(corpus)], "tokenizer": tokenizer, "split_bytes": 4096}
    build(**options, to=str(tmp_path / "local"))
    summary = build(
        **options,
        to=str(tmp_path / "dask"),
        runner="dask",
        beam_arguments=[f"--dask_client_address={scheduler}"],
    )
    assert summary.rows == 500
    local, dask = cachelib.open(tmp_path / "local"), cachelib.open(tmp_path / "dask")
    assert dask.snapshot.digest == local.snapshot.digest
    assert [c.tolist() for c in dask.snapshot.row_bases] == [
        c.tolist() for c in local.snapshot.row_bases
    ]


def test_the_workers_have_the_code_that_is_tested(scheduler: str) -> None:
    with Client(scheduler) as client:
        client.wait_for_workers(2, timeout=60)
        found = client.run(find_spec, "pipelines.launcher")
    assert [Path(spec.origin) for spec in found.values()] == [
        ROOT / "pipelines" / "launcher.py"
    ] * 2
