"""Programs and clusters that tests of engines start, and the cache that all of them are to make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.launcher import build
from tests.engines.commands import SPLIT
from tests.engines.dask_cluster import Cluster
from tests.engines.job_api import Pool, Service
from tests.pipelines.conftest import sentences, write_csv, write_jsonl
from tests.pipelines.conftest import tokenizer as tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that make some sixty parts: 5 MB of JSON Lines, and a CSV file, which is not cut."""
    folder = tmp_path_factory.mktemp("engines") / "corpus"
    folder.mkdir()
    for number in range(4):
        write_jsonl(folder / f"{number}.jsonl", sentences(6000, number), 10_000 * number)
    write_csv(folder / "4.csv", sentences(2000, 4), 40_000)
    return folder


@pytest.fixture(scope="session")
def local(
    folder: Path, tokenizer: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Caches by their order, made on FnApiRunner."""
    made = {}
    for order in ("source", "shuffle(7)", "by(id)"):
        made[order] = tmp_path_factory.mktemp("local") / "cache"
        build(inputs=[str(folder)], tokenizer=tokenizer, to=str(made[order]), order=order,
              keep={"id": "str"}, split_bytes=SPLIT)  # fmt: skip
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and two workers that nobody kills."""
    with Cluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Cluster]:
    """A scheduler and two workers of one test, which may kill them."""
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def service(prism: str) -> Iterator[Service]:
    """A job service, as one of Flink is, which may be killed."""
    with Service(prism) as service:
        yield service


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A worker pool, as one beside a task manager is."""
    with Pool() as pool:
        yield pool
