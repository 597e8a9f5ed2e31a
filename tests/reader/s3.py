"""A read-only S3 server over a local folder, in a process of its own, whose replies take time.

It speaks as much of S3 as TensorStore needs for reading: GET of an object, or of a range of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]

PEAK = "/peak"
"""A path that is answered with the most requests that were being answered at once so far."""

COUNTS = "/counts"
"""A path that is answered with the requests answered so far, and the bytes of their bodies."""

RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)\r\n", re.IGNORECASE)


@contextmanager
def serving(folder: str | os.PathLike[str], latency: float) -> Iterator[dict[str, str]]:
    """Serve a folder as the bucket of any name; every reply takes ``latency`` seconds at least.

    Yields the environment in which Forebay reads from there.
    """
    command = [sys.executable, "-m", "tests.reader.s3", os.fspath(folder), str(latency)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield {
                "AWS_ENDPOINT_URL_S3": server.stdout.readline().strip(),
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "reader",
                "AWS_SECRET_ACCESS_KEY": "reader",
            }
        finally:
            server.kill()


class Objects(asyncio.Protocol):
    """One connection: requests one after another, each answered after the latency."""

    answering = 0
    peak = 0
    requests = 0
    sent = 0

    def __init__(self, folder: Path, latency: float, held: dict[str, bytes]) -> None:
        self._folder = folder
        self._latency = latency
        self._held = held
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            request, _, self._received = self._received.partition(b"\r\n\r\n")
            path = unquote(urlsplit(request.split(b" ", 2)[1].decode()).path)
            if path == PEAK:
                self._transport.write(_reply(b"200 OK", str(Objects.peak).encode()))
                continue
            if path == COUNTS:
                told = f"{Objects.requests} {Objects.sent}"
                self._transport.write(_reply(b"200 OK", told.encode()))
                continue
            Objects.answering += 1
            Objects.peak = max(Objects.peak, Objects.answering)
            reply = self._answer(path, request + b"\r\n")
            Objects.requests += 1
            Objects.sent += len(reply) - reply.index(b"\r\n\r\n") - 4
            asyncio.get_running_loop().call_later(self._latency, self._send, reply)

    def _send(self, reply: bytes) -> None:
        Objects.answering -= 1
        self._transport.write(reply)

    def _answer(self, path: str, request: bytes) -> bytes:
        key = path.strip("/").partition("/")[2]
        if key not in self._held:
            file = self._folder / key
            if not file.is_file():
                return _reply(b"404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
            self._held[key] = file.read_bytes()
        whole = self._held[key]
        tag = f'ETag: "{hashlib.md5(key.encode()).hexdigest()}"\r\n'.encode()
        wanted = RANGE.search(request)
        if wanted is None:
            return _reply(b"200 OK", whole, tag)
        first, last = wanted.groups()
        start = int(first) if first else max(0, len(whole) - int(last))
        stop = min(int(last) + 1, len(whole)) if first and last else len(whole)
        told = f"Content-Range: bytes {start}-{stop - 1}/{len(whole)}\r\n".encode()
        return _reply(b"206 Partial Content", whole[start:stop], tag + told)


def _reply(status: bytes, body: bytes, headers: bytes = b"") -> bytes:
    length = str(len(body)).encode()
    return (
        b"HTTP/1.1 "
        + status
        + b"\r\nContent-Length: "
        + length
        + b"\r\n"
        + headers
        + b"\r\n"
        + body
    )


async def serve(folder: Path, latency: float) -> None:
    held: dict[str, bytes] = {}
    server = await asyncio.get_running_loop().create_server(
        lambda: Objects(folder, latency, held), "127.0.0.1", 0, backlog=1024
    )
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2])))
