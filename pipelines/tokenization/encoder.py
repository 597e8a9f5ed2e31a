"""From texts to the ids that are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cachelib.ragged import Ragged, offsets_of
from pipelines.tokenization.arrow import binary, take
from pipelines.tokenization.code_points import CodePointSet
from pipelines.tokenization.engines import Engine
from pipelines.tokenization.policy import Edges


class Encoder:
    """Encodes documents; safe to use from several threads.

    The ids are those of the exact engine. A document without any code point of
    ``exact_code_points`` goes to the fast engine, which was measured to give the same; the rest go
    to the exact one, which is loaded when it is first needed.
    """

    def __init__(
        self,
        exact: Callable[[], Engine],
        edges: Edges,
        fast: Engine | None = None,
        exact_code_points: CodePointSet | None = None,
    ) -> None:
        self.fast = fast
        self.edges = edges
        self.exact_code_points = exact_code_points or CodePointSet()
        self._load_exact = exact
        self._exact: Engine | None = None
        self._lock = threading.Lock()

    @property
    def exact(self) -> Engine:
        """The engine that defines what is right."""
        with self._lock:
            if self._exact is None:
                self._exact = self._load_exact()
            return self._exact

    def encode(self, texts: pa.LargeStringArray, exact: bool = False) -> Ragged:
        """Ids of each document, BOS and EOS at its edges.

        Args:
            texts: large_string (rows,), valid UTF-8, no nulls.
            exact: let the exact engine encode everything.

        Returns:
            Ragged of uint32, one row a document.
        """
        return with_edges(self._ids(texts, exact), self.edges.bos_id, self.edges.eos_id)

    def _ids(self, texts: pa.LargeStringArray, exact: bool) -> Ragged:
        if exact or self.fast is None:
            return self.exact.encode(texts)
        ids = self.fast.encode(texts)
        rows = np.flatnonzero(self.exact_code_points.rows_containing(texts))
        if len(rows) == 0:
            return ids
        return replace_rows(ids, rows, self.exact.encode(take(texts, rows)))


def replace_rows(ids: Ragged, rows: np.ndarray, replacements: Ragged) -> Ragged:
    """``ids`` with its ``rows`` (ascending) replaced by the rows of ``replacements``."""
    lengths = ids.lengths
    lengths[rows] = replacements.lengths
    pieces, start = [], 0
    for row, replacement in zip(rows.tolist(), replacements, strict=True):
        pieces += [ids.values[start : ids.offsets[row]], replacement]
        start = ids.offsets[row + 1]
    pieces.append(ids.values[start:])
    return Ragged(np.concatenate(pieces), offsets_of(lengths))


def with_edges(ids: Ragged, bos: int | None, eos: int | None) -> Ragged:
    """Each row of uint32 ``ids`` with ``bos`` before and ``eos`` after it, where not None."""
    if (bos is None and eos is None) or len(ids) == 0:
        return ids
    # Rows as byte strings: Arrow joins them with their edges at the speed of a copy.
    rows = binary(ids.offsets * _ID.itemsize, np.ascontiguousarray(ids.values, _ID))
    before = [] if bos is None else [_token(bos)]
    after = [] if eos is None else [_token(eos)]
    _, offsets, values = pc.binary_join_element_wise(*before, rows, *after, _NOTHING).buffers()
    ends = np.frombuffer(offsets, np.int64)[: len(ids) + 1]
    return Ragged(np.frombuffer(values, _ID), ends // _ID.itemsize)


def _token(token: int) -> pa.LargeBinaryScalar:
    return binary(np.array([0, _ID.itemsize]), np.array([token], _ID))[0]


_ID = np.dtype(np.uint32)
_NOTHING = binary(np.zeros(2, np.int64), np.empty(0, np.uint8))[0]
