"""Prism gives what FnApiRunner gives, with workers of its own process and with a worker pool."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cachelib
from cachelib.errors import CacheNotFound
from pipelines.launcher import build
from pipelines.progress import Progress
from tests.engines.commands import SPLIT, check_same, output_of, start, streaming
from tests.engines.job_api import Pool
from tests.engines.maintaining import check_maintenance

pytestmark = pytest.mark.engine

ROWS = 26_000


@pytest.fixture(scope="module", params=["LOOPBACK", "EXTERNAL"])
def workers(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Options by which workers are threads of the command, or processes of a worker pool."""
    if request.param == "LOOPBACK":
        yield ["--environment_type=LOOPBACK"]
        return
    with Pool() as pool:
        yield pool.environment


@pytest.fixture
def on_prism(prism: str, workers: list[str]) -> dict[str, Any]:
    where = [f"--prism_location={prism}", *workers]
    return {"runner": "PrismRunner", "beam_arguments": where}


@pytest.mark.parametrize("order", ["source", "shuffle(7)", "by(id)"])
def test_every_order_gives_the_same_content(
    folder: Path,
    tokenizer: str,
    tmp_path: Path,
    local: dict[str, Path],
    on_prism: dict[str, Any],
    order: str,
) -> None:
    to = tmp_path / "cache"
    shown: list[Progress] = []
    summary = build(inputs=[str(folder)], tokenizer=tokenizer, to=str(to), order=order,
                    keep={"id": "str"}, split_bytes=SPLIT, show=shown.append,
                    **on_prism)  # fmt: skip
    assert summary.rows == ROWS
    check_same(to, local[order])
    assert [each for each in shown if 0 < each.bytes < each.total]


def test_maintenance_gives_the_same_content(
    local: dict[str, Path], tmp_path: Path, on_prism: dict[str, Any]
) -> None:
    check_maintenance(local["source"], tmp_path, on_prism)


def test_a_stream_takes_all_in(
    folder: Path, tokenizer: str, tmp_path: Path, prism: str, workers: list[str]
) -> None:
    to = tmp_path / "cache"
    process = start(streaming(folder, tokenizer, to, [f"--prism_location={prism}", *workers]))
    deadline = time.monotonic() + 60
    while rows(to) < ROWS and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    output = output_of(process)
    assert process.returncode == 0, output
    assert f"{ROWS:,} rows" in output
    assert rows(to) == ROWS


def rows(to: Path) -> int:
    try:
        return len(cachelib.open(to))
    except CacheNotFound:
        return 0
