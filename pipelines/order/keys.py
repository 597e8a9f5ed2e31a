"""Sorting: the keys of rows, as columns that are compared one after another.

A key is what the order says (two words of a hash, a number as a word, or text), then the source's
name and the position. No two rows have the same one, so an order is total.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cachelib.format.schema import Schema
from cachelib.ragged import Ragged
from pipelines.choice import mix
from pipelines.order.orders import Order

SHUFFLE = b"forebay.order"

SAMPLES = 64
"""Rows of a run whose keys its manifest holds, about, and bytes from one to the next likewise."""

ROWS_A_SAMPLE = 1024
"""Rows from one sample to the next, at most, where `SAMPLES_LIMIT` samples are enough."""

SAMPLES_LIMIT = 4096

Key = tuple[Any, ...]
"""The words or the text, the source's name and the position; or the beginning of that."""

Columns = dict[str, "np.ndarray | Ragged"]


class Names:
    """The names of sources, sorted, by rank.

    Args:
        names: in any order, each once or more often.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.sorted = sorted(set(names))
        self._ranks = {name: rank for rank, name in enumerate(self.sorted)}
        self._halves: dict[int, np.ndarray] = {}

    def ranks(self, names: Sequence[str]) -> np.ndarray:
        """The ranks of names: int64 (names,)."""
        return np.fromiter((self._ranks[name] for name in names), np.int64, len(names))

    def halves(self, seed: int) -> np.ndarray:
        """The keyed hash of each name, as two words: uint64 (names, 2)."""
        if seed not in self._halves:
            salt = seed.to_bytes(8, "little")
            hashes = b"".join(
                hashlib.blake2b(n.encode(), digest_size=16, person=SHUFFLE, salt=salt).digest()
                for n in self.sorted
            )
            self._halves[seed] = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        return self._halves[seed]

    def comparable(self, key: Key, words: int) -> Key:
        """A key, or the beginning of one, as `Keys` compares it.

        Args:
            words: how many of its parts come before the source's name.
        """
        values = tuple(v.encode() if isinstance(v, str) else v for v in key[:words])
        if len(key) <= words:
            return values
        name, position = key[words:]
        if name in self._ranks:
            return (*values, self._ranks[name], position)
        # Of no row here: it comes before all positions of the name that would follow it.
        return (*values, bisect.bisect_left(self.sorted, name), -1)


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys of rows.

    Attributes:
        columns: arrays of shape (rows,), the one that decides first: uint64 words or objects of
            bytes, then int64 ranks of names, then int64 positions.
    """

    columns: tuple[np.ndarray, ...]

    @classmethod
    def concatenate(cls, parts: Sequence[Keys]) -> Keys:
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(tuple(np.concatenate(column) for column in columns))

    def __len__(self) -> int:
        return len(self.columns[0])

    def slice(self, start: int, stop: int) -> Keys:
        return Keys(tuple(column[start:stop] for column in self.columns))

    def argsort(self) -> np.ndarray:
        """The rows in the order of their keys: int64 (rows,)."""
        return np.lexsort(self.columns[::-1])

    def ascend(self) -> bool:
        """Whether the rows are in the order of their keys."""
        return bool(np.array_equal(self.argsort(), np.arange(len(self))))

    def at(self, row: int) -> Key:
        """The key of a row, comparable with others of the same `Names`."""
        return tuple(column[row:][:1].tolist()[0] for column in self.columns)

    def stored(self, row: int, names: Names) -> Key:
        """The key of a row, comparable with all others of its order."""
        *values, rank, position = self.at(row)
        words = (v.decode() if isinstance(v, bytes) else v for v in values)
        return (*words, names.sorted[rank], position)

    def before(self, key: Key) -> int:
        """How many of the rows, which ascend, come before a key or the beginning of one."""
        return self._place(key)[0]

    def through(self, key: Key) -> int:
        """How many of the rows, which ascend, do not come after a key."""
        return self._place(key)[1]

    def _place(self, key: Key) -> tuple[int, int]:
        low, high = 0, len(self)
        for column, value in zip(self.columns, key, strict=False):
            part = column[low:high]
            wanted = np.empty(1, column.dtype)
            wanted[0] = value
            low, high = (
                low + int(np.searchsorted(part, wanted, "left")[0]),
                low + int(np.searchsorted(part, wanted, "right")[0]),
            )
        return low, high


