"""Parquet and Arrow: types of the text column, nulls, row groups, damaged files."""

from __future__ import annotations

import decimal
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cachelib.errors import SourceError
from pipelines.sources import Reading, discover, read
from tests.sources.helpers import read_file, read_range, source_of


def write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, row_group_size=2)


def write_file(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=2)


def write_stream(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table, max_chunksize=2)


def decimals(*values: str | None) -> pa.Array:
    return pa.array([value and decimal.Decimal(value) for value in values])


Write = Callable[[Path, pa.Table], None]
ALL = pytest.mark.parametrize(
    ("write", "name"),
    [(write_parquet, "a.parquet"), (write_file, "a.arrow"), (write_stream, "b.arrow")],
)
TEXTS = ["a", "", None, "é😀", "a"]


@ALL
@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_kinds_of_text(tmp_path: Path, write: Write, name: str, kind: pa.DataType):
    if pa.types.is_dictionary(kind):
        column = pa.array(TEXTS).dictionary_encode()
    else:
        column = pa.array([t if t is None else t.encode() for t in TEXTS], pa.binary()).cast(kind)
    write(tmp_path / name, pa.table({"x": range(5), "text": column}))
    got = read_file(tmp_path / name)
    assert (got.texts, got.positions) == (["a", "", "é😀", "a"], [0, 1, 3, 4])
    assert [(r.position, r.reason) for r in got.rejects] == [(2, "text is null")]


@ALL
def test_bytes_are_utf8_or_rejects(tmp_path: Path, write: Write, name: str):
    write(tmp_path / name, pa.table({"text": pa.array([b"a", b"caf\xe9", b"b"])}))
    got = read_file(tmp_path / name)
    assert (got.texts, got.reasons) == (["a", "b"], ["invalid Unicode"])
    assert got.rejects[0].excerpt == "caf\ufffd"


@ALL
def test_strings_that_are_not_utf8_are_found(tmp_path: Path, write: Write, name: str):
    raw = pa.array([b"a", b"caf\xe9", b"b"])
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    write(tmp_path / name, pa.table({"text": column}))
    assert read_file(tmp_path / name).reasons == ["invalid Unicode"]


@pytest.mark.parametrize("write", [write_file, write_stream])
def test_nulls_among_the_values_of_a_dictionary(tmp_path: Path, write: Write):
    values = pa.array(["a", None])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), values)
    write(tmp_path / "a.arrow", pa.table({"text": column, "k": column}))
    got = read_file(tmp_path / "a.arrow", None, Reading(keep=(("k", "str"),)))
    assert (got.texts, got.reasons) == (["a", "a"], ["text is null"] * 2)


@ALL
def test_other_columns_may_be_anything(tmp_path: Path, write: Write, name: str):
    nested = pa.array([{"x": [1, 2], "text": "q"}, None, {"x": [], "text": None}])
    many = pa.array([["a"], None, []])
    write(tmp_path / name, pa.table({"m": nested, "text": ["a", "b", "c"], "n": many}))
    assert read_file(tmp_path / name).texts == ["a", "b", "c"]


@ALL
def test_no_rows(tmp_path: Path, write: Write, name: str):
    write(tmp_path / name, pa.table({"text": pa.array([], pa.string())}))
    url, source = source_of(tmp_path / name)
    assert (source.extent, source.splits_at) == (0, ())
    assert read_range(url, source).texts == []


@ALL
def test_splits(tmp_path: Path, write: Write, name: str):
    write(tmp_path / name, pa.table({"text": list("abcde")}))
    _, source = source_of(tmp_path / name)
    assert (source.extent, source.splits_at) == (5, (2, 4))


@ALL
def test_a_missing_column_names_those_there_are(tmp_path: Path, write: Write, name: str):
    write(tmp_path / name, pa.table({"content": ["a"], "id": [1]}))
    with pytest.raises(SourceError, match=rf"{name}: no column .*'text'.*'content', 'id'"):
        read_file(tmp_path / name)


@ALL
def test_a_column_of_another_type_is_an_error(tmp_path: Path, write: Write, name: str):
    write(tmp_path / name, pa.table({"text": [1, 2]}))
    with pytest.raises(SourceError, match=rf"{name}: column 'text' has type int64"):
        read_file(tmp_path / name)


@ALL
@pytest.mark.parametrize(
    ("column", "kind", "values", "reasons"),
    [
        (pa.array([1, None, 3]), "int32", [1, 3], ["null"]),
        (pa.array([1, 1 << 40, -3]), "int32", [1, -3], ["out of range"]),
        (pa.array([1, 2, 1 << 63], pa.uint64()), "int64", [1, 2], ["out of range"]),
        (pa.array([1.0, 2.5, float("nan")]), "int64", [1], ["not a whole number"] * 2),
        (pa.array([1, 2, 3], pa.int8()), "float32", [1.0, 2.0, 3.0], []),
        (pa.array([1.5, 1e300, float("inf")]), "float32", [1.5, float("inf")], ["out of range"]),
        (pa.array([1.5, 2.5, -0.5], pa.float16()), "float64", [1.5, 2.5, -0.5], []),
        (decimals("1.50", None, "2"), "float64", [1.5, 2.0], ["null"]),
        (decimals("1.50", "3.00", "2"), "int32", [3, 2], ["not a whole number"]),
        (pa.array([True, None, False]), "bool", [True, False], ["null"]),
        (pa.array(["x", None, ""]), "str", ["x", ""], ["null"]),
        (pa.array([b"x", b"\xff", b""]), "str", ["x", ""], ["invalid Unicode"]),
    ],
)  # fmt: skip
def test_kept_columns(
    tmp_path: Path, write: Write, name: str, column: pa.Array, kind: str, values: Any, reasons: Any
):
    write(tmp_path / name, pa.table({"k": column, "text": ["a", "b", "c"]}))
    got = read_file(tmp_path / name, None, Reading(keep=(("k", kind),)))
    assert got.keep["k"] == values
    expected = [why if why == "invalid Unicode" else f"kept field 'k' is {why}" for why in reasons]
    assert got.reasons == expected


