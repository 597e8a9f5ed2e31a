"""A Dask cluster of processes on this machine: a scheduler and workers of one thread each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from distributed import Client

from pipelines import tasks
from tests.engines.commands import environment

SECONDS = 60
"""In which processes must have started."""


def has_written() -> bool:
    """Whether splits have been written by the process that calls this."""
    return tasks._workplace.cache_info().currsize > 0


class Cluster:
    """Started as a context; all that is left of it is killed in the end.

    Args:
        folder: for what it writes.
        workers: how many are started with it.
        code: where its processes look for modules first.
        settings: of Dask, as environment variables.
    """

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        *,
        code: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._code = code
        self._settings = settings or {}
        self._workers = workers
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self.scheduler, self.address = self._start_scheduler()
        for _ in range(self._workers):
            self.start_worker()
        if self._workers:
            with Client(self.address) as client:
                client.wait_for_workers(self._workers, timeout=SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        for process in [self.scheduler, *self.workers]:
            process.kill()
            process.wait()

    @property
    def engine(self) -> list[str]:
        """Options of a command that is to run here."""
        return ["--runner", "dask", f"--dask_client_address={self.address}"]

    def start_worker(self) -> None:
        worker = ["worker", self.address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
        self.workers.append(self._start(*worker))

    def kill_worker(self, number: int) -> None:
        process = self.workers.pop(number)
        process.kill()
        process.wait()

    def kill_scheduler(self) -> None:
        self.scheduler.kill()
        self.scheduler.wait()

    def stop_worker(self, number: int) -> None:
        self.workers[number].send_signal(signal.SIGSTOP)

    def wake_worker(self, number: int) -> None:
        self.workers[number].send_signal(signal.SIGCONT)

    def _start_scheduler(self) -> tuple[subprocess.Popen[bytes], str]:
        contact = self._folder / "scheduler.json"
        process = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                              "--scheduler-file", str(contact))  # fmt: skip
        deadline = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError, ValueError):  # it is not there, or half written
                return process, json.loads(contact.read_text())["address"]
            assert process.poll() is None, "the Dask scheduler ended"
            assert time.monotonic() < deadline, "the Dask scheduler did not start"
            time.sleep(0.1)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        env = {**environment(), **self._settings}
        if self._code is not None:
            env["PYTHONPATH"] = os.pathsep.join([str(self._code), env["PYTHONPATH"]])
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env=env,
        )
