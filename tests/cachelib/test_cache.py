"""Reading by index: always what NumPy would give from the whole columns in memory."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelib
from cachelib import dataset
from cachelib.cache import Cache, Provenance
from cachelib.errors import CacheNotFound, CorruptData
from cachelib.ragged import Ragged, ranges
from tests.cachelib.helpers import (
    EVERY_KIND,
    TOKENS,
    Columns,
    assert_equal,
    assert_same_bits,
    random_columns,
    take,
    write_cache,
)

ROOT = Path(__file__).parents[2]
LENGTHS = [3, 0, 1, 2, 0, 0, 5, 1200, 1, 0, 2, 2, 0]
ROWS = len(LENGTHS)
COMMITS = [[2], [0, 3, 0], [1, 2], [0], [5, 0]]


@pytest.fixture(scope="module")
def columns() -> Columns:
    return random_columns(EVERY_KIND, LENGTHS, seed=7)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, columns: Columns) -> str:
    """Several commits, with empty shards before, between and behind; see `LENGTHS`."""
    folder = tmp_path_factory.mktemp("cache") / "a b"
    write_cache(folder, EVERY_KIND, columns, COMMITS)
    return str(folder)


@pytest.fixture(scope="module")
def cache(path: str) -> Cache:
    return cachelib.open(path)


@given(st.lists(st.integers(-ROWS, ROWS - 1), max_size=30), st.booleans())
@settings(max_examples=60)
def test_take_is_that_of_numpy(
    cache: Cache, columns: Columns, indices: list[int], as_array: bool
) -> None:
    asked = np.array(indices, np.int64) if as_array else indices
    assert_equal(cache.take(asked), take(columns, np.array(indices, np.int64)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "int32", "uint64"])
def test_any_integers_are_indices(cache: Cache, columns: Columns, dtype: str) -> None:
    indices = np.array([5, 0, 5, 12], dtype)
    assert_equal(cache.take(indices), take(columns, indices.astype(np.int64)))


@pytest.mark.parametrize("indices", [[], (), np.zeros(0, np.int64), range(0)])
def test_nothing_is_a_choice(cache: Cache, columns: Columns, indices: Any) -> None:
    assert_equal(cache.take(indices), take(columns, np.zeros(0, np.int64)))
    assert cache.provenance(indices) == []


def test_everything_in_order(cache: Cache, columns: Columns) -> None:
    assert len(cache) == ROWS
    assert_equal(cache.take(np.arange(ROWS)), columns)
    assert cache.elements("tokens") == cache.elements("mask") == sum(LENGTHS)


@given(st.lists(st.sampled_from(EVERY_KIND.names), max_size=4), st.integers(0, ROWS - 1))
@settings(max_examples=20)
def test_only_the_fields_asked_for(
    cache: Cache, columns: Columns, fields: list[str], row: int
) -> None:
    expected = {name: column for name, column in take(columns, np.array([row])).items()
                if name in fields}  # fmt: skip
    found = cache.take([row], fields)
    assert_equal({name: found[name] for name in expected}, expected)
    assert list(found) == list(dict.fromkeys(fields))


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, 2**62, -(2**62), 2**63])
def test_rows_outside_are_refused(cache: Cache, index: int) -> None:
    with pytest.raises(IndexError, match=f"{index} is outside the {ROWS} rows"):
        cache.take([0, index])
    with pytest.raises(IndexError):
        cache.provenance([index])
    with pytest.raises(IndexError, match=f"{index} is outside the {ROWS} rows"):
        cache[index]


@pytest.mark.parametrize(
    "indices",
    [[0.0], [1.5], [True, False], np.ones(ROWS, bool), [[0, 1]], np.array(3), ["0"], [None]],
)
def test_what_is_no_list_of_integers_is_refused(cache: Cache, indices: Any) -> None:
    with pytest.raises(TypeError, match=r"integer|one-dimensional"):
        cache.take(indices)


@pytest.mark.parametrize("indices", [{1, 0}, frozenset(), {1: 0}, {}, {1: 0}.keys()])
def test_what_has_no_order_is_refused(cache: Cache, indices: Any) -> None:
    kind = type(indices).__name__
    for act in (cache.take, cache.provenance):
        with pytest.raises(TypeError, match=f"integers in an order, got a {kind}: make it a list"):
            act(indices)


@pytest.mark.parametrize("index", [0, 7, ROWS - 1, -1, -ROWS, np.int64(3), np.uint8(3)])
def test_one_row(cache: Cache, columns: Columns, index: Any) -> None:
    row = cache[index]
    expected = take(columns, np.array([int(index)]))
    assert list(row) == list(EVERY_KIND.names)
    for name, value in row.items():
        np.testing.assert_array_equal(value, expected[name][0])


@pytest.mark.parametrize("index", [slice(0, 2), [0], "0", 0.0, None, True])
def test_one_row_is_one_integer(cache: Cache, index: Any) -> None:
    with pytest.raises(TypeError, match="an index must be an integer"):
        cache[index]


def test_unknown_fields_are_refused(cache: Cache) -> None:
    for act in (
        lambda: cache.take([0], ["token"]),
        lambda: cache.elements("token"),
        lambda: cache.read_elements("token", np.array([0]), 1),
        lambda: cache.rows_at("token", np.array([0])),
        lambda: cache.windows(2, field="token"),
        lambda: dataset.of(cache, ["token"]),
    ):
        with pytest.raises(KeyError, match=r"no field 'token'; there are \['tokens', 'mask'"):
            act()


def test_fields_without_lengths_have_no_stream(cache: Cache) -> None:
    at = np.array([0])
    for act in (
        lambda: cache.elements("label"),
        lambda: cache.read_elements("label", at, 1),
        lambda: cache.read_spans("label", at, at),
        lambda: cache.rows_at("label", at),
        lambda: cache.spans("label", at),
        lambda: cache.windows(2, field="label"),
    ):
        with pytest.raises(ValueError, match=r"'label' is not ragged.*; ragged are \['tokens', "):
            act()


@pytest.mark.parametrize("bad", [[0.9], np.array([0.0]), [True]])
def test_places_are_integers(cache: Cache, bad: Any) -> None:
    kind = np.asarray(bad).dtype
    for act in (
        lambda: cache.read_elements("tokens", bad, 1),
        lambda: cache.read_spans("tokens", bad, np.array([1])),
        lambda: cache.read_spans("tokens", np.array([0]), bad),
        lambda: cache.rows_at("tokens", bad),
    ):
        with pytest.raises(TypeError, match=f"must be integers, got {kind}"):
            act()
    with pytest.raises(TypeError, match=r"(indices|an index) must be (an )?integer"):
        cache.spans("tokens", bad)
    with pytest.raises(TypeError, match=r"length must be an integer, got 2\.5"):
        cache.read_elements("tokens", np.array([0]), 2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [([-1], [2]), ([0, sum(LENGTHS)], [1, 1]), ([3], [-1]), ([4], [2**63 - 1])],
)
def test_spans_outside_are_refused(cache: Cache, starts: list[int], lengths: list[int]) -> None:
    with pytest.raises(IndexError, match=f"not inside the {sum(LENGTHS)} values of 'tokens'"):
        cache.read_spans("tokens", np.array(starts), np.array(lengths))
    with pytest.raises(TypeError, match=r"of one shape \(n,\), got \(2,\) and \(1,\)"):
        cache.read_spans("tokens", np.array([0, 1]), np.array([1]))


RAGGED_FIELDS = [field.name for field in EVERY_KIND.fields if field.ragged]


@given(st.sampled_from(RAGGED_FIELDS), st.integers(0, 40), st.data())
@settings(max_examples=60)
def test_slices_of_elements_run_across_rows_and_shards(
    cache: Cache, columns: Columns, name: str, length: int, data: st.DataObject
) -> None:
    column = columns[name]
    assert isinstance(column, Ragged)
    total = len(column.values)
    length = min(length, total)
    starts = np.array(data.draw(st.lists(st.integers(0, total - length), max_size=10)), np.int64)
    found = cache.read_elements(name, starts, length)
    wanted = column.values[ranges(starts, np.full(len(starts), length))]
    assert_same_bits(found, wanted.reshape(len(starts), length, *column.values.shape[1:]))


@pytest.mark.parametrize(
    ("starts", "length"), [([-1], 1), ([0, sum(LENGTHS)], 1), ([sum(LENGTHS) - 1], 2)]
)
def test_slices_outside_are_refused(cache: Cache, starts: list[int], length: int) -> None:
    with pytest.raises(IndexError, match=f"not inside the {sum(LENGTHS)} values of 'tokens'"):
        cache.read_elements("tokens", np.array(starts), length)


@pytest.mark.parametrize("name", RAGGED_FIELDS)
def test_rows_of_elements(cache: Cache, columns: Columns, name: str) -> None:
    column = columns[name]
    assert isinstance(column, Ragged)
    owners = np.repeat(np.arange(ROWS), column.lengths)
    np.testing.assert_array_equal(cache.rows_at(name, np.arange(len(owners))), owners)
    positions = np.random.default_rng(0).integers(0, len(owners), (3, 5))
    np.testing.assert_array_equal(cache.rows_at(name, positions), owners[positions])


@pytest.mark.parametrize("position", [-1, sum(LENGTHS)])
def test_elements_outside_have_no_row(cache: Cache, position: int) -> None:
    with pytest.raises(IndexError, match=f"not inside the {sum(LENGTHS)} values of 'tokens'"):
        cache.rows_at("tokens", np.array([0, position]))


def test_every_row_knows_its_source(cache: Cache) -> None:
    indices = [12, 0, -1, 7, 7]
    found = cache.provenance(indices)
    assert found == [Provenance("numbers", i % ROWS) for i in indices]


def test_identity_names_the_content(cache: Cache, path: str) -> None:
    assert cache.identity() == cachelib.open(path).identity()
    assert cache.identity() != cachelib.open(path, 0).identity()
    assert cache.identity()["digest"] == str(cache.snapshot.digest)
    assert cache.identity()["version"] == cache.version == len(COMMITS) - 1


def test_a_pickled_cache_is_pinned(path: str, columns: Columns) -> None:
    old = cachelib.open(path, 1)
    again = pickle.loads(pickle.dumps(old))
    assert (again.version, len(again)) == (1, 5)
    assert_equal(again.take(np.arange(5)), take(columns, slice(0, 5)))


def test_threads_read_alike(path: str, columns: Columns, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that arrays are closed in between.
    monkeypatch.setattr("cachelib.reading.arrays.OPEN_ARRAYS", 3)
    cache = cachelib.open(path)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            indices = rng.integers(0, ROWS, 6)
            assert_equal(cache.take(indices), take(columns, indices))
            assert len(cache.provenance(indices)) == 6

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert len(cache._arrays) <= 3


def _take(cache: Cache, indices: list[int]) -> Columns:
    return cache.take(indices)


def test_spawned_processes_read_alike(cache: Cache, columns: Columns) -> None:
    cache.take([0])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(_take, (cache, [8, 3, 3]))
    assert_equal(found, take(columns, np.array([8, 3, 3])))


FORK = """
import os, sys
import numpy as np
import cachelib
from cachelib.format.storage import Storage

