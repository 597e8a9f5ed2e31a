"""A Dask cluster whose processes die or hang: nothing is lost, nothing repeated, all is said."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from cachelib.errors import EngineError
from pipelines.engines import dask
from pipelines.launcher import build
from tests.engines.commands import (
    SPLIT,
    check_same,
    command,
    fails,
    manifests,
    output_of,
    run,
    start,
    wait_for,
)
from tests.engines.dask_cluster import Cluster

pytestmark = [pytest.mark.engine, pytest.mark.slow]

KILLS = 3
"""Deaths of workers that Dask lets a task have."""


WITHOUT_PIPELINES = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pipelines":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""
"""A module that Python runs first of all, where `pipelines` is not to be found, though it is."""

DEADLY = "FOREBAY_TEST_DEADLY"
"""Set where `dies_where_deadly` ends its process."""


def dies_where_deadly(record: dict[str, Any]) -> dict[str, Any]:
    """A record as it is, but on workers that are to die of it."""
    if DEADLY in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return record


def test_workers_are_killed_at_any_moment(
    folder: Path, tokenizer: str, tmp_path: Path, local: dict[str, Path], mortal: Cluster
) -> None:
    to = tmp_path / "cache"
    process = start(command(folder, tokenizer, to, mortal.engine))
    draw = random.Random(0)
    for _ in range(KILLS):
        assert wait_for(process, to, draw.randint(1, 8)), output_of(process)
        mortal.kill_worker(draw.randrange(2))
        mortal.start_worker()
    before = manifests(to)
    output = output_of(process)
    assert process.returncode == 0, output
    assert before.items() <= manifests(to).items()
    check_same(to, local["source"])


def test_workers_are_killed_while_runs_are_merged(
    folder: Path, tokenizer: str, tmp_path: Path, local: dict[str, Path], mortal: Cluster
) -> None:
    to = tmp_path / "cache"
    process = start(command(folder, tokenizer, to, mortal.engine, "shuffle(7)"))
    for victim in (0, 1):
        assert wait_for(process, to / "shards", 2 + victim), output_of(process)
        mortal.kill_worker(victim)
        mortal.start_worker()
    output = output_of(process)
    assert process.returncode == 0, output
    check_same(to, local["shuffle(7)"])


def test_the_scheduler_is_killed_and_the_build_is_run_again(
    folder: Path, tokenizer: str, tmp_path: Path, local: dict[str, Path], mortal: Cluster
) -> None:
    to = tmp_path / "cache"
    process = start(command(folder, tokenizer, to, mortal.engine))
    assert wait_for(process, to, 12), output_of(process)
    mortal.kill_scheduler()
    before = manifests(to)
    fails(process, "EngineError", "the Dask scheduler is gone, or the connection to it")
    (tmp_path / "next").mkdir()
    with Cluster(tmp_path / "next") as cluster:
        status, output = run(command(folder, tokenizer, to, cluster.engine))
    assert status == 0, output
    assert before.items() <= manifests(to).items()
    check_same(to, local["source"])


def test_a_worker_hangs_and_is_woken_later(
    folder: Path, tokenizer: str, tmp_path: Path, local: dict[str, Path]
) -> None:
    to = tmp_path / "cache"
    silent = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5s"}
    with Cluster(tmp_path, settings=silent) as cluster:
        process = start(command(folder, tokenizer, to, cluster.engine))
        assert wait_for(process, to, 2), output_of(process)
        cluster.stop_worker(0)
        output = output_of(process)  # ends without it
        assert process.returncode == 0, output
        before = manifests(to)
        cluster.wake_worker(0)
        status, output = run(command(folder, tokenizer, to, cluster.engine))
    assert status == 0, output
    assert "is up to date" in output
    assert before.items() <= manifests(to).items()
    check_same(to, local["source"])


def test_no_scheduler_answers(folder: Path, tokenizer: str, tmp_path: Path) -> None:
    engine = ["--runner", "dask", "--dask_client_address=tcp://127.0.0.1:9",
              "--dask_connection_timeout=2"]  # fmt: skip
    fails(
        start(command(folder, tokenizer, tmp_path / "cache", engine)),
        "EngineError: no Dask scheduler answers at tcp://127.0.0.1:9",
        "`dask scheduler`",
    )


def test_the_workers_lack_the_code(folder: Path, tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PIPELINES)
    with Cluster(tmp_path, 1, code=tmp_path) as cluster:
        fails(
            start(command(folder, tokenizer, tmp_path / "cache", cluster.engine)),
            "EngineError",
            "cannot import pipelines.transforms",
            "install forebay[pipelines,dask]",
        )


def test_there_is_no_worker(
    folder: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask, "NO_WORKERS_SECONDS", 1.0)
    monkeypatch.setattr(dask, "LOOK_SECONDS", 0.5)
    with (
        Cluster(tmp_path, 0) as cluster,
        pytest.raises(EngineError, match=r"has had no worker for 1 s\. Start some with `dask"),
    ):
        build(inputs=[str(folder)], tokenizer=tokenizer, to=str(tmp_path / "cache"),
              split_bytes=SPLIT, runner="dask",
              beam_arguments=[f"--dask_client_address={cluster.address}"])  # fmt: skip


def test_workers_keep_dying(folder: Path, tokenizer: str, tmp_path: Path) -> None:
    settings = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0", DEADLY: "1"}
    function = f"{__name__}:{dies_where_deadly.__name__}"
    with Cluster(tmp_path, 1, settings=settings) as cluster:
        fails(
            start([*command(folder, tokenizer, tmp_path / "cache", cluster.engine),
                   "--map", function]),
            "EngineError: 1 workers died in one and the same task",
            "most often it is memory",
        )  # fmt: skip
