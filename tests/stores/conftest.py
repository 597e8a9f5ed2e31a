"""A place in each object store, fresh for each test."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachelib.format.storage import Storage
from tests.pipelines.conftest import sentences, tokenizer
from tests.stores.servers import BUCKET, Server, fake_gcs_server, versitygw

__all__ = ["tokenizer"]


@dataclass(frozen=True)
class Place:
    """A prefix of a bucket, empty at first.

    Attributes:
        url: without a slash at the end.
        folder: where the server keeps what is below the prefix.
        server: which serves it.
    """

    url: str
    folder: Path
    server: Server

    def put(self, key: str, data: bytes) -> None:
        Storage.at(self.url).write(key, data)

    def delete(self, key: str) -> None:
        Storage.at(self.url).delete(key)

    def keys(self, prefix: str = "") -> list[str]:
        return Storage.at(self.url).list(prefix)

    def holding(self, text: bytes) -> list[Path]:
        """All that the server stores anywhere in which these bytes are, and not in Zarr chunks."""
        files = (path for path in self.server.folder.rglob("*") if path.is_file())
        return [path for path in files if text in path.read_bytes()]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with versitygw(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def gs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with fake_gcs_server(tmp_path_factory.mktemp("gs")) as server:
        yield server


@pytest.fixture(params=["gs", "s3"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place in each store, for this process and for those that it starts."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    prefix = re.sub(r"\W+", "-", request.node.name)
    return Place(f"{server.scheme}://{BUCKET}/{prefix}", server.folder / BUCKET / prefix, server)


def documents(count: int, seed: int, first: int = 0) -> bytes:
    """Records as JSON Lines, the same for the same seed."""
    lines = [
        json.dumps({"id": f"r{first + i}", "text": text, "score": i / 2})
        for i, text in enumerate(sentences(count, seed))
    ]
    return ("\n".join(lines) + "\n").encode()
