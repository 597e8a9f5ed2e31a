"""The content digest: what its formula says, how it composes, and what it tells apart."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelib.format.digest import EMPTY, PRIME, Digest, digest_rows, fold
from cachelib.format.schema import Field, Schema
from cachelib.ragged import Ragged
from tests.cachelib.helpers import EVERY_KIND, Columns, random_columns, take

SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.lists(st.integers(0, 6), max_size=8)


def naive_base(label: str) -> int:
    drawn = hashlib.blake2b(f"forebay digest 1: {label}".encode(), digest_size=16).digest()
    return 2 + int.from_bytes(drawn, "little") % (PRIME - 2)


def naive(schema: Schema, columns: Mapping[str, np.ndarray | Ragged]) -> int:
    """The formula of the module, word by word in Python's own integers."""
    r, q, s = (naive_base(label) for label in ("word", "row", "length"))
    value = 0
    for row in range(len(columns[schema.names[0]])):
        row_hash = 0
        for field in schema.fields:
            values = np.asarray(columns[field.name][row])
            size = values.dtype.itemsize
            data = values.astype(values.dtype.newbyteorder("<")).tobytes()
            step = min(size, 4)
            words = [
                int.from_bytes(data[at : at + step], "little") for at in range(0, len(data), step)
            ]
            h = sum(w * pow(r, j + 1, PRIME) for j, w in enumerate(words)) + values.size * s
            base = naive_base(f"field {field.name} {field.dtype} {list(field.shape)}")
            row_hash += h * base
        value = (value * q + row_hash) % PRIME
    return value


@given(LENGTHS, SEEDS)
@settings(max_examples=60)
def test_digest_is_its_formula(lengths: list[int], seed: int) -> None:
    columns = random_columns(EVERY_KIND, lengths, seed)
    found = digest_rows(EVERY_KIND, columns)
    assert found == Digest(len(lengths), naive(EVERY_KIND, columns))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("lengths", [[2047, 1, 2048, 2049], [5000], [0, 140_000, 3], [1] * 5000])
def test_rows_across_the_blocks_of_the_sums(dtype: str, lengths: list[int]) -> None:
    schema = Schema((Field("x", dtype, ragged=True),))
    count = sum(lengths)
    for values in (
        np.full(count, np.iinfo(dtype).max, dtype),
        np.random.default_rng(1).integers(0, np.iinfo(dtype).max, count, dtype, endpoint=True),
    ):
        columns: Columns = {"x": Ragged.from_lengths(values, np.array(lengths))}
        assert digest_rows(schema, columns).value == naive(schema, columns)


@pytest.mark.parametrize("bits", range(1, 33))
def test_sums_do_not_overflow(bits: int) -> None:
    """Blocks of the largest words of each size: whichever way they are summed, it is exact."""
    schema = Schema((Field("x", "uint32", ragged=True),))
    values = np.full(4100, (1 << bits) - 1, np.uint32)
    columns: Columns = {"x": Ragged.from_lengths(values, np.array([4100]))}
    assert digest_rows(schema, columns).value == naive(schema, columns)


@given(LENGTHS, SEEDS)
@settings(max_examples=40)
def test_digest_composes_at_every_cut(lengths: list[int], seed: int) -> None:
    columns = random_columns(EVERY_KIND, lengths, seed)
    whole = digest_rows(EVERY_KIND, columns)
    for at in range(len(lengths) + 1):
        first = digest_rows(EVERY_KIND, take(columns, slice(0, at)))
        second = digest_rows(EVERY_KIND, take(columns, slice(at, None)))
        assert first.then(second) == whole
    each = [digest_rows(EVERY_KIND, take(columns, slice(i, i + 1))) for i in range(len(lengths))]
    assert fold([EMPTY, *each]) == whole


@given(LENGTHS.filter(len), SEEDS, st.data())
@settings(max_examples=60)
def test_any_changed_bit_changes_the_digest(
    lengths: list[int], seed: int, data: st.DataObject
) -> None:
    columns = random_columns(EVERY_KIND, lengths, seed)
    name = data.draw(st.sampled_from([n for n in EVERY_KIND.names if _bytes(columns[n]).size]))
    changed: Columns = dict(columns)
    column = columns[name]
    values = (column.values if isinstance(column, Ragged) else column).copy()
    raw = values.reshape(-1).view(np.uint8)
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 if values.dtype == bool else 1 << data.draw(st.integers(0, 7))
    changed[name] = Ragged(values, column.offsets) if isinstance(column, Ragged) else values
    assert digest_rows(EVERY_KIND, changed) != digest_rows(EVERY_KIND, columns)


def _bytes(column: np.ndarray | Ragged) -> np.ndarray:
    return column.values if isinstance(column, Ragged) else column


RAGGED = Schema((Field("x", "uint16", ragged=True),))


def of(rows: list[list[int]], schema: Schema = RAGGED) -> Digest:
    field = schema.fields[0]
    values = np.array([value for row in rows for value in row], field.dtype)
    column = Ragged.from_lengths(values, np.array([len(row) for row in rows], np.int64))
    return digest_rows(schema, {field.name: column})


