"""The rows of a cache, in stored order: the first node of every chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cachelib.nodes.base import Columns, Origin, Rows, Slices, traced


@runtime_checkable
class Documents(Protocol):
    """Rows of which it is known where their values lie, so that they can be read there."""

    def alike(self, field: str) -> tuple[str, ...]: ...
    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Stored:
    """The rows of a cache, in stored order."""

    rows: Rows
    fields: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def version(self) -> int:
        return int(self.rows.identity()["version"])

    def take(self, indices: np.ndarray) -> Columns:
        return self.rows.take(indices, self.fields)

    @property
    def row_bytes(self) -> float:
        return self.rows.nbytes(self.fields) / max(len(self.rows), 1)

    def alike(self, field: str) -> tuple[str, ...]:
        found = self._documents.alike(field)
        self._check_chosen(field)
        return tuple(name for name in found if self.fields is None or name in self.fields)

    def elements(self, field: str) -> int:
        found = self.rows.elements(field)
        self._check_chosen(field)
        return found

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        return self.rows.read_elements(field, starts, length)

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        return self.rows.rows_at(field, positions)

    def value_bytes(self, field: str) -> float:
        return self.rows.nbytes([field]) / max(self.rows.elements(field), 1)

    def slices(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> Slices:
        return Slices(starts, lengths, np.ones_like(starts))

    def places(self, field: str) -> int:
        return self.rows.elements(field)

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self._documents.spans(field, rows)
        self._check_chosen(field)
        return found

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self._documents.read_spans(field, starts, lengths)

    def pick(self, fields: Sequence[str], rows: np.ndarray) -> Columns:
        return self.rows.take(rows, fields)

    def origins(self, index: int) -> list[Origin]:
        (found,) = self.rows.provenance(np.array([index], np.int64))
        return [Origin(found.source, found.position, index)]

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        return traced(indices, epoch)

    def in_epoch(self, epoch: int) -> Stored:
        return self

    def describe(self) -> dict[str, Any]:
        identity = self.rows.identity()
        return {"kind": "cache", **{k: v for k, v in identity.items() if k != "version"}}

    def _check_chosen(self, field: str) -> None:
        if self.fields is not None and field not in self.fields:
            raise ValueError(
                f"field {field!r} is not among the fields of the rows, of which "
                f"{list(self.fields)} were chosen: choose it as well, or name one of those"
            )

    @property
    def _documents(self) -> Documents:
        if not isinstance(self.rows, Documents):
            kind = type(self.rows).__name__
            raise TypeError(f"rows of a {kind} do not tell where documents lie")
        return self.rows
