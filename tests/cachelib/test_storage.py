"""Storage: URLs, put-if-absent, and errors that name the place."""

from __future__ import annotations

import errno
import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib.errors import CorruptData, ForebayError, StorageError
from cachelib.format import storage as storage_module
from cachelib.format.storage import Storage, canonical_url, read_error
from tests.cachelib.helpers import TOKENS, assert_equal, random_columns, write_cache


def test_local_paths_become_absolute_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"file://{tmp_path}/a b/"
    assert canonical_url("a b") == canonical_url(tmp_path / "a b") == canonical_url("./a b/") == url
    assert canonical_url(url) == canonical_url(url.rstrip("/")) == url
    assert canonical_url("gs://bucket/x") == "gs://bucket/x/"
    assert Storage.at("a b").local_path == tmp_path / "a b"
    assert Storage.at("s3://bucket/x").local_path is None
    assert pickle.loads(pickle.dumps(Storage.at("a b"))) == Storage(url)


@pytest.mark.parametrize("location", ["http://host/x", "https://host/x", "hdfs://x"])
def test_other_schemes_are_refused(location: str) -> None:
    with pytest.raises(ValueError, match=re.escape(location)):
        Storage.at(location)


def test_files_are_those_of_this_machine(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/"
    assert canonical_url(f"file://localhost{tmp_path}") == url
    assert canonical_url(f"file://LocalHost{tmp_path}/") == url
    assert canonical_url("file://localhost") == canonical_url("file:///") == "file:///"


@pytest.mark.parametrize("location", ["file://server/a/b", "file://server", "file://127.0.0.1/a"])
def test_files_of_another_host_are_refused(location: str) -> None:
    _, _, rest = location.partition("://")
    said = f"{location} names the host '{rest.partition('/')[0]}', but .* or '{rest}' for a path"
    with pytest.raises(ValueError, match=said):
        canonical_url(location)


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage.at(tmp_path if request.param == "file" else f"memory://{tmp_path.name}")


@pytest.mark.parametrize("location", ["x\udcff", "file:///x\udcff", "gs://bucket/\ud800"])
def test_names_that_are_no_utf8_are_refused(location: str) -> None:
    with pytest.raises(ValueError, match="is not UTF-8: rename it"):
        canonical_url(location)


def test_no_name_and_no_bucket_are_refused() -> None:
    for location, said in (("", "got ''"), ("gs://", "names no bucket"), ("s3:///", "no bucket")):
        with pytest.raises(ValueError, match=said):
            canonical_url(location)
    with pytest.raises(StorageError, match=r"gs://UPPER_\./x/: .*bucket"):
        Storage.at("gs://UPPER_./x").read("y")


@pytest.mark.parametrize("location", ["s3:/bucket/x", "gs:/x", "file:/x", "https:/host/x"])
def test_urls_with_one_slash_are_no_folders(location: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has one slash where a URL has two"):
        canonical_url(location)
    assert canonical_url(f"./{location}").endswith(f"/{location}/")


def test_objects_round_trip(storage: Storage) -> None:
    storage.write("a/x", b"1")
    storage.write_many({"a/y": b"", "b/z": b"3"})
    assert storage.read("a/x") == b"1"
    assert storage.read("a") is None
    assert storage.read_many(["b/z", "nothing", "a/y"]) == [b"3", None, b""]
    assert storage.list("a/") == ["a/x", "a/y"]
    assert storage.list("") == ["a/x", "a/y", "b/z"]
    storage.write("a/x", b"2")
    assert storage.read("a/x") == b"2"
    storage.delete_prefix("a/")
    assert storage.list("") == ["b/z"]


@pytest.mark.parametrize(
    ("location", "url", "key"),
    [
        ("/a/b/c.json", "file:///a/b/", "c.json"),
        ("/c.json", "file:///", "c.json"),
        ("gs://bucket/c.json", "gs://bucket/", "c.json"),
        ("s3://bucket/a/c.json/", "s3://bucket/a/", "c.json"),
    ],
)
def test_an_object_has_a_place_and_a_key(location: str, url: str, key: str) -> None:
    assert Storage.of_object(location) == (Storage(url), key)


def test_a_relative_path_is_an_object_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Storage.of_object("c.json") == (Storage.at(tmp_path), "c.json")


@pytest.mark.parametrize("location", ["/", "file:///", "gs://bucket", "gs://", ""])
def test_a_root_is_no_object(location: str) -> None:
    with pytest.raises(ValueError, match=r"names no (object|bucket)|got ''"):
        Storage.of_object(location)


def test_the_first_put_counts(storage: Storage) -> None:
    assert storage.put_if_absent("a/x", b"1") == b"1"
    assert storage.put_if_absent("a/x", b"2") == b"1"
    assert storage.put_json("j", {"a": 1}) == {"a": 1}
    assert storage.put_json("j", {"a": 2}) == {"a": 1}
    assert storage.read_json("j") == {"a": 1}
    assert storage.read_json("k") is None
    assert storage.list("") == ["a/x", "j"]


def test_of_many_puts_at_once_one_counts(storage: Storage) -> None:
    with ThreadPoolExecutor(8) as pool:
        for turn in range(20):
            key = f"k{turn}"
            puts = [pool.submit(storage.put_if_absent, key, b"%d" % i) for i in range(8)]
            there = storage.read(key)
            results = {put.result() for put in puts}
            assert len(results) == 1
            assert storage.read(key) in results
            assert there in (None, *results)
    assert len(storage.list("")) == 20


HOLD_LOCK = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_stopped_writer_holds_up_nobody(tmp_path: Path) -> None:
    """TensorStore locks such a file while it writes; whoever was stopped then keeps the lock."""
    storage = Storage.at(tmp_path)
    storage.write("a/x", b"1")
    lock = [str(tmp_path / "a/x.__lock")]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, *lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(storage.write, "a/x", b"2")
            try:
                done.result(timeout=20)
            finally:
                holder.kill()
    assert storage.read("a/x") == b"2"
    assert storage.put_if_absent("a/x", b"3") == b"2"
    assert storage.list("") == ["a/x"]


class FakeStore:
    """A store of one object whose writes fail, or seem to, as often as it is told.

    Args:
        answers: what becomes of each conditional write: "stored", "lost" (nothing is stored and
            the store says so), "hidden" (stored, but reported as lost), "failed" (an error),
            "stored, failed" (an error, though it is stored).
    """

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.value: bytes | None = None

    def read(self, key: str) -> Any:
        state = "missing" if self.value is None else "value"
        stamp = SimpleNamespace(generation=b"")
        return Done(SimpleNamespace(state=state, value=self.value, stamp=stamp))

    def write(self, key: str, data: bytes, if_equal: bytes) -> Any:
        answer = self.answers.pop(0)
        if answer in ("stored", "hidden", "stored, failed"):
            self.value = data
        if answer.endswith("failed"):
            return Done(ValueError("UNAVAILABLE: no answer"))
        return Done(SimpleNamespace(generation=b"g" if answer == "stored" else b""))


class Done:
    """A future that is done."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self, timeout: float | None = None) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.parametrize(
    "answers",
    [
        ["stored"],
        ["lost", "stored"],
        ["hidden"],
        ["stored, failed"],
        ["lost", "lost", "stored, failed"],
    ],
    ids=", ".join,
)
def test_a_write_that_took_place_is_a_success(
    monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    store = FakeStore(list(answers))
    monkeypatch.setattr(storage_module, "_open_store", lambda url: store)
    assert Storage("gs://bucket/").put_if_absent("key", b"data") == b"data"
    assert store.value == b"data"


@pytest.mark.parametrize(
    ("answers", "message"),
    [(["failed"], "gs://bucket/key: UNAVAILABLE"), (["lost"] * 5, "gs://bucket/key: five")],
    ids=["failed", "lost"],
)
def test_a_write_that_did_not_take_place_is_an_error(
    monkeypatch: pytest.MonkeyPatch, answers: list[str], message: str
) -> None:
    store = FakeStore(list(answers))
    monkeypatch.setattr(storage_module, "_open_store", lambda url: store)
    monkeypatch.setattr(storage_module.endpoints, "fault_of", lambda url: None)
    with pytest.raises(ForebayError, match=message):
        Storage("gs://bucket/").put_if_absent("key", b"data")


def test_errors_name_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = Storage.at(tmp_path / "file")  # objects cannot lie below a file
    for act in (
        lambda: storage.write("x", b""),
        lambda: storage.put_if_absent("x", b""),
        lambda: storage.put_json("x", 1),
    ):
        with pytest.raises(ForebayError, match=f"^file://{tmp_path}/file/x: "):
            act()


def test_what_is_no_file_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("link")
    storage = Storage.at(tmp_path)
    assert storage.read_many(["nothing", "folder", "file/x", "link"]) == [None] * 4


def test_a_file_that_may_not_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(StorageError, match=r"/x: .*Permission denied"):
        Storage.at(tmp_path).read("x")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NOT_FOUND: chunk {0} is missing", CorruptData),
        ("FAILED_PRECONDITION: Error reading: Digest mismatch", CorruptData),
        ("OUT_OF_RANGE: Requested byte range", CorruptData),
        ("DATA_LOSS: short", CorruptData),
        ("PERMISSION_DENIED: Digest of CRC NOT_FOUND", StorageError),
        ("UNAVAILABLE: no route", StorageError),
    ],
)
def test_damage_is_told_from_trouble_with_access(text: str, kind: type[ForebayError]) -> None:
    error = read_error(ValueError(text), "there")
    assert type(error) is kind
    assert str(error).startswith("there: ")
    assert text in str(error)


def test_a_cache_in_memory_can_be_read() -> None:
    columns = random_columns(TOKENS, [3, 0, 2], 0)
    storage = write_cache(f"memory://test-{os.getpid()}", TOKENS, columns, [[1, 2]])
    assert_equal(cachelib.open(storage.url).take(np.arange(3)), columns)
