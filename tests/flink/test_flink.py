"""A build, lost workers and TaskManagers, and a stream on a real Flink: `make test-flink`.

Nothing of Beam on Flink could be run where this was written. The same checks run on Prism in
tests/templates, and the cluster alone, without a job, in test_cluster.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.commands import check_same, manifests
from tests.flink import checks
from tests.flink.conftest import Flink

pytestmark = pytest.mark.flink


def test_batch(flink: Flink, folder: Path, tokenizer: str, tmp_path: Path, local: Path) -> None:
    checks.check_batch(flink.endpoint, folder, tokenizer, tmp_path / "cache", local)


def test_workers_die(
    flink: Flink, folder: Path, tokenizer: str, tmp_path: Path, local: Path
) -> None:
    checks.check_failures(flink.endpoint, folder, tokenizer, tmp_path / "cache", local)


def test_a_taskmanager_dies(
    flink: Flink, folder: Path, tokenizer: str, tmp_path: Path, local: Path
) -> None:
    to = tmp_path / "cache"
    checks.submit(checks.submission(folder, tokenizer, to, flink.endpoint.options))
    checks.wait_until(lambda: len(manifests(to)) >= 3, "parts are published")
    flink.cluster.kill_taskmanager()
    flink.cluster.start_taskmanager()
    checks.wait_until(lambda: checks.is_finished(to), "the cache is complete")
    check_same(to, local)


def test_stream(flink: Flink, tokenizer: str, tmp_path: Path) -> None:
    checks.check_stream(flink.endpoint, tokenizer, tmp_path)
