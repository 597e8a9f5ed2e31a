"""Schemas: JSON round trip, defaults, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachelib.format.schema import CHUNK_BYTES, CHUNK_MOST, Field, Schema
from tests.cachelib.helpers import EVERY_KIND, TOKENS


@pytest.mark.parametrize("schema", [EVERY_KIND, TOKENS])
def test_json_round_trip(schema: Schema) -> None:
    stored = json.loads(json.dumps(schema.to_json()))
    assert Schema.from_json(stored) == schema
    assert Schema.from_json(stored).digest == schema.digest


def test_digest_is_pinned() -> None:
    assert TOKENS.digest == "c86509c557c3e009e9596f5da07fc774"


@pytest.mark.parametrize(
    ("dtype", "shape", "chunk"),
    [
        ("uint16", (), CHUNK_BYTES // 2),
        ("uint8", (), CHUNK_BYTES),
        ("float64", (3,), CHUNK_BYTES // 24),
        ("float32", (100_000,), 1),
    ],
)
def test_chunks_hold_so_many_bytes(dtype: str, shape: tuple[int, ...], chunk: int) -> None:
    assert Field("x", dtype, shape=shape).chunk == chunk


@pytest.mark.parametrize(
    ("shape", "chunk"), [((), CHUNK_MOST), ((2,), CHUNK_MOST // 2), ((CHUNK_MOST + 1,), 1)]
)
def test_the_largest_chunks(shape: tuple[int, ...], chunk: int) -> None:
    assert Field("x", "uint8", shape=shape, chunk=chunk).chunk == chunk


def test_values_of_any_size_have_a_chunk() -> None:
    assert Field("x", "uint8", shape=(2**40, 2**40)).chunk == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "field name ''"),
        ({"name": "_source"}, "field name '_source'"),
        ({"name": "a//b"}, "field name 'a//b'"),
        ({"name": "../b"}, "field name"),
        ({"name": "a/"}, "field name"),
        ({"name": "a b"}, "field name"),
        ({"name": "ü"}, "field name"),
        ({"name": "a\n"}, "field name"),
        ({"name": "x/zarr.json"}, "taken"),
        ({"name": "details.json"}, "taken"),
        ({"name": "rejects.jsonl/x"}, "taken"),
        ({"dtype": "str"}, "dtype 'str'"),
        ({"dtype": "complex64"}, "dtype 'complex64'"),
        ({"dtype": ">u2"}, "dtype '>u2'"),
        ({"shape": (0,)}, "size below 1"),
        ({"shape": (2, -1)}, "size below 1"),
        ({"like": "tokens"}, "needs a ragged field"),
        ({"text": True}, "ragged uint8"),
        ({"text": True, "ragged": True, "dtype": "uint16"}, "ragged uint8"),
        ({"text": True, "ragged": True, "dtype": "uint8", "shape": (2,)}, "ragged uint8"),
        ({"chunk": -1}, "chunk -1"),
        ({"chunk": 2**40}, f"chunk {2**40} is above {CHUNK_MOST}: values of 1 bytes"),
        ({"chunk": CHUNK_MOST // 24 + 1, "dtype": "float64", "shape": (3,)}, "of 24 bytes that"),
        ({"chunk": 2, "shape": (CHUNK_MOST,)}, f"chunk 2 is above 1: values of {CHUNK_MOST} bytes"),
    ],
)
def test_fields_that_cannot_be_stored_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Field(**{"name": "x", "dtype": "uint8", **arguments})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "at least one field"),
        ([Field("a", "int8"), Field("a", "int16")], "repeat"),
        ([Field("a", "int8", ragged=True, like="b")], "like 'b'"),
        ([Field("a", "int8", ragged=True, like="b"), Field("b", "int8")], "no ragged field"),
        (
            [
                Field("a", "int8", ragged=True),
                Field("b", "int8", ragged=True, like="a"),
                Field("c", "int8", ragged=True, like="b"),
            ],
            "offsets of its own",
        ),
        ([Field("a", "int8", ragged=True, like="a")], "offsets of its own"),
        ([Field("a", "int8"), Field("a/data", "int8")], "inside field 'a'"),
        ([Field("a", "int8", ragged=True), Field("a/offsets/b", "int8")], "inside field 'a'"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: list[Field], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schema(tuple(fields))


def test_unknown_fields_are_named() -> None:
    with pytest.raises(KeyError, match=r"no field 'x'; there are \['tokens', 'label'\]"):
        TOKENS["x"]
