"""Flink as it runs for those who have it, and the cache that a build there must equal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.conftest import folder as folder
from tests.engines.conftest import tokenizer as tokenizer
from tests.flink import services

JAR = "FOREBAY_FLINK_JOB_SERVER_JAR"
HOME = "FLINK_HOME"


@dataclass(frozen=True)
class Flink:
    """A cluster with a job server and a worker pool."""

    cluster: services.Cluster
    endpoint: services.Endpoint


@pytest.fixture(scope="session")
def flink_home() -> Path:
    """The folder of a Flink distribution."""
    home = os.environ.get(HOME)
    if not home:
        pytest.skip(f"{HOME} names no Flink distribution")
    return Path(home)


@pytest.fixture(scope="module")
def flink(flink_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    jar = os.environ.get(JAR)
    if not jar:
        pytest.skip(f"{JAR} names no job server of Beam")
    place = tmp_path_factory.mktemp("flink")
    with (
        services.worker_pool(place) as (pool, pool_port),
        services.Cluster(flink_home, place) as cluster,
        services.job_server(Path(jar), cluster, place) as job_port,
    ):
        options = services.options(job_port, pool_port)
        yield Flink(cluster, services.Endpoint(options, pool, restarts=True))


@pytest.fixture(scope="session")
def local(folder: Path, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of the same build on FnApiRunner."""
    from pipelines.launcher import build
    from tests.engines.commands import SPLIT

    to = tmp_path_factory.mktemp("local") / "cache"
    build(inputs=[str(folder)], tokenizer=tokenizer, to=str(to), keep={"id": "str"},
          split_bytes=SPLIT, finish=True)  # fmt: skip
    return to
