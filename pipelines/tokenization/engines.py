"""Two engines behind one small interface: texts in, flat ids and offsets out.

The ids of Hugging Face `tokenizers` define what is right; `gigatoken` gives the same ids some
thirty times faster wherever it was measured to be exact.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import threading
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa

from cachelib.ragged import Ragged
from pipelines.tokenization.arrow import buffers
from pipelines.tokenization.files import TokenizerError
from pipelines.tokenization.growth import Growth
from pipelines.tokenization.long_text import pieces
from pipelines.tokenization.specials import Spec, without_specials

# `tokenizers` holds some 100 bytes for each byte it encodes; this bounds it at some 100 MB.
BATCH_BYTES = 1 << 20
# A longer text is cut into pieces; this many are encoded at once, on all cores.
PIECES, PIECE_BYTES = 4, 1 << 18
WINDOW_BYTES = 1 << 10
# What `gigatoken` may remember of the words it met. A GB of program text takes half of it.
MEMORY_LIMIT = 256 << 20


class Engine(Protocol):
    """Encodes texts; safe to call from several threads."""

    def encode(self, texts: pa.LargeStringArray) -> Ragged:
        """Ids of each text, without any token added: uint32 values, one row a text."""


def versions() -> dict[str, str]:
    """Installed version of each engine."""
    return {name: metadata.version(name) for name in ("gigatoken", "tokenizers")}


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
        offsets, data = buffers(texts)
        rows: list[np.ndarray] = []
        for start, stop in batches(offsets, BATCH_BYTES):
            if offsets[stop] - offsets[start] > BATCH_BYTES:  # one row
                text = data[offsets[start] : offsets[stop]].data
                rows.append(self._encode_long(text))
            else:
                rows += self._encode(texts.slice(start, stop - start).to_pylist())
        return Ragged.from_rows(rows, np.uint32)

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def _encode_long(self, text: memoryview) -> np.ndarray:
        def ids(texts: list[str]) -> list[list[int]]:
            return [row.tolist() for row in self._encode(texts)]

        rows: list[np.ndarray] = []
        for several in _groups(pieces(text, ids, PIECE_BYTES, WINDOW_BYTES), PIECES):
            rows += self._encode(several)
        return np.concatenate(rows)


def _groups(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    return iter(lambda: list(itertools.islice(texts, size)), [])


class Gigatoken:
    """The fast engine; raises TokenizerError for tokenizers that it does not support.

    gigatoken 0.10 keeps each different word it meets for ever (its issue 36): on text made of
    new words, some 10 bytes for each byte of text. So memory that it takes while it encodes is
    counted, as far as the system tells, and past MEMORY_LIMIT it is loaded anew.
    """

    def __init__(self, spec: Spec) -> None:
        import awkward

        self._awkward = awkward
        self._json = orjson.dumps(without_specials(spec))
        self._tokenizer = self._load()
        self._renewing = threading.Lock()
        self._growth = Growth(_resident_bytes)

    def _load(self) -> Any:
        import gigatoken

        try:
            return gigatoken.Tokenizer.from_json(self._json)
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
        self._growth.begin()
        ids = Ragged.from_rows([], np.uint32)
        try:
            # Only the parallel way lets other threads of Python run meanwhile.
            encoded = self._tokenizer.encode_batch(self._awkward.Array(strings), parallel=True)
            layout = encoded.layout
            ids = Ragged(_array(layout.content.data), _array(layout.offsets.data))
        finally:
            taken = self._growth.end(ids.values.nbytes)
        if taken > MEMORY_LIMIT and self._renewing.acquire(blocking=False):
            try:
                self._tokenizer = self._load()
                self._growth.forget()
            finally:
                self._renewing.release()
        return ids


def _resident_bytes() -> int:
    """Memory of this process, on Linux; elsewhere 0, and growth is not seen."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


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


def exact_engine(spec: Spec) -> HuggingFace:
    """The exact engine for a parsed tokenizer.json, one for equal ones: large ones load slowly."""
    return _exact(orjson.dumps(spec))


def fast_engine(spec: Spec) -> Gigatoken:
    """The fast engine, likewise; raises TokenizerError where it does not support the tokenizer."""
    return _fast(orjson.dumps(spec))


@functools.lru_cache(maxsize=2)
def _exact(spec: bytes) -> HuggingFace:
    return HuggingFace(orjson.loads(spec))


@functools.lru_cache(maxsize=2)
def _fast(spec: bytes) -> Gigatoken:
    return Gigatoken(orjson.loads(spec))
