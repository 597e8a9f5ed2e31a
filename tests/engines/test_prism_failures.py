"""Engines of the job API that die: the command ends with an error in words, and then goes on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.engines.commands import (
    check_same,
    command,
    fails,
    manifests,
    output_of,
    run,
    start,
    wait_for,
)
from tests.engines.job_api import Pool, Service

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_whatever_is_killed_the_next_run_goes_on(
    folder: Path,
    tokenizer: str,
    tmp_path: Path,
    local: dict[str, Path],
    prism: str,
    service: Service,
    pool: Pool,
) -> None:
    """A worker, the job service, and in the end nobody, as on Flink's job service."""
    to = tmp_path / "cache"
    process = start(command(folder, tokenizer, to, [*service.engine, *pool.environment]))
    assert wait_for(process, to, 6), output_of(process)
    pool.kill_workers()
    after_worker = manifests(to)
    fails(process, "SDK worker disconnected")
    process = start(command(folder, tokenizer, to, [*service.engine, *pool.environment]))
    assert wait_for(process, to, 6), output_of(process)
    service.kill()
    after_service = manifests(to)
    fails(process, "EngineError", "job service", f"localhost:{service.port}")
    with Service(prism) as another:
        status, output = run(command(folder, tokenizer, to, [*another.engine, *pool.environment]))
    assert status == 0, output
    assert after_worker.items() <= after_service.items() <= manifests(to).items()
    check_same(to, local["source"])


def test_a_prism_that_is_killed_is_named_and_the_next_run_goes_on(
    folder: Path, tokenizer: str, tmp_path: Path, local: dict[str, Path], prism: str
) -> None:
    to = tmp_path / "cache"
    engine = ["--runner", "PrismRunner", f"--prism_location={prism}"]
    process = start(command(folder, tokenizer, to, engine, "shuffle(7)"))
    assert wait_for(process, to, 6), output_of(process)
    (killed,) = (
        each
        for each in psutil.Process(process.pid).children(recursive=True)
        if "prism" in each.name()
    )
    killed.kill()
    before = manifests(to)
    fails(process, "EngineError: Prism, the engine of this pipeline, ended by itself")
    assert before
    status, output = run(command(folder, tokenizer, to, engine, "shuffle(7)"))
    assert status == 0, output
    check_same(to, local["shuffle(7)"])


def test_no_job_service_answers(folder: Path, tokenizer: str, tmp_path: Path) -> None:
    engine = ["--runner", "PortableRunner", "--job_endpoint=localhost:9"]
    fails(
        start(command(folder, tokenizer, tmp_path / "cache", engine)),
        "EngineError: no job service answers at localhost:9",
        "correct --job_endpoint",
    )


def test_no_worker_pool_answers(folder: Path, tokenizer: str, tmp_path: Path) -> None:
    engine = ["--runner", "PrismRunner", "--environment_type=EXTERNAL",
              "--environment_config=localhost:9"]  # fmt: skip
    fails(
        start(command(folder, tokenizer, tmp_path / "cache", engine)),
        "EngineError: no worker pool answers at localhost:9",
        "worker_pool_main --service_port=9",
    )