@ALL
@pytest.mark.parametrize(
    ("column", "kind"), [(["1"], "int32"), ([1], "str"), ([1], "bool"), ([True], "int64")]
)
def test_kept_columns_of_other_types(
    tmp_path: Path, write: Write, name: str, column: list[Any], kind: str
):
    write(tmp_path / name, pa.table({"k": column, "text": ["a"]}))
    with pytest.raises(SourceError, match=rf"{name}: column 'k' has type .*kept as {kind}"):
        read_file(tmp_path / name, None, Reading(keep=(("k", kind),)))


@ALL
def test_a_file_cut_short_is_an_error(tmp_path: Path, write: Write, name: str):
    write(tmp_path / name, pa.table({"text": [str(n) * 100 for n in range(50)]}))
    whole = (tmp_path / name).read_bytes()
    for cut in (len(whole) - 20, len(whole) // 2, 7):
        with pytest.raises(SourceError, match=name):
            read_file(tmp_path / name, whole[:cut])


def test_a_stream_cut_between_batches_or_followed_by_more_is_an_error(tmp_path: Path):
    path = tmp_path / "a.arrow"
    write_stream(path, pa.table({"text": list("abcd")}))
    whole = path.read_bytes()
    assert read_file(path, whole).texts == list("abcd")
    with pytest.raises(SourceError, match=r"a\.arrow: .*no end mark"):
        read_file(path, whole[:-8])
    with pytest.raises(SourceError, match=r"a\.arrow: more follows the end"):
        read_file(path, whole + whole)
    packed = gzip.compress(whole + whole)
    with pytest.raises(SourceError, match=r"b\.arrow\.gz: more follows the end"):
        read_file(tmp_path / "b.arrow.gz", packed)


def test_damage_inside_parquet_is_an_error(tmp_path: Path):
    table = pa.table({"text": [f"{n} " * 50 for n in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[200:260] = bytes(60)
    with pytest.raises(SourceError, match=r"a\.parquet: .*row group that begins with row 0"):
        read_file(tmp_path / "a.parquet", bytes(data))


def test_large_row_groups_come_in_several_runs(tmp_path: Path):
    table = pa.table({"text": ["x" * 100_000] * 200})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    write_file(tmp_path / "a.arrow", table)
    for name in ("a.parquet", "a.arrow"):
        url, source = source_of(tmp_path / name)
        runs = list(read(url, source, 0, None, Reading()))
        assert max(run.text.nbytes for run in runs) < 5 << 20
        assert read_range(url, source, 150, 199).positions == list(range(150, 199))


def test_compressed_parquet_and_arrow(tmp_path: Path):
    table = pa.table({"text": ["a", "b"]})
    for name, write in [("a.parquet", write_parquet), ("a.arrow", write_stream)]:
        write(tmp_path / name, table)
        data = gzip.compress((tmp_path / name).read_bytes())
        url, source = source_of(tmp_path / f"{name}.gz", data)
        assert (source.extent, source.compression) == (None, "gz")
        assert read_range(url, source).texts == ["a", "b"]


def test_folders_of_save_to_disk(tmp_path: Path):
    for split in ("train", "test"):
        folder = tmp_path / "set" / split
        folder.mkdir(parents=True)
        write_stream(folder / "data-00000-of-00001.arrow", pa.table({"text": [split]}))
        write_stream(folder / "cache-1234.arrow", pa.table({"text": ["no"]}))
        (folder / "state.json").write_text(json.dumps({"_data_files": []}))
        (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "set" / "dataset_dict.json").write_text("{}")
    found = discover([str(tmp_path / "set")])
    assert [source.name for source in found.sources] == [
        "test/data-00000-of-00001.arrow",
        "train/data-00000-of-00001.arrow",
    ]
    assert len(found.skipped) == 7
    assert {why for _, why in found.skipped} == {"not data of save_to_disk"}


def test_what_datasets_saves(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="HF datasets is not installed")
    datasets.Dataset.from_dict({"text": ["a", "b"], "id": [1, 2]}).save_to_disk(tmp_path / "set")
    found = discover([str(tmp_path / "set")])
    (source,) = found.sources
    assert (source.format, source.extent) == ("arrow", 2)
    got = read_range(str(tmp_path / "set" / source.path), source)
    assert got.texts == ["a", "b"]