path, opened = sys.argv[1:]
cache = cachelib.open(path) if opened != "nothing" else None
if opened == "arrays":
    cache.take([0])
if os.fork():
    status = os.waitstatus_to_exitcode(os.wait()[1])
    print("child ended with", status)
    if cache is not None:
        print("parent reads", len(cache.take([0, 1])["label"]))
    sys.exit()
acts = {
    "take": lambda: cache.take([0]),
    "provenance": lambda: cache.provenance([0]),
    "read_elements": lambda: cache.read_elements("tokens", np.array([0]), 1),
    "open": lambda: cachelib.open(path),
    "write": lambda: Storage.at(path).write_many({"x": b""}),
    "list": lambda: Storage.at(path).list(""),
}
if cache is None:
    acts = {"open and take": lambda: cachelib.open(path).take([0])}
for name, act in acts.items():
    try:
        act()
        print(name, "works")
    except cachelib.ForebayError as error:
        print(name, "refused:", error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("opened", ["nothing", "cache", "arrays"])
def test_a_forked_child_is_refused_before_tensorstore_aborts(path: str, opened: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORK), path, opened],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    lines = done.stdout.splitlines()
    if opened == "nothing":
        assert lines == ["open and take works", "child ended with 0"]
        return
    assert lines[-2:] == ["child ended with 0", "parent reads 2"]
    assert len(lines) == 8
    assert all("refused: process" in line and "spawn" in line for line in lines[:6]), lines


