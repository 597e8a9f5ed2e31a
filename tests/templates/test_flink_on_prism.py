"""The commands of templates/flink, and the checks of tests/flink, on Prism in place of Flink."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flink import checks, services
from tests.flink.conftest import folder as folder
from tests.flink.conftest import local as local
from tests.flink.conftest import tokenizer as tokenizer

pytestmark = pytest.mark.engine


@pytest.fixture
def endpoint(prism: str, tmp_path: Path) -> Iterator[services.Endpoint]:
    """The sidecar's worker pool, and Prism where the job server would be."""
    place = tmp_path / "services"
    place.mkdir()
    with contextlib.ExitStack() as stack:
        pool, pool_port = stack.enter_context(services.worker_pool(place))
        port = services.free_port()
        command = [prism, f"--job_port={port}", "--serve_http=false"]
        stack.enter_context(services.running(command, port, place / "prism.log"))
        yield services.Endpoint(services.options(port, pool_port), pool, restarts=False)


def test_batch(
    endpoint: services.Endpoint, folder: Path, tokenizer: str, tmp_path: Path, local: Path
) -> None:
    checks.check_batch(endpoint, folder, tokenizer, tmp_path / "cache", local)


def test_workers_die(
    endpoint: services.Endpoint, folder: Path, tokenizer: str, tmp_path: Path, local: Path
) -> None:
    checks.check_failures(endpoint, folder, tokenizer, tmp_path / "cache", local)


def test_stream(endpoint: services.Endpoint, tokenizer: str, tmp_path: Path) -> None:
    checks.check_stream(endpoint, tokenizer, tmp_path)
