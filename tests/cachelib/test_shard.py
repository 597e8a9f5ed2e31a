"""Shards: what is appended in any batches is stored alike, and misfits are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachelib.errors import CorruptData
from cachelib.format import shard as shard_module
from cachelib.format.digest import digest_rows
from cachelib.format.schema import CHUNKS_PER_OBJECT, Field, Schema
from cachelib.format.shard import (
    Manifest,
    ShardWriter,
    attempt_prefix,
    publish,
    read_details,
    read_manifest,
    read_rejects,
)
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from cachelib.reading.scan import Scan
from tests.cachelib.helpers import (
    EVERY_KIND,
    TOKENS,
    Columns,
    assert_equal,
    assert_same_bits,
    random_columns,
    take,
    write_shard,
)


def scan_of(storage: Storage, schema: Schema, manifest: Manifest) -> Scan:
    m = manifest
    return Scan(storage, schema, m.shard, m.attempt, m.rows, m.elements)


def read_back(storage: Storage, schema: Schema, manifest: Manifest) -> Columns:
    """All rows of a shard that fits into one block."""
    blocks = list(scan_of(storage, schema, manifest).blocks(schema.fields))
    if not blocks:
        return random_columns(schema, [], 0)
    assert [first for first, _ in blocks] == [0]
    return blocks[0][1]


def attempt_files(path: Path, manifest: Manifest) -> dict[str, bytes]:
    folder = path / attempt_prefix(manifest.shard, manifest.attempt)
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([], id="no rows"),
        pytest.param([0], id="one empty row"),
        pytest.param([0, 0, 0], id="empty rows"),
        pytest.param([3, 0, 1, 0], id="a few rows"),
        pytest.param([CHUNKS_PER_OBJECT], id="one object filled"),
        pytest.param([1] * CHUNKS_PER_OBJECT, id="row arrays fill one object"),
        pytest.param([1, 0, 3] * 1000, id="several objects"),
        pytest.param([2 * CHUNKS_PER_OBJECT + 5, 1], id="a row over several objects"),
    ],
)
def test_every_kind_of_field_round_trips(tmp_path: Path, lengths: list[int]) -> None:
    storage = Storage.at(tmp_path)
    columns = random_columns(EVERY_KIND, lengths, seed=len(lengths))
    manifest = write_shard(storage, EVERY_KIND, "a", columns)
    assert_equal(read_back(storage, EVERY_KIND, manifest), columns)
    assert manifest.rows == manifest.records == len(lengths)
    assert manifest.digest == str(digest_rows(EVERY_KIND, columns))
    assert manifest.elements == {
        name: len(column.values)
        for name, column in columns.items()
        if isinstance(column, Ragged) and EVERY_KIND[name].like is None
    }
    if lengths:
        details = read_details(storage, "a", manifest.attempt)
        tokens = columns["tokens"]
        assert isinstance(tokens, Ragged)
        assert details["sources"] == ["numbers"]
        assert details["fields"]["tokens"]["empty"] == lengths.count(0)
        if len(tokens.values):
            found = details["fields"]["tokens"]
            assert found["min"] == tokens.values.min()
            assert found["max"] == tokens.values.max()
        assert sum(details["fields"]["tokens"]["lengths"]) == len(lengths)


@given(st.lists(st.integers(0, 4), max_size=30), st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_do_not_matter(tmp_path: Path, lengths: list[int], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(lengths)), max_size=5).map(sorted))
    storage = Storage.at(tmp_path)
    columns = random_columns(EVERY_KIND, lengths, seed=1)
    one = write_shard(storage, EVERY_KIND, "one", columns)
    other = write_shard(storage, EVERY_KIND, "other", columns, batches=cuts)
    assert attempt_files(tmp_path, one) == attempt_files(tmp_path, other)
    assert (one.rows, one.elements, one.digest) == (other.rows, other.elements, other.digest)


def test_batches_across_objects_do_not_matter(tmp_path: Path) -> None:
    lengths = [3, 1, 0] * 800
    columns = random_columns(EVERY_KIND, lengths, seed=2)
    storage = Storage.at(tmp_path)
    whole = attempt_files(tmp_path, write_shard(storage, EVERY_KIND, "whole", columns))
    for number, cuts in enumerate([[1023], [1, 1024, 1025, 2048], list(range(0, 2400, 7))]):
        cut = write_shard(storage, EVERY_KIND, f"cut-{number}", columns, batches=cuts)
        assert attempt_files(tmp_path, cut) == whole


def test_columns_may_be_changed_after_append(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    schema = Schema((Field("x", "int32", chunk=1),))
    writer = ShardWriter(storage, schema, "a")
    source = writer.source("s")
    values = np.zeros(CHUNKS_PER_OBJECT, np.int32)
    expected = []
    for turn in range(5):
        values[:] = turn
        expected.append(values.copy())
        rows = np.arange(len(values), dtype=np.int64)
        writer.append({"x": values}, np.full(len(values), source, np.uint32), rows)
    manifest = writer.finish(covers=(), counts={}, task={})
    found = read_back(storage, schema, manifest)["x"]
    assert isinstance(found, np.ndarray)
    assert_same_bits(found, np.concatenate(expected))


def ragged(values: list[int], lengths: list[int], dtype: str = "uint16") -> Ragged:
    return Ragged.from_lengths(np.array(values, dtype), np.array(lengths, np.int64))


GOOD: dict[str, Any] = {"tokens": ragged([1, 2, 3], [2, 1]), "label": np.array([4, 5])}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tokens": GOOD["tokens"]}, "are not the fields"),
        ({**GOOD, "more": GOOD["label"]}, "are not the fields"),
        ({**GOOD, "tokens": np.array([1, 2], np.uint16)}, "'tokens' is ragged"),
        ({**GOOD, "label": ragged([4, 5], [1, 1], "int64")}, "'label' is not ragged"),
        ({**GOOD, "tokens": ragged([1, 2, 3], [2, 1], "int16")}, "'tokens' has values int16"),
        ({**GOOD, "tokens": ragged([1, 2, 3], [2, 1], ">u2")}, "'tokens' has values >u2"),
        ({**GOOD, "label": np.array([4.0, 5.0])}, "'label' has values float64"),
        ({**GOOD, "label": np.array([[4], [5]])}, "'label' has values int64 \\(1,\\)"),
        ({**GOOD, "label": np.array([4])}, "'label' has 1 rows, expected 2"),
        ({**GOOD, "tokens": ragged([1], [1])}, "'tokens' has 1 rows, expected 2"),
        ({**GOOD, "label": [4, 5]}, "'label' is no array"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    writer = ShardWriter(Storage.at(tmp_path), TOKENS, "a")
    sources, positions = np.full(2, writer.source("s"), np.uint32), np.arange(2)
    with pytest.raises(ValueError, match=message):
        writer.append(columns, sources, positions)
    writer.append(GOOD, sources, positions)  # what was refused left nothing behind
    manifest = writer.finish(covers=(), counts={}, task={})
    assert_equal(read_back(Storage.at(tmp_path), TOKENS, manifest), GOOD)


def test_fields_alike_must_have_the_same_lengths(tmp_path: Path) -> None:
    schema = Schema((Field("a", "uint8", ragged=True), Field("b", "bool", ragged=True, like="a")))
    columns = {"a": ragged([1, 2, 3], [2, 1], "uint8"), "b": ragged([1, 0, 1], [1, 2], "bool")}
    writer = ShardWriter(Storage.at(tmp_path), schema, "a")
    with pytest.raises(ValueError, match="'b' is like 'a', but row 0 has 1 values beside 2"):
        writer.append(columns, np.full(2, writer.source("s"), np.uint32), np.arange(2))


@pytest.mark.parametrize(
    ("sources", "positions", "message"),
    [
        (np.zeros(1, np.uint32), np.arange(2), "_source has values uint32 \\(1,\\)"),
        (np.zeros(3, np.uint32), np.arange(2), "_source has values uint32 \\(3,\\)"),
        (np.zeros(2, np.int64), np.arange(2), "_source has values int64"),
        (np.zeros(2, np.uint32), np.arange(2.0), "_position has values float64"),
        (np.array([0, 1], np.uint32), np.arange(2), "source index 1 was not given: 1 were"),
    ],
)
def test_provenance_that_does_not_fit_is_refused(
    tmp_path: Path, sources: np.ndarray, positions: np.ndarray, message: str
) -> None:
    writer = ShardWriter(Storage.at(tmp_path), TOKENS, "a")
    writer.source("s")
    with pytest.raises(ValueError, match=message):
        writer.append(GOOD, sources, positions)


def test_sources_are_numbered_in_the_order_of_asking(tmp_path: Path) -> None:
    writer = ShardWriter(Storage.at(tmp_path), TOKENS, "a")
    assert [writer.source(name) for name in ("x", "y", "x", "z")] == [0, 1, 0, 2]


def test_rejects_are_counted_and_kept(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    columns = random_columns(TOKENS, [], 0)
    manifest = write_shard(storage, TOKENS, "a", columns, rejects=["bad", "worse", "bad"])
    assert manifest.rejects == {"bad": 2, "worse": 1}
    assert (manifest.rows, manifest.records) == (0, 3)
    found = read_rejects(storage, "a", manifest.attempt)
    assert [(r["reason"], r["position"]) for r in found] == [("bad", 0), ("worse", 1), ("bad", 2)]
    assert found[0]["source"] == "numbers"


def test_copies_of_rejects_are_bounded_but_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "REJECTS_KEPT_BYTES", 1000)
    storage = Storage.at(tmp_path)
    columns = random_columns(TOKENS, [1], 0)
    manifest = write_shard(storage, TOKENS, "a", columns, rejects=["bad"] * 500)
    assert manifest.rejects == {"bad": 500}
    assert manifest.records == 501
    assert 5 < len(read_rejects(storage, "a", manifest.attempt)) < 20


def test_damaged_rejects_are_named(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    manifest = write_shard(storage, TOKENS, "a", random_columns(TOKENS, [], 0), rejects=["bad"])
    file = tmp_path / attempt_prefix("a", manifest.attempt) / "rejects.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptData, match=r"rejects\.jsonl: not lines of JSON"):
        read_rejects(storage, "a", manifest.attempt)


def test_manifest_round_trips_and_the_first_one_counts(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    assert read_manifest(storage, "a") is None
    columns = random_columns(TOKENS, [2, 0, 1], 0)
    first = write_shard(storage, TOKENS, "a", columns)
    second = write_shard(storage, TOKENS, "a", take(columns, slice(0, 2)))
    assert first.attempt != second.attempt
    assert Manifest.from_json(first.to_json()) == first
    assert publish(storage, first) == first
    assert publish(storage, second) == first
    assert publish(storage, first) == first
    assert read_manifest(storage, "a") == first
    assert_equal(read_back(storage, TOKENS, first), columns)


def test_missing_details_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=r"details\.json is missing"):
        read_details(Storage.at(tmp_path), "a", "b")


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 3068, 3069, 3070, 3071, 3072, 3073, 6143, 6144, 6145])
def test_lengths_about_the_ends_of_chunks_and_objects(tmp_path: Path, rows: int) -> None:
    schema = Schema((Field("x", "int32", chunk=3),))
    storage = Storage.at(tmp_path)
    columns = random_columns(schema, [0] * rows, seed=rows)
    for number, cuts in enumerate([[], [rows // 2], [rows - 1]]):
        manifest = write_shard(storage, schema, str(number), columns, batches=cuts)
        assert_equal(read_back(storage, schema, manifest), columns)