def test_order_boundaries_and_emptiness_count() -> None:
    contents: list[list[list[int]]] = [
        [[1, 2], [3]],
        [[3], [1, 2]],
        [[1], [2, 3]],
        [[1, 2, 3], []],
        [[], [1, 2, 3]],
        [[1, 2, 3]],
        [[1, 2, 3, 0]],
        [[0, 1, 2, 3]],
        [[2, 1], [3]],
        [],
        [[]],
        [[], []],
        [[0]],
        [[0, 0]],
        [[0], [0]],
    ]
    assert len({of(rows) for rows in contents}) == len(contents)


def test_name_dtype_and_shape_count() -> None:
    schemas = [
        Schema((Field("x", "uint16", ragged=True),)),
        Schema((Field("y", "uint16", ragged=True),)),
        Schema((Field("x", "int16", ragged=True),)),
        Schema((Field("x", "uint32", ragged=True),)),
        Schema((Field("x", "uint8", ragged=True),)),
    ]
    assert len({of([[1, 2], [3, 4]], schema) for schema in schemas}) == len(schemas)
    flat = Schema((Field("x", "uint16", shape=(4,)),))
    square = Schema((Field("x", "uint16", shape=(2, 2)),))
    values = np.arange(8, dtype=np.uint16)
    assert digest_rows(flat, {"x": values.reshape(2, 4)}) != digest_rows(
        square, {"x": values.reshape(2, 2, 2)}
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_bits_of_floats_count(dtype: str) -> None:
    schema = Schema((Field("x", dtype),))
    kind = {"float16": "uint16", "float32": "uint32", "float64": "uint64"}[dtype]
    nan = np.array([math.nan], dtype)
    other_nan = (nan.view(kind) | np.array([1], kind)).view(dtype)
    assert np.isnan(other_nan).all()
    values = [np.array([0.0], dtype), np.array([-0.0], dtype), nan, other_nan]
    assert len({digest_rows(schema, {"x": value}) for value in values}) == len(values)


@given(LENGTHS, SEEDS)
@settings(max_examples=20)
def test_memory_layout_does_not_count(lengths: list[int], seed: int) -> None:
    columns = random_columns(EVERY_KIND, lengths, seed)
    spread: Columns = {}
    for name, column in columns.items():
        values = _bytes(column)
        wide = np.zeros((*values.shape, 2), values.dtype)
        wide[..., 1] = values
        other = wide[..., 1]
        spread[name] = Ragged(other, column.offsets) if isinstance(column, Ragged) else other
    assert digest_rows(EVERY_KIND, spread) == digest_rows(EVERY_KIND, columns)


def test_text_round_trip() -> None:
    for digest in (EMPTY, Digest(5, PRIME - 1), Digest(12, 0xABC)):
        assert Digest.parse(str(digest)) == digest
    assert str(Digest(12, 0xABC)) == "12:0000000000000abc"


def test_vectors_are_pinned() -> None:
    """Whoever changes these changes the format: caches that exist would no longer verify."""
    assert [naive_base(label) for label in ("word", "row", "length")] == [
        1598575262618134151,
        1054207498179496631,
        777429437234871301,
    ]
    assert {
        "no rows": str(of([])),
        "an empty row": str(of([[]])),
        "one": str(of([[1]])),
        "rows": str(of([[1, 2, 3], [], [65535]])),
        "every kind": str(digest_rows(EVERY_KIND, pinned_columns())),
    } == {
        "no rows": "0:0000000000000000",
        "an empty row": "1:0000000000000000",
        "one": "1:0687129e86506033",
        "rows": "3:1c0c1d3a90a7179f",
        "every kind": "2:13f767d5f1abe1bc",
    }


def pinned_columns() -> Columns:
    """Two rows of every kind of field, without chance."""
    two = np.array([2, 1], np.int64)
    return {
        "tokens": Ragged.from_lengths(np.array([7, 65535, 0], np.uint16), two),
        "mask": Ragged.from_lengths(np.array([True, False, True]), two),
        "weights/loss": Ragged.from_lengths(np.array([0.5, -0.0, math.inf], np.float16), two),
        "big": Ragged.from_lengths(np.array([2**64 - 1, 1 << 32], np.uint64), np.array([0, 2])),
        "frames": Ragged.from_lengths(
            np.arange(6, dtype=np.float32).reshape(1, 2, 3) - 2.5, np.array([1, 0])
        ),
        "title": Ragged.from_lengths(np.frombuffer("für".encode(), np.uint8), np.array([4, 0])),
        "label": np.array([-128, 127], np.int8),
        "time": np.array([-(2**63), 2**63 - 1], np.int64),
        "score": np.array([[0.1, 1e300, -0.0, 5e-324], [1.0, 2.0, 3.0, 4.0]], np.float64),
        "good": np.array([False, True]),
    }
