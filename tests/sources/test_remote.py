"""Sources behind URLs: fsspec's memory file system, and HTTP on this machine."""

from __future__ import annotations

import functools
import gzip
import http.server
import io
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cachelib.errors import SourceChanged, SourceError
from cachelib.format.commit import commit_key
from pipelines.sources import Discovery, Source, discover, files, url_of
from tests.sources.helpers import joined, read_range

LINES = b"".join(b'{"text": "%d\xc3\xa9"}\n' % number for number in range(40))


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of an empty folder in memory."""
    store, folder = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    yield f"memory://{folder}"
    if store.exists(folder):
        store.rm(folder, recursive=True)


def put(url: str, data: bytes) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(data)


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; with ranges where the class attribute says so."""

    ranges = False

    def log_message(self, *_: Any) -> None:
        pass

    def end_headers(self) -> None:
        if self.ranges:
            self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def send_head(self) -> Any:
        asked = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if not (self.ranges and asked and path.is_file()):
            return super().send_head()
        first, _, last = asked.removeprefix("bytes=").partition("-")
        data = path.read_bytes()
        part = data[int(first) : int(last or len(data)) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.end_headers()
        return io.BytesIO(part)


class RangeServer(Server):
    ranges = True


@pytest.fixture(params=[Server, RangeServer])
def web(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL under which the files of ``tmp_path`` are served."""
    handler = functools.partial(request.param, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def only(found: Discovery) -> tuple[str, Source]:
    (source,) = found.sources
    return url_of(found.roots[source.root], source), source


def test_folders_and_globs(memory: str):
    for path in (
        "a.jsonl",
        "b/c.jsonl",
        "b/d.txt",
        "b/_e.jsonl",
        ".f/g.jsonl",
        "h.md",
        "i.jsonl.tmp",
    ):
        put(f"{memory}/{path}", LINES)
    found = discover([memory])
    assert [source.name for source in found.sources] == ["a.jsonl", "b/c.jsonl", "b/d.txt"]
    assert len(found.skipped) == 4
    for pattern, names in [
        ("**/*.jsonl", ["a.jsonl", "b/c.jsonl"]),
        ("*.jsonl", ["a.jsonl"]),
        ("b/*.jsonl", ["c.jsonl"]),
        ("a.jsonl", ["a.jsonl"]),
    ]:
        found = discover([f"{memory}/{pattern}"])
        assert [source.name for source in found.sources] == names
        for source in found.sources:
            assert len(read_range(url_of(found.roots[source.root], source), source).texts) == 40


def test_files_of_a_cache_are_no_sources(memory: str):
    inside = ("shards/12/manifest.json", "shards/34/manifest.json", "tokenizer/5/tokenizer.json")
    for path in ("a.jsonl", "shards/b.jsonl", *(f"c/{p}" for p in (*inside, commit_key(0)))):
        put(f"{memory}/{path}", LINES)
    found = discover([memory])
    assert [source.name for source in found.sources] == ["a.jsonl", "shards/b.jsonl"]
    assert {url.removeprefix(f"{memory}/"): why for url, why in found.skipped} == {
        "c/shards/": "part of a Forebay cache",
        "c/tokenizer/": "part of a Forebay cache",
        f"c/{commit_key(0)}": "hidden",
    }
    with pytest.raises(SourceError, match=r"no data file; .*shards/ \(part of a Forebay cache\)"):
        discover([f"{memory}/c"])


def test_nothing_found(memory: str):
    put(f"{memory}/a.md", LINES)
    with pytest.raises(SourceError, match="matches no data file"):
        discover([memory])
    with pytest.raises(SourceError, match="matches no data file"):
        discover([f"{memory}/*.jsonl"])
    with pytest.raises(SourceError, match=r"b\.jsonl: there is no such file"):
        discover([f"{memory}/b.jsonl"])


def test_every_split_of_a_remote_file(memory: str):
    url = f"{memory}/a.jsonl"
    put(url, LINES)
    _, source = only(discover([url]))
    whole = read_range(url, source)
    for cut in range(0, len(LINES), 7):
        assert joined([read_range(url, source, 0, cut), read_range(url, source, cut)]) == whole


def test_a_copy_has_the_same_version(memory: str, tmp_path: Path):
    put(f"{memory}/x/a.jsonl", LINES)
    put(f"{memory}/y/a.jsonl", LINES)
    (tmp_path / "a.jsonl").write_bytes(LINES)
    first, second = only(discover([f"{memory}/x"])), only(discover([f"{memory}/y"]))
    assert first[1] == second[1] == only(discover([str(tmp_path)]))[1]
    put(f"{memory}/y/a.jsonl", LINES.replace(b"1", b"2"))
    assert only(discover([f"{memory}/y"]))[1].version != first[1].version


def test_a_changed_remote_file_is_refused(memory: str):
    url = f"{memory}/a.jsonl"
    put(url, LINES)
    _, source = only(discover([url]))
    put(url, LINES + LINES)
    with pytest.raises(SourceChanged, match=r"a\.jsonl: has \d+ bytes, but had"):
        read_range(url, source)


def test_columnar_formats(memory: str):
    table = pa.table({"text": list("abcde")})
    for name in ("a.parquet", "a.arrow"):
        with fsspec.open(f"{memory}/{name}", "wb") as file:
            if name == "a.parquet":
                pq.write_table(table, file, row_group_size=2)
            else:
                with pa.ipc.new_stream(file, table.schema) as stream:
                    stream.write_table(table)
        url, source = only(discover([f"{memory}/{name}"]))
        assert read_range(url, source).texts == list("abcde")
        assert read_range(url, source, 3, 5).texts == ["d", "e"]


def test_http(web: str, tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINES))
    pq.write_table(pa.table({"text": list("abcde")}), tmp_path / "c.parquet", row_group_size=2)
    url, source = only(discover([f"{web}/a.jsonl?token=x"]))
    assert (url, source.name) == (f"{web}/a.jsonl?token=x", "a.jsonl")
    whole = read_range(url, source)
    assert len(whole.texts) == 40
    for cut in (0, 1, 17, 18, 300, len(LINES)):
        assert joined([read_range(url, source, 0, cut), read_range(url, source, cut)]) == whole
    url, source = only(discover([f"{web}/b.jsonl.gz"]))
    assert read_range(url, source).texts == whole.texts
    url, source = only(discover([f"{web}/c.parquet"]))
    assert read_range(url, source, 1, None).texts == list("bcde")
    with pytest.raises(SourceError, match=r"d\.jsonl: there is no such file"):
        discover([f"{web}/d.jsonl"])


def test_a_remote_file_that_ends_early_is_an_error(memory: str, monkeypatch: pytest.MonkeyPatch):
    url = f"{memory}/a.jsonl"
    put(url, LINES)
    _, source = only(discover([url]))

    def cut(*_: Any) -> BinaryIO:
        return io.BytesIO(LINES[:-20])

    monkeypatch.setattr(files, "_open_remote", cut)
    with pytest.raises(SourceChanged, match=rf"has {len(LINES) - 20} bytes, but had {len(LINES)}"):
        read_range(url, source)


@pytest.mark.parametrize("path", ["a.jsonl", "folder/", "*.jsonl", "a[1].jsonl"])
def test_a_server_that_cannot_be_reached_is_told_from_a_missing_file(path: str, web: str):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = (
        rf"{re.escape(path)}: the server 127\.0\.0\.1:{port} could not be reached: .*refused|failed"
    )
    with pytest.raises(SourceError, match=message):
        discover([f"http://127.0.0.1:{port}/{path}"])
    with pytest.raises(SourceError, match=r"there is no such file|matches no data file"):
        discover([f"{web}/none/{path}"])


def test_a_server_whose_name_is_not_known():
    with pytest.raises(SourceError, match=r"the server nowhere\.invalid could not be reached"):
        discover(["https://nowhere.invalid/a.jsonl"])


def test_reading_ahead_stops_with_its_reader():
    taken: list[int] = []
    chunks = files.ahead(bytes([taken.append(n) or n]) for n in range(100))  # type: ignore[func-returns-value]
    assert next(chunks) == b"\0"
    chunks.close()  # type: ignore[attr-defined]
    assert len(taken) <= 3
    assert threading.active_count() < 50
    assert list(files.ahead(iter([b"a", b"b"]))) == [b"a", b"b"]

    def failing() -> Iterator[bytes]:
        yield b"a"
        raise SourceError("x")

    with pytest.raises(SourceError):
        list(files.ahead(failing()))
