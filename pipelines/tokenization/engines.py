"""Two engines behind one small interface: texts in, flat ids and offsets out.

The ids of Hugging Face `tokenizers` define what is right; `gigatoken` gives the same ids some
thirty times faster wherever it was measured to be exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa

from cachelib.ragged import Ragged
from pipelines.tokenization.files import TokenizerError
from pipelines.tokenization.specials import Spec, without_specials

# `tokenizers` holds some 100 bytes for each byte it encodes; this bounds it at some 100 MB.
BATCH_BYTES = 1 << 20


class Engine(Protocol):
    """Encodes texts; safe to call from several threads."""

    def encode(self, texts: pa.LargeStringArray) -> Ragged:
        """Ids of each text, without any token added: uint32 values, one row a text."""


def versions() -> dict[str, str]:
    """Installed version of each engine."""
    return {name: metadata.version(name) for name in ("gigatoken", "tokenizers")}


def as_texts(texts: Sequence[str] | pa.Array) -> pa.LargeStringArray:
    """Texts as an Arrow large_string array without nulls."""
    array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
    if array.type != pa.large_string():
        array = array.cast(pa.large_string())
    if array.null_count:
        raise ValueError(f"texts must not be null, got {array.null_count} nulls")
    return array


def buffers(texts: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """The array's own memory: offsets, int64 (rows + 1,), into UTF-8 bytes, uint8."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or offsets is None:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    window = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return window, np.frombuffer(data or b"", np.uint8)


class HuggingFace:
    """The reference: Hugging Face `tokenizers`."""

    def __init__(self, spec: Spec) -> None:
        """Raises TokenizerError where the library cannot load the parsed tokenizer.json."""
        import tokenizers

        try:
            self.tokenizer = tokenizers.Tokenizer.from_buffer(orjson.dumps(spec))
        except Exception as error:
            raise TokenizerError(f"`tokenizers` cannot load the tokenizer: {error}") from error
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, texts: pa.LargeStringArray) -> Ragged:
        """See Engine."""
        rows: list[np.ndarray] = []
        for start, stop in batches(buffers(texts)[0], BATCH_BYTES):
            batch = texts.slice(start, stop - start).to_pylist()
            encodings = self.tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            rows += [np.array(encoding.ids, np.uint32) for encoding in encodings]
        return Ragged.from_rows(rows, np.uint32)


class Gigatoken:
    """The fast engine; raises TokenizerError for tokenizers that it does not support."""

    def __init__(self, spec: Spec) -> None:
        import awkward
        import gigatoken

        self._awkward = awkward
        try:
            self._tokenizer = gigatoken.Tokenizer.from_json(orjson.dumps(without_specials(spec)))
        except Exception as error:
            first_line = str(error).strip().splitlines()[0]
            raise TokenizerError(f"gigatoken does not support it: {first_line}") from error

    def encode(self, texts: pa.LargeStringArray) -> Ragged:
        """See Engine. The texts are read where they lie, and the ids are not copied."""
        contents, index = self._awkward.contents, self._awkward.index
        offsets, data = buffers(texts)
        strings = contents.ListOffsetArray(
            index.Index64(offsets),
            contents.NumpyArray(data, parameters={"__array__": "char"}),
            parameters={"__array__": "string"},
        )
        encoded = self._tokenizer.encode_batch(self._awkward.Array(strings)).layout
        return Ragged(_array(encoded.content.data), _array(encoded.offsets.data))


def _array(data: Any) -> np.ndarray:
    return np.asarray(data)


def batches(offsets: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of rows with at most ``limit`` bytes each, or one longer row."""
    start, rows = 0, len(offsets) - 1
    while start < rows:
        within = int(np.searchsorted(offsets, offsets[start] + limit, side="right")) - 1
        stop = max(start + 1, within)
        yield start, stop
        start = stop


def differing_rows(left: Ragged, right: Ragged) -> np.ndarray:
    """Indices, int64, of the rows that are not equal; both have the same number of rows."""
    if len(left) != len(right):
        raise ValueError(f"cannot compare {len(left)} rows with {len(right)}")
    lengths = left.lengths
    same_length = lengths == right.lengths
    if same_length.all():
        values, others = left.values, right.values
        owners = left.offsets
    else:
        kept = np.flatnonzero(same_length)
        values, others = left.take(kept).values, right.take(kept).values
        owners = np.concatenate([[0], np.cumsum(lengths[kept])])
    differs = ~same_length
    unequal = np.flatnonzero(values != others)
    if len(unequal):
        rows = np.searchsorted(owners, unequal, side="right") - 1
        differs[rows if same_length.all() else np.flatnonzero(same_length)[rows]] = True
    return np.flatnonzero(differs)
