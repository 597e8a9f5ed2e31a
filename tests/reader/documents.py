"""A cache in memory of documents to be packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cachelib.cache import Provenance
from cachelib.errors import CacheNotFound
from cachelib.format.canonical import digest_of
from cachelib.ragged import Ragged, gather


class DocumentCache:
    """Ragged fields of given lengths: value t of the stream of a field is t.

    ``mask``, as long as ``tokens``, is 1 everywhere.
    """

    def __init__(self, tokens: Sequence[int], **others: Sequence[int]) -> None:
        self.fields = {
            name: Ragged.from_lengths(
                np.arange(sum(lengths), dtype=np.uint32), np.array(lengths, np.int64)
            )
            for name, lengths in {"tokens": tokens, **others}.items()
        }
        ones = np.ones(sum(tokens), np.int8)
        self.fields["mask"] = Ragged(ones, self.fields["tokens"].offsets)
        self.url = "documents://"
        self.rows_asked = 0
        self.values_read = 0

    def at(self, version: int) -> DocumentCache:
        raise CacheNotFound(f"there is no version {version}")

    def __len__(self) -> int:
        return len(self.fields["tokens"])

    def alike(self, field: str) -> tuple[str, ...]:
        return ("tokens", "mask") if field in ("tokens", "mask") else (field,)

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.rows_asked += len(rows)
        column = self.fields[field]
        return column.offsets[rows], column.lengths[rows]

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        self.values_read += int(lengths.sum())
        return gather(self.fields[field].values, starts, lengths)

    def take(self, indices: np.ndarray, fields: Sequence[str] | None = None) -> dict[str, Ragged]:
        return {name: self.fields[name].take(indices) for name in fields or self.fields}

    def elements(self, field: str) -> int:
        return len(self.fields[field].values)

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        values = self.read_spans(field, starts, np.full(len(starts), length))
        return values.reshape(len(starts), length)

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.fields[field].offsets, positions, side="right") - 1

    def provenance(self, indices: np.ndarray) -> list[Provenance]:
        return [Provenance("file", int(i)) for i in indices]

    def nbytes(self, fields: Sequence[str] | None = None) -> int:
        return sum(self.fields[name].values.nbytes for name in fields or self.fields)

    def identity(self) -> dict[str, Any]:
        return {"version": 1, "rows": len(self), "digest": digest_of("documents")}