FORK_WRITER = """
import os, sys
import numpy as np
import cachelib
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import ShardWriter
from cachelib.format.storage import Storage

writer = ShardWriter(Storage.at(sys.argv[1]), Schema((Field("x", "int8", chunk=1),)), "a")
source = writer.source("s")
rows = 1024
columns = ({"x": np.zeros(rows, np.int8)}, np.zeros(rows, np.uint32), np.arange(rows))
writer.append(*columns)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
try:
    writer.append(*columns)
except cachelib.ForebayError as error:
    print("refused:", error, flush=True)
os._exit(0)
"""


def test_a_forked_writer_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORK_WRITER), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.startswith("refused: process")


def test_a_folder_in_the_place_of_a_file_is_damage(tmp_path: Path) -> None:
    write_cache(tmp_path, TOKENS, random_columns(TOKENS, [5, 3], 0), [[1, 1]])
    (file,) = tmp_path.glob("shards/*-1/*/tokens/data/c/0")
    file.unlink()
    file.mkdir()
    cache = cachelib.open(tmp_path)
    cache.take([0])
    place = r"shards/.*-1/.*/tokens/data\[0:3\] \(rows 1 to 2\): .*/c/0 is missing"
    with pytest.raises(CorruptData, match=place):
        cache.take([1])


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CacheNotFound, match=f"file://{tmp_path}/x/: there is no cache here"):
        cachelib.open(tmp_path / "x")