def words_of(order: Order) -> int:
    """How many parts of an order's keys come before the source's name."""
    return 2 if order.kind == "shuffle" else 1


def keys_of(
    order: Order, value: np.ndarray | Ragged | None, ranks: np.ndarray, positions: np.ndarray,
    names: Names,
) -> Keys:  # fmt: skip
    """The keys of rows.

    Args:
        value: the column that is ordered by, lengths for `by(tokens)`; None for a shuffle.
        ranks: int64 (rows,), of the sources' names.
        positions: int64 (rows,).
    """
    if order.kind == "shuffle":
        # Two rounds with both halves of the name's hash: rows whose words agree in the first round
        # do not in the second.
        first, second = names.halves(order.seed)[ranks].T
        at = positions.astype(np.uint64)
        return Keys(
            (mix(mix(at ^ first) ^ second), mix(mix(at ^ second) ^ first), ranks, positions)
        )
    assert value is not None
    words = _texts(value) if isinstance(value, Ragged) else ascending(value)
    return Keys((words, ranks, positions))


def _texts(column: Ragged) -> np.ndarray:
    found = np.empty(len(column), object)
    data, limits = column.values.tobytes(), column.offsets.tolist()
    found[:] = [data[a:b] for a, b in itertools.pairwise(limits)]
    return found


def ascending(values: np.ndarray) -> np.ndarray:
    """Words in the order of numbers: uint64 of the same shape. 0.0 is -0.0, NaNs come last."""
    if values.dtype.kind in "bu":
        return values.astype(np.uint64)
    sign = np.uint64(1 << 63)
    if values.dtype.kind == "i":
        return values.astype(np.int64).view(np.uint64) ^ sign
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)
    words: np.ndarray = np.where(bits & sign, ~bits, bits | sign)
    words[np.isnan(values)] = np.iinfo(np.uint64).max
    return words


def row_sizes(schema: Schema, lengths: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """Bytes of the values of each row: int64 (rows,).

    Args:
        lengths: of the rows in each field that has offsets.
    """
    sizes = np.zeros(rows, np.int64)
    for f in schema.stored:
        size = np.dtype(f.dtype).itemsize * int(np.prod(f.shape, dtype=np.int64))
        sizes += size * (lengths[f.like or f.name] if f.ragged else 1)
    return sizes


def run_size(schema: Schema, rows: int, elements: Mapping[str, int]) -> int:
    """Bytes of the values of a shard."""
    if rows == 0:
        return 0
    lengths = {name: np.array([count]) for name, count in elements.items()}
    fixed = row_sizes(schema, dict.fromkeys(elements, np.zeros(1, np.int64)), 1)
    return int(row_sizes(schema, lengths, 1)[0] + (rows - 1) * fixed[0])


@dataclass
class Sampler:
    """Keys of a run's rows, evenly spaced by rows and by bytes, as its rows go by in order.

    Args:
        rows, size: of the run, about.
    """

    rows: int
    size: int
    _row: int = 0
    _bytes: int = 0
    _found: list[tuple[int, int, Key]] = field(default_factory=list)

    def add(self, keys: Keys, sizes: np.ndarray, names: Names) -> None:
        """Take in the next rows."""
        many = min(SAMPLES_LIMIT, max(SAMPLES, self.rows // ROWS_A_SAMPLE))
        rows, before = self._row + np.arange(len(keys)), self._bytes + np.cumsum(sizes) - sizes
        by_rows = _crossed(rows, 1, max(1, self.rows // many))
        by_bytes = _crossed(before, sizes, max(1, self.size // SAMPLES))
        for row in np.flatnonzero(by_rows | by_bytes).tolist():
            self._found.append((int(rows[row]), int(before[row]), keys.stored(row, names)))
        self._row += len(keys)
        self._bytes += int(sizes.sum())

    def to_json(self) -> dict[str, Any]:
        """Columns: numbers of the rows, bytes of the rows before each, their keys."""
        rows, sizes, keys = zip(*self._found, strict=True) if self._found else ((), (), ())
        return {"rows": list(rows), "bytes": list(sizes), "keys": [list(key) for key in keys]}


def _crossed(before: np.ndarray, sizes: np.ndarray | int, step: int) -> np.ndarray:
    """Which spans [before, before + size) hold a multiple of a step."""
    found: np.ndarray = (before + step - 1) // step * step < before + sizes
    return found
