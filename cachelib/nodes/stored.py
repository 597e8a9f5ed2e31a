"""The rows of a cache, in stored order: the first node of every chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib.nodes.base import Columns, Origin, Rows, traced


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

    def nbytes(self, fields: Sequence[str] | None = None) -> int:
        return self.rows.nbytes(fields)

    def elements(self, field: str) -> int:
        return self.rows.elements(field)

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        return self.rows.read_elements(field, starts, length)

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        return self.rows.rows_at(field, positions)

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
