"""Servers of object stores on this machine, each in a process of its own over a temporary folder.

Whoever uses them sets only the variables that clients of such servers know. Buckets are folders
below the server's, and objects are files in them.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.programs import program

BUCKET = "forebay-tests"


@dataclass(frozen=True)
class Server:
    """A server of an object store that is running.

    Attributes:
        scheme: of its URLs.
        address: host and port.
        folder: in which its buckets are.
        variables: by which clients find it and are let in.
    """

    scheme: str
    address: str
    folder: Path
    variables: Mapping[str, str]


def s3_variables(address: str) -> dict[str, str]:
    """The environment in which an S3 server at an address is found."""
    return {
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_ACCESS_KEY_ID": "testkey",
        "AWS_SECRET_ACCESS_KEY": "testsecret12",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def gs_variables(address: str) -> dict[str, str]:
    """The environment in which a GCS server at an address is found."""
    return {"STORAGE_EMULATOR_HOST": f"http://{address}"}


@contextmanager
def versitygw(folder: Path) -> Iterator[Server]:
    """An S3 server."""
    (folder / BUCKET).mkdir()
    address = _free_address()
    variables = s3_variables(address)
    secrets = ["--access", variables["AWS_ACCESS_KEY_ID"]]
    secrets += ["--secret", variables["AWS_SECRET_ACCESS_KEY"]]
    command = [program("versitygw"), "-q", "--port", address, *secrets, "posix", str(folder)]
    with _running(command, address):
        yield Server("s3", address, folder, variables)


@contextmanager
def fake_gcs_server(folder: Path) -> Iterator[Server]:
    """A GCS server. It ignores the conditions of deletions and of reads."""
    (folder / BUCKET).mkdir()
    address = _free_address()
    host, port = address.split(":")
    options = ["-scheme", "http", "-host", host, "-port", port, "-public-host", address]
    options += ["-backend", "filesystem", "-filesystem-root", str(folder), "-log-level", "error"]
    with _running([program("fake-gcs-server"), *options], address):
        yield Server("gs", address, folder, gs_variables(address))


def _free_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def _running(command: Sequence[str], address: str) -> Iterator[None]:
    """A command as long as the block runs, which begins once it answers requests."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 30
            while not _answers(address):
                assert server.poll() is None, f"{command} ended with {server.returncode}"
                assert time.monotonic() < deadline, f"{command} does not answer"
                time.sleep(0.05)
            yield
        finally:
            server.kill()


def _answers(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse()
    except OSError:
        return False
    finally:
        connection.close()
    return True