@pytest.mark.parametrize("version", [len(COMMITS), 99, -1])
def test_a_version_that_is_not_there_says_which_are(path: str, version: int) -> None:
    there = f"no version {version}; versions 0 to {len(COMMITS) - 1} are there"
    with pytest.raises(CacheNotFound, match=there):
        cachelib.open(path, version=version)


def test_what_is_no_list_of_fields_or_no_version_is_refused(tmp_path: Path) -> None:
    write_cache(tmp_path, TOKENS, random_columns(TOKENS, [1], 0), [[1]])
    with pytest.raises(TypeError, match=r"say \['tokens'\]"):
        cachelib.open(tmp_path).take([0], "tokens")
    with pytest.raises(TypeError, match="version must be an integer, got '0'"):
        cachelib.open(tmp_path, "0")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="version must be an integer, got '0'"):
        cachelib.open(tmp_path).at("0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"say \['tokens'\]"):
        cachelib.open(tmp_path).nbytes("tokens")


@pytest.mark.parametrize("path", [None, 3, b"cache"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(TypeError, match=f"path must be the path or URL of a cache, got {path!r}"):
        cachelib.open(path)


def test_reads_of_no_values_from_an_object_store() -> None:
    url = f"memory://none-{os.getpid()}/"
    write_cache(url, TOKENS, random_columns(TOKENS, [0, 3, 0], 0), [[2], [1]])
    cache = cachelib.open(url)
    assert len(cache.take([])["label"]) == 0
    assert cache.take([0, 2])["tokens"].lengths.tolist() == [0, 0]  # type: ignore[union-attr]
    assert cache.read_elements("tokens", np.zeros(0, np.int64), 3).shape == (0, 3)
