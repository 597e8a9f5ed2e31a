"""Flink starts with the templates' configuration, and takes it as it is meant: needs no Beam."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.flink import templates
from tests.flink.checks import wait_until
from tests.flink.services import Cluster

pytestmark = pytest.mark.flink

BACKOFF_RESET = "restart-strategy.exponential-delay.attempts-before-reset-backoff"


def test_a_session_cluster_starts(flink_home: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = templates.read("conf/config.yaml")
    with Cluster(flink_home, tmp_path) as cluster:
        wait_until(lambda: _asked(cluster, "overview")["taskmanagers"] == 1, "a TaskManager")
        overview = _asked(cluster, "overview")
        known = {e["key"]: e["value"] for e in _asked(cluster, "jobmanager/config")}
    assert overview["slots-total"] == settings["taskmanager.numberOfTaskSlots"]
    image = templates.containers()["taskmanager"]["image"]
    assert image.startswith(f"flink:{overview['flink-version']}-")
    for name in ("restart-strategy.type", BACKOFF_RESET):
        assert known[name] == str(settings[name])


def _asked(cluster: Cluster, what: str) -> Any:
    """An answer of Flink's REST API, once it has one."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://localhost:{cluster.rest}/{what}") as answer:
                return json.load(answer)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
