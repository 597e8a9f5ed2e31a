"""A cache in memory, with what the reader asks of one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from cachelib.cache import Provenance
from cachelib.errors import CacheNotFound
from cachelib.format.canonical import digest_of
from cachelib.ragged import Ragged, ranges


class MemoryCache:
    """Rows of given lengths; token t is t itself, and every row has a ``label``."""

    def __init__(self, lengths: Sequence[int], version: int = 1, content: str = "a") -> None:
        tokens = np.arange(sum(lengths), dtype=np.uint32)
        self.tokens = Ragged.from_lengths(tokens, np.array(lengths, np.int64))
        self.version = version
        self.content = content
        self.reads = 0
        self.url = "simulated://"

    def at(self, version: int) -> MemoryCache:
        raise CacheNotFound(f"there is no version {version}")

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: np.ndarray, fields: Sequence[str] | None = None) -> dict:
        assert indices.dtype == np.int64
        self.reads += 1
        columns = {"tokens": self.tokens.take(indices), "label": indices * 10}
        return columns if fields is None else {name: columns[name] for name in fields}

    def elements(self, field: str) -> int:
        return len({"tokens": self.tokens}[field].values)

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        assert field == "tokens"
        assert starts.dtype == np.int64
        assert (
            len(starts) == 0 or 0 <= starts.min() <= starts.max() <= self.elements(field) - length
        )
        self.reads += 1
        indices = ranges(starts, np.full(len(starts), length))
        return self.tokens.values[indices].reshape(len(starts), length)

    def alike(self, field: str) -> tuple[str, ...]:
        return {"tokens": ("tokens",)}[field]

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.tokens.offsets[rows], self.tokens.lengths[rows]

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self.tokens.values[ranges(starts, lengths)]

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.tokens.offsets, positions, side="right") - 1

    def provenance(self, indices: np.ndarray) -> list[Provenance]:
        return [Provenance(f"file {i % 3}", int(i) * 100) for i in indices]

    def nbytes(self, fields: Sequence[str] | None = None) -> int:
        sizes = {"tokens": self.tokens.values.nbytes, "label": 8 * len(self)}
        return sum(sizes[name] for name in (sizes if fields is None else fields))

    def identity(self) -> dict:
        return {
            "version": self.version,
            "schema": digest_of("schema"),
            "rows": len(self),
            "elements": {"tokens": self.elements("tokens")},
            "digest": digest_of(self.content),
        }


class SimulatedCache:
    """A cache of any number of rows, none of which is stored: row i is the number i."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.url = "simulated://"

    def at(self, version: int) -> SimulatedCache:
        raise CacheNotFound(f"there is no version {version}")

    def __len__(self) -> int:
        return self.rows

    def take(self, indices: np.ndarray, fields: Sequence[str] | None = None) -> dict:
        return {"label": indices.copy()}

    def elements(self, field: str) -> int:
        return 2 * self.rows

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        return starts[:, None] + np.arange(length)

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        return positions // 2

    def provenance(self, indices: np.ndarray) -> list[Provenance]:
        return [Provenance("simulated", int(i)) for i in indices]

    def nbytes(self, fields: Sequence[str] | None = None) -> int:
        return 8 * self.rows

    def identity(self) -> dict:
        return {"version": 1, "rows": self.rows}


class FailingCache(SimulatedCache):
    """Reading a row of ``bad`` fails as long as it is in there."""

    def __init__(self, rows: int, bad: set[int]) -> None:
        super().__init__(rows)
        self.bad = bad

    def take(self, indices: np.ndarray, fields: Sequence[str] | None = None) -> dict:
        found = self.bad.intersection(indices.tolist())
        if found:
            raise OSError(f"row {min(found)} cannot be read")
        return super().take(indices, fields)


class GatedCache(SimulatedCache):
    """Counts reads begun; each waits until the gate is open."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.gate = threading.Event()
        self.begun = 0
        self._lock = threading.Lock()

    def take(self, indices: np.ndarray, fields: Sequence[str] | None = None) -> dict:
        with self._lock:
            self.begun += 1
        assert self.gate.wait(30)
        return super().take(indices, fields)
