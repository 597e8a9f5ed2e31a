"""Processes of Beam's job API on this machine: a job service, and a pool that starts workers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from typing import Self

import psutil

from tests.engines.commands import environment

SECONDS = 60
"""In which a process must listen."""


class Process:
    """Started as a context; it and those that it has started are killed in the end."""

    def __init__(self) -> None:
        self.port = _free_port()

    def command(self) -> list[str]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self.command(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        deadline = time.monotonic() + SECONDS
        while not self._listens():
            assert self._process.poll() is None, f"{self.command()} ended"
            assert time.monotonic() < deadline, f"{self.command()} does not listen"
            time.sleep(0.05)
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_workers()
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def kill_workers(self) -> None:
        """Kill the processes that it has started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children():
                child.kill()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", self.port), 1):
            return True
        return False


class Service(Process):
    """Prism as a job service that somebody else has started."""

    def __init__(self, prism: str) -> None:
        super().__init__()
        self._prism = prism

    def command(self) -> list[str]:
        return [self._prism, f"--job_port={self.port}", "--serve_http=false"]

    @property
    def engine(self) -> list[str]:
        """Options of a command that is to run here, as for Flink's job service."""
        return ["--runner", "PortableRunner", f"--job_endpoint=localhost:{self.port}"]


class Pool(Process):
    """A worker pool, started as a Kubernetes sidecar starts it."""

    def command(self) -> list[str]:
        pool = "apache_beam.runners.worker.worker_pool_main"
        return [sys.executable, "-m", pool, f"--service_port={self.port}"]

    @property
    def environment(self) -> list[str]:
        """Options of a command whose workers are to be started here."""
        return ["--environment_type=EXTERNAL", f"--environment_config=localhost:{self.port}"]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
