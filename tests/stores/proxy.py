"""A server between a client and a store, which spoils answers as it is told."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Proxy:
    """What a proxy does, which may be changed while it runs.

    Attributes:
        address: host and port.
        lose: how many answers to writes of keys with `key` in their names are still to be lost,
            after the store has carried them out.
        refuse: the status with which all requests are refused, or None.
        seen: method and path of each request so far.
    """

    address: str
    key: str = ""
    lose: int = 0
    refuse: int | None = None
    seen: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def between(address: str) -> Iterator[Proxy]:
    """A proxy before the server at an address. Requests pass as they are, signatures included."""

    class Pass(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.seen.append((self.command, self.path))
            if proxy.refuse is not None:
                code = {403: "AccessDenied", 503: "SlowDown"}[proxy.refuse]
                xml = f"<Error><Code>{code}</Code><Message>refused</Message></Error>"
                json = f'{{"error": {{"code": {proxy.refuse}, "message": "refused"}}}}'
                as_gs = "/storage/v1/" in self.path
                self._answer(proxy.refuse, {}, (json if as_gs else xml).encode())
                return
            connection = http.client.HTTPConnection(address, timeout=30)
            try:
                connection.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
            if self.command in ("PUT", "POST") and proxy.key in self.path and proxy.lose > 0:
                proxy.lose -= 1
                self.close_connection = True
                return
            self._answer(answer.status, dict(answer.getheaders()), data)

        def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response_only(status)
            length = headers.get("Content-Length", str(len(data)))
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pass)
    host, port = server.server_address[:2]
    proxy = Proxy(f"{host!s}:{port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
