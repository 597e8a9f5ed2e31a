"""Processes that a job needs, as templates/flink starts them: a worker pool, Flink, a job server.

Each is a context, and is killed in the end with all that it has started.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.engines.commands import environment
from tests.flink import templates

SECONDS = 90
"""In which a process must listen."""


@dataclass(frozen=True)
class Endpoint:
    """Where jobs run.

    Attributes:
        options: of the command, those of the templates with the ports of this test.
        pool: the worker pool.
        restarts: whether the engine itself makes good for workers that are lost.
    """

    options: tuple[str, ...]
    pool: psutil.Process
    restarts: bool

    def kill_workers(self) -> None:
        """Kill the Python workers; the pool starts others when it is asked to."""
        for worker in self.pool.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: Sequence[str],
    port: int,
    log: Path,
    host: str = "localhost",
    variables: Mapping[str, str] | None = None,
) -> Iterator[psutil.Process]:
    """A process that listens at a port; its output goes to a file."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**environment(), **(variables or {})},
        )
    try:
        _await(process, port, host, log)
        yield psutil.Process(process.pid)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int, host: str, log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        said = log.read_text("utf-8", "replace")[-3000:]
        assert process.poll() is None, f"{process.args!r} ended: {said}"
        assert time.monotonic() < deadline, f"{process.args!r} does not listen: {said}"
        time.sleep(0.1)


@contextlib.contextmanager
def worker_pool(folder: Path) -> Iterator[tuple[psutil.Process, int]]:
    """The pool of the sidecar, at a port of its own."""
    port = free_port()
    command = [sys.executable, *templates.command("worker-pool")[1:]]
    command[-1] = f"{command[-1].partition('=')[0]}={port}"
    with running(command, port, folder / "pool.log") as process:
        yield process, port


def options(job_port: int, pool_port: int) -> tuple[str, ...]:
    """Those of the submission in the templates, with other addresses."""
    here = {
        "--job_endpoint=jobserver:8099": f"--job_endpoint=localhost:{job_port}",
        "--environment_config=localhost:50000": (f"--environment_config=localhost:{pool_port}"),
    }
    found = templates.engine("submit")
    assert set(here) <= set(found)
    return tuple(here.get(option, option) for option in found)


def configuration(folder: Path, rest: int) -> Path:
    """The templates' configuration of Flink, but on this machine and with ports of its own."""
    conf = folder / "conf"
    shutil.copytree(templates.FOLDER / "conf", conf)
    settings: dict[str, Any] = templates.read("conf/config.yaml")
    shared = f"file://{folder}/shared"
    changed = {
        "jobmanager.rpc.address": "localhost",
        "jobmanager.rpc.port": free_port(),
        "jobmanager.bind-host": "localhost",
        "rest.address": "localhost",
        "rest.bind-address": "localhost",
        "rest.port": rest,
        "blob.server.port": "0",
        "taskmanager.bind-host": "localhost",
        "taskmanager.host": "localhost",
        "parallelism.default": settings["taskmanager.numberOfTaskSlots"],
        "execution.checkpointing.interval": "2s",
        "execution.checkpointing.dir": f"{shared}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"{shared}/savepoints",
        "env.log.dir": str(folder / "log"),
        "env.pid.dir": str(folder),
    }
    (conf / "config.yaml").write_text(yaml.safe_dump(settings | changed), "utf-8")
    return conf


class Cluster:
    """A JobManager and one TaskManager, which may be killed and started again."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.rest = free_port()
        self.conf = configuration(folder, self.rest)
        self._home = home
        self._folder = folder
        self._running = contextlib.ExitStack()
        self._workers = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        self._running.enter_context(self._process("jobmanager", self.rest))
        self._running.push(self._workers)
        self.start_taskmanager()
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def start_taskmanager(self) -> None:
        self._workers.enter_context(self._process("taskmanager", self.rest))

    def kill_taskmanager(self) -> None:
        self._workers.close()

    def _process(self, kind: str, port: int) -> contextlib.AbstractContextManager[psutil.Process]:
        command = ["bash", str(self._home / "bin" / f"{kind}.sh"), "start-foreground"]
        variables = {"FLINK_CONF_DIR": str(self.conf), "FLINK_HOME": str(self._home)}
        return running(command, port, self._folder / f"{kind}.log", variables=variables)


@contextlib.contextmanager
def job_server(jar: Path, cluster: Cluster, folder: Path) -> Iterator[int]:
    """Beam's job server, by its options in the templates, at ports of its own."""
    port = free_port()
    here = {
        "--job-host": "localhost",
        "--job-port": str(port),
        "--artifact-port": str(free_port()),
        "--artifacts-dir": str(folder / "shared" / "artifacts"),
        "--flink-master": f"localhost:{cluster.rest}",
        "--flink-conf-dir": str(cluster.conf),
    }
    names = [option.partition("=")[0] for option in templates.command("jobserver")]
    arguments = [f"{name}={here[name]}" for name in names]
    command = ["java", "-jar", str(jar), *arguments, f"--expansion-port={free_port()}"]
    with running(command, port, folder / "jobserver.log"):
        yield port
