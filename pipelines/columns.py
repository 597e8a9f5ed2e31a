"""From Arrow to the columns of a shard, without a copy where none is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from cachelib.format.schema import Field, Schema
from cachelib.ragged import Ragged

TOKENS = "tokens"
"""The field that holds token ids."""


def text_schema(token_dtype: str, keep: Sequence[tuple[str, str]]) -> Schema:
    """The schema of tokenized text with kept columns.

    Args:
        token_dtype: "uint16" or "uint32".
        keep: (name, type) pairs; type "str" is stored as ragged UTF-8.
    """
    kept = [
        Field(name, "uint8", ragged=True, text=True) if kind == "str" else Field(name, kind)
        for name, kind in keep
    ]
    return Schema((Field(TOKENS, token_dtype, ragged=True), *kept))


def columns_of(
    schema: Schema, tokens: Ragged, keep: Mapping[str, pa.Array]
) -> dict[str, np.ndarray | Ragged]:
    """The columns of a shard from token ids and kept Arrow columns without nulls.

    Raises:
        OverflowError: an id is larger than the schema's dtype holds.
    """
    columns: dict[str, np.ndarray | Ragged] = {TOKENS: _narrowed(tokens, schema[TOKENS].dtype)}
    for name, column in keep.items():
        columns[name] = text_column(column) if schema[name].text else _numbers(column)
    return columns


def _narrowed(tokens: Ragged, dtype: str) -> Ragged:
    if tokens.values.dtype == np.dtype(dtype):
        return tokens
    largest = int(tokens.values.max(initial=0))
    if largest > np.iinfo(dtype).max:
        raise OverflowError(f"token id {largest} does not fit into {dtype}")
    return Ragged(tokens.values.astype(dtype), tokens.offsets)


def text_column(column: pa.LargeStringArray) -> Ragged:
    """Arrow strings as ragged UTF-8 bytes."""
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset :][: len(column) + 1]
    if len(column) == 0:
        return Ragged(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, "u1")
    return Ragged(data[offsets[0] : offsets[-1]], offsets - offsets[0])


def _numbers(column: pa.Array) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False)
