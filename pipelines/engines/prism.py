"""Prism: Beam's engine on one machine, begun for what runs on it and ended with it.

Beam would begin it, too, but where Ctrl-C at a terminal ends it before a stream can be cancelled,
where it outlives a command that is killed, and shared with other pipelines of the process.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.prism_runner import PrismJobServer

from cachelib.errors import EngineError
from pipelines.engines import guard

START_SECONDS = 60.0
"""Within which Prism is to listen."""

END_SECONDS = 10.0
"""Within which it is to be gone once it is told to end."""

LOOK_SECONDS = 0.05

_GET = "go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0"


class Prism:
    """A Prism that runs.

    Attributes:
        endpoint: of its job service, as host:port.
    """

    def __init__(self, endpoint: str, guarded: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.endpoint = endpoint
        self._guarded = guarded
        self._log = log

    def check(self, within: float = 0.0) -> None:
        """See that it runs.

        Args:
            within: seconds for which it may still end.

        Raises:
            EngineError: it has ended; says what it logged last.
        """
        try:
            status = self._guarded.wait(within)
        except subprocess.TimeoutExpired:
            return
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").split("\n")
        last = next((f"; it said: {line.strip()}" for line in lines[::-1] if line.strip()), "")
        raise EngineError(
            f"Prism, the engine of this pipeline, ended by itself (status {status}){last}"
        )


@contextmanager
def running(flags: Sequence[str]) -> Iterator[Prism]:
    """A Prism for as long as the block runs.

    Args:
        flags: options of Beam, of which those of Prism count.

    Raises:
        EngineError: it cannot be got or does not start.
    """
    command, endpoint = _command(flags)
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # out of reach of the terminal's signals
        ) as guarded,
    ):
        prism = Prism(endpoint, guarded, log)
        try:
            _await(prism)
            yield prism
        finally:
            assert guarded.stdin is not None
            guarded.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                guarded.wait(END_SECONDS)
            guarded.kill()


def _command(flags: Sequence[str]) -> tuple[list[str], str]:
    """How Prism is run, and where it will listen."""
    found = shutil.which("prism") or str(Path.home() / "go" / "bin" / "prism")
    named = any("prism_location" in flag for flag in flags)
    if not named and os.access(found, os.X_OK):
        flags = [*flags, f"--prism_location={found}"]
    try:
        command, endpoint = PrismJobServer(PipelineOptions(flags)).subprocess_cmd_and_endpoint()
    except Exception as error:  # it may have to be fetched, which fails in many ways
        raise EngineError(
            f"Prism is not there and cannot be fetched: {error}. Make it "
            f"({_GET}), or name it (--prism_location=PATH)"
        ) from error
    return [str(each) for each in command], endpoint


def _await(prism: Prism) -> None:
    """Wait until Prism listens."""
    host, port = prism.endpoint.rsplit(":", 1)
    deadline = time.monotonic() + START_SECONDS
    while True:
        prism.check()
        with suppress(OSError), socket.create_connection((host, int(port)), LOOK_SECONDS):
            return
        if time.monotonic() > deadline:
            raise EngineError(
                f"Prism, the engine of this pipeline, did not listen at {prism.endpoint} within "
                f"{START_SECONDS:.0f} s; begin again"
            )
        time.sleep(LOOK_SECONDS)
