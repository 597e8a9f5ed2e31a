"""A server between a client and a store, which spoils answers as it is told."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSING = ("late", "429", "503", "reset before", "reset within", "reset after")
"""Faults after which a request that is sent again is answered.

A reset comes before the store has the request, in the middle of the answer, or after the store has
carried the request out, when nothing of the answer is sent.
"""

DAMAGE = ("cut", "flipped")
"""Faults that only what is stored tells of: half of a body, with its length, or a flipped bit."""

STALE = "stale"
"""What a listing was when it was first asked for."""

LATE_SECONDS = 0.01


@dataclass
class Proxy:
    """What a proxy does, which may be changed while it runs.

    Attributes:
        address: host and port.
        key: lose and damage only what has this in its path.
        lose: how many answers to writes are still to be lost, after the store has carried them out.
        refuse: the status with which all requests are refused, or None.
        latency: seconds that each answer takes besides.
        faults: share of the requests that meet a fault which passes.
        stale: how often each listing that has changed is given as it was at first.
        damage: share of the objects read that are damaged on their way.
        seen: method and path of each request so far.
        sent: bytes of all answers so far.
        made: faults so far, by kind.
    """

    address: str
    key: str = ""
    lose: int = 0
    refuse: int | None = None
    latency: float = 0
    faults: float = 0
    stale: int = 0
    damage: float = 0
    seen: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    made: Counter[str] = field(default_factory=Counter)
    _chance: random.Random = field(default_factory=lambda: random.Random(0))
    _listings: dict[str, bytes] = field(default_factory=dict)
    _stale: Counter[str] = field(default_factory=Counter)

    def passing(self) -> str | None:
        """The fault of a request that is there now, if any."""
        return self._made(PASSING) if self._chance.random() < self.faults else None

    def damaged(self, method: str, path: str, status: int, data: bytes) -> bytes:
        """The body of an answer, as its client gets it."""
        if method != "GET" or status not in (200, 206) or not data:
            return data
        if is_listing(path):
            first = self._listings.setdefault(path, data)
            if first == data or self._stale[path] >= self.stale:
                return data
            self._stale[path] += 1
            self._made((STALE,))
            return first
        if not is_content(path) or self.key not in path or self._chance.random() >= self.damage:
            return data
        if self._made(DAMAGE) == "cut":
            return data[: len(data) // 2]
        at = self._chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._chance.randrange(8)]) + data[at + 1 :]

    def _made(self, kinds: tuple[str, ...]) -> str:
        kind = self._chance.choice(kinds)
        self.made[kind] += 1
        return kind


def is_listing(path: str) -> bool:
    """Whether a path of S3 or GCS is that of a listing."""
    return "list-type=2" in path or path.partition("?")[0].endswith("/o")


def is_content(path: str) -> bool:
    """Whether a GET of a path of S3 or GCS gives the bytes of an object."""
    return "alt=media" in path or not path.startswith(("/storage/v1/", "/b/"))


@contextmanager
def between(address: str) -> Iterator[Proxy]:
    """A proxy before the server at an address. Requests pass as they are, signatures included."""

    class Pass(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            self.store = http.client.HTTPConnection(address, timeout=30)

        def finish(self) -> None:
            self.store.close()
            with suppress(OSError):
                super().finish()

        def handle(self) -> None:
            with suppress(OSError):  # clients that are killed
                super().handle()

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.seen.append((self.command, self.path))
            time.sleep(proxy.latency)
            refuse, fault = proxy.refuse, proxy.passing()
            if fault in ("429", "503"):
                refuse = int(fault)
            if refuse is not None:
                self._refuse(refuse)
                return
            if fault == "reset before":
                self._reset()
                return
            if fault == "late":
                time.sleep(LATE_SECONDS)
            answer, data = self._ask(body)
            writes = self.command in ("PUT", "POST") and proxy.key in self.path
            if writes and proxy.lose > 0:
                proxy.lose -= 1
                fault = "reset after"
            if fault == "reset after":
                self._reset()
                return
            data = proxy.damaged(self.command, self.path, answer.status, data)
            self._answer(answer.status, dict(answer.getheaders()), data, fault == "reset within")

        def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
            self.store.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                self.store.putheader(name, value)
            self.store.endheaders(body)
            answer = self.store.getresponse()
            return answer, answer.read()

        def _refuse(self, status: int) -> None:
            code = {403: "AccessDenied", 429: "TooManyRequests", 503: "SlowDown"}[status]
            xml = f"<Error><Code>{code}</Code><Message>refused</Message></Error>"
            json = f'{{"error": {{"code": {status}, "message": "refused"}}}}'
            as_gs = "/storage/v1/" in self.path
            self._answer(status, {}, (json if as_gs else xml).encode())

        def _answer(
            self, status: int, headers: dict[str, str], data: bytes, breaks: bool = False
        ) -> None:
            self.send_response_only(status)
            length = headers.get("Content-Length", str(len(data)))
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                data = b""
            proxy.sent += len(data)
            self.wfile.write(data[: len(data) // 2] if breaks else data)
            if breaks:
                self._reset()

        def _reset(self) -> None:
            """Close the connection with a reset, not an end."""
            self.close_connection = True
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024  # clients wait a second for a connection that finds no room

        def handle_error(self, *_: object) -> None:
            pass  # connections that end

    server = Server(("127.0.0.1", 0), Pass)
    host, port = server.server_address[:2]
    proxy = Proxy(f"{host!s}:{port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
