"""Stores that lose answers, refuse, are not there, or lack the bucket: told apart, and soon.

Where a store is, is told to processes that have not reached any before: libraries ask only once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import cachelib
from cachelib.errors import CacheNotFound, SourceError, StorageError
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from pipelines.sources.discover import files_of
from tests.stores.conftest import Place, documents
from tests.stores.proxy import Proxy, between
from tests.stores.servers import gs_variables, s3_variables

pytestmark = pytest.mark.engine

DO = """
import sys
import cachelib
from cachelib.format import storage as module
from cachelib.format.storage import Storage
from pipelines.sources import discover
from tests.maintenance.test_races import add

url = sys.argv[1]
storage = Storage.at(url)
for expression in sys.argv[2:]:
    try:
        print(eval(expression))
    except Exception as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0])
"""

READ, PUT = "storage.read('a')", "storage.put_if_absent('a', b'1')"
LIST, DELETE = "storage.list('')", "storage.delete_prefix('a')"
OPEN = "cachelib.open(url)"
FIND = "discover([url + '/in'])"


@pytest.fixture
def proxy(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy through which processes that are started now reach the place."""
    place.put("in/a.jsonl", documents(3, 0))
    with between(place.server.address) as found:
        variables = {"s3": s3_variables, "gs": gs_variables}[place.server.scheme](found.address)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield found


def outcomes(url: str, *expressions: str, **variables: str) -> list[str]:
    """What expressions give, or the kinds and messages of errors, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", DO, url, *expressions],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("times", [1, 3])
def test_a_write_whose_answer_is_lost_is_ones_own(place: Place, proxy: Proxy, times: int) -> None:
    proxy.key, proxy.lose = "mine", times
    first, again = "storage.put_if_absent('mine', b'1')", "storage.put_if_absent('mine', b'2')"
    found = outcomes(place.url, first, again, "storage.read('mine')")
    assert (found, proxy.lose) == (["b'1'"] * 3, 0)
    proxy.key, proxy.lose = "free", times
    assert outcomes(place.url, "storage.write('free', b'1')") == ["None"]
    assert proxy.lose == 0


def test_a_commit_whose_answer_is_lost_is_ones_own(place: Place, proxy: Proxy) -> None:
    proxy.key, proxy.lose = "00000000000000000001.json", 1
    assert outcomes(place.url, "add(storage, 0)", "add(storage, 1)") == ["None"] * 2
    assert proxy.lose == 0
    assert Ledger(Storage.at(place.url)).head() == 1
    assert len(cachelib.open(place.url)) == 6


def test_a_bucket_that_is_not_there(place: Place) -> None:
    elsewhere = f"{place.server.scheme}://no-such-bucket"
    storage = Storage.at(f"{elsewhere}/cache")
    words = f"there is no bucket 'no-such-bucket' at http://{place.server.address}"
    with pytest.raises(CacheNotFound, match=words):
        cachelib.open(storage.url)
    with pytest.raises(StorageError, match=words):
        storage.write("a", b"1")
    with pytest.raises(StorageError, match=words):
        storage.put_if_absent("a", b"1")
    for pattern in (f"{elsewhere}/in", f"{elsewhere}/in/*.jsonl", f"{elsewhere}/a.jsonl"):
        with pytest.raises(SourceError, match=words):
            files_of(pattern, any_suffix=False)
    with pytest.raises(CacheNotFound, match="there is no cache here"):
        cachelib.open(place.url)
    with pytest.raises(SourceError, match="there is no such file or folder"):
        files_of(f"{place.url}/in", any_suffix=False)


def test_a_server_that_is_not_there(place: Place) -> None:
    variable = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}[place.server.scheme]
    found = outcomes(place.url, OPEN, PUT, FIND, **{variable: "http://127.0.0.1:9"})
    assert [each.partition(":")[0] for each in found] == ["StorageError"] * 2 + ["SourceError"]
    words = "the server http://127.0.0.1:9 could not be reached: "
    assert all(words in each and variable in each for each in found)


def test_a_store_that_denies_access(place: Place, proxy: Proxy) -> None:
    proxy.refuse = 403
    found = outcomes(place.url, OPEN, READ, PUT, LIST, DELETE, FIND)
    assert [each.partition(":")[0] for each in found] == ["StorageError"] * 5 + ["SourceError"]
    assert all("access is denied" in each for each in found), found


def test_a_store_that_is_too_busy(place: Place, proxy: Proxy) -> None:
    proxy.refuse = 503
    for each in outcomes(place.url, OPEN, PUT, FOREBAY_RETRY_SECONDS="0.05"):
        assert each.startswith("StorageError")
        assert "the store is too busy or cannot be reached; it was tried again for 0.05 s" in each
    proxy.refuse = None
    assert outcomes(place.url, PUT) == ["b'1'"]


@pytest.mark.parametrize("place", ["s3"], indirect=True)  # that of gs:// lets everybody in
def test_wrong_and_missing_keys(place: Place) -> None:
    for each in outcomes(place.url, OPEN, PUT, FIND, AWS_SECRET_ACCESS_KEY="wrong"):
        assert "access is denied" in each
    without = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    opened, found = outcomes(place.url, OPEN, FIND, **without)
    assert "access is denied" in opened
    assert "no credentials are found" in found


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_the_endpoint_of_s3_alone_comes_first(place: Place) -> None:
    place.put("in/a.jsonl", documents(3, 0))
    both = {
        "AWS_ENDPOINT_URL_S3": os.environ["AWS_ENDPOINT_URL"],
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    found = outcomes(place.url, LIST, "len(discover([url + '/in']).sources)", **both)
    assert found == ["['in/a.jsonl']", "1"]
