"""Shard: one immutable set of arrays, and the manifest that names the attempt which counts.

A writer fills a fresh attempt folder and then puts the shard's manifest if there is none. Whoever
loses that race adopts the winner's manifest, so retries and zombies change nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.canonical import canonical, seal
from cachelib.format.digest import Digest, digest_rows, fold
from cachelib.format.schema import CHUNKS_PER_OBJECT, POSITION, SOURCE, Field, Schema
from cachelib.format.storage import Storage, check_fork, result_of
from cachelib.ragged import Ragged

if TYPE_CHECKING:
    import tensorstore as ts

OFFSETS_CHUNK = 2048
"""Offsets in an inner chunk: 16 KiB."""

REJECTS_KEPT_BYTES = 32 << 20
"""Copies of rejected records kept in one shard, in bytes."""

_UNBOUNDED = 1 << 40  # values an array can grow to while it is written


@dataclass(frozen=True)
class Cover:
    """A range of positions of one source that was read to its end.

    Attributes:
        source: the source's name.
        start, stop: positions [start, stop): bytes of the decompressed source, or row numbers.
        ends: whether stop is the end of the source.
    """

    source: str
    start: int
    stop: int
    ends: bool


@dataclass(frozen=True)
class Manifest:
    """What a finished shard holds. Small: it travels through the engine and into the ledger.

    Attributes:
        shard: the shard's id.
        attempt: the folder of arrays that counts.
        rows: rows in the shard.
        elements: number of values of each ragged field that has offsets of its own.
        digest: the content digest of the rows, as text.
        covers: what was read for it, in order.
        records: records read: rows and rejects.
        rejects: rejected records by reason.
        counts: other things counted on the way, by name (replaced text, exact rows, ...).
        task: where the shard stands in its plan, for the one who made the plan.
    """

    shard: str
    attempt: str
    rows: int
    elements: dict[str, int]
    digest: str
    covers: tuple[Cover, ...]
    records: int
    rejects: dict[str, int]
    counts: dict[str, int]
    task: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "covers": [[c.source, c.start, c.stop, c.ends] for c in self.covers],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Manifest:
        return cls(**{**value, "covers": tuple(Cover(*cover) for cover in value["covers"])})


def manifest_key(shard: str) -> str:
    return f"shards/{shard}/manifest.json"


def attempt_prefix(shard: str, attempt: str) -> str:
    return f"shards/{shard}/{attempt}/"


def read_manifest(storage: Storage, shard: str) -> Manifest | None:
    """The manifest of a finished shard, or None if the shard is not finished."""
    value = storage.read_json(manifest_key(shard))
    return None if value is None else Manifest.from_json(value)


def publish(storage: Storage, manifest: Manifest) -> Manifest:
    """Make a manifest the shard's, or adopt the one that is there; returns the one that counts."""
    return Manifest.from_json(storage.put_json(manifest_key(manifest.shard), manifest.to_json()))


def data_key(field: Field) -> str:
    return f"{field.name}/data"


def offsets_key(field: Field) -> str:
    return f"{field.name}/offsets"


def array_metadata(dtype: str, shape: Sequence[int], chunk: int) -> dict[str, Any]:
    """Zarr v3 metadata of an array chunked along its first dimension only.

    An outer chunk is one object. It has `CHUNKS_PER_OBJECT` inner chunks, or as many as the whole
    array has if those are fewer, since its index takes 16 bytes for each. Each inner chunk carries
    a crc32c of its own, without which a flipped byte would be silent.
    """
    inner = min(CHUNKS_PER_OBJECT, max(1, -(-shape[0] // chunk)))
    trailing = list(shape[1:])
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    plain = {"name": "bytes"}
    codecs = [
        plain if np.dtype(dtype).itemsize == 1 else little,
        {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
        {"name": "crc32c"},
    ]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [chunk * inner, *trailing]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if dtype == "bool" else 0.0 if dtype.startswith("float") else 0,
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [chunk, *trailing],
                    "codecs": codecs,
                    "index_codecs": [little, {"name": "crc32c"}],
                    "index_location": "end",
                },
            }
        ],
        "attributes": {},
    }


def data_metadata(field: Field, length: int) -> dict[str, Any]:
    """The metadata of a field's data array of the given first dimension."""
    return array_metadata(field.dtype, (length, *field.shape), field.chunk)


def offsets_metadata(rows: int) -> dict[str, Any]:
    """The metadata of a ragged field's offsets in a shard of that many rows."""
    return array_metadata("int64", (rows + 1,), OFFSETS_CHUNK)


class _ArrayWriter:
    """Appends to one array and writes each outer chunk once, when it is full or last.

    Holds one outer chunk; the one before it may still be on its way.
    """

    def __init__(
        self, storage: Storage, key: str, metadata: Callable[[int], dict[str, Any]]
    ) -> None:
        unbounded = metadata(_UNBOUNDED)
        self._storage = storage
        self._key = key
        self._metadata = metadata
        self._outer = unbounded["chunk_grid"]["configuration"]["chunk_shape"][0]
        self._trailing = tuple(unbounded["shape"][1:])
        self._dtype = np.dtype(unbounded["data_type"])
        self._buffer = np.empty((0, *self._trailing), self._dtype)
        self._written = self._buffer  # taken up again once its write is done
        self._filled = 0
        self._array: ts.TensorStore | None = None
        self._pending: Any = None
        self.length = 0

    def append(self, values: np.ndarray) -> None:
        """Append values of the array's dtype; casts that change a value are the caller's bug."""
        taken = 0
        while taken < len(values):
            count = min(self._outer - self._filled, len(values) - taken)
            self._reserve(self._filled + count)
            self._buffer[self._filled : self._filled + count] = values[taken : taken + count]
            self._filled += count
            taken += count
            if self._filled == self._outer:
                self._flush()

    def _reserve(self, size: int) -> None:
        if size > len(self._buffer):
            # Small shards stay small; memory that is not touched costs large ones nothing.
            capacity = self._outer if size > self._outer // 16 else 2 * size
            grown = np.empty((capacity, *self._trailing), self._dtype)
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown

    def _flush(self) -> None:
        check_fork()  # the array may be open already
        if self._array is None:
            full = self._filled == self._outer
            metadata = self._metadata(_UNBOUNDED if full else self._filled)
            self._array = self._storage.open_array(self._key, metadata, write=True)
        self.wait()
        chunk = self._buffer[: self._filled]
        self._pending = self._array[self.length : self.length + self._filled].write(
            chunk, can_reference_source_data_indefinitely=True
        )
        self.length += self._filled
        self._filled = 0
        self._buffer, self._written = self._written, self._buffer

    def finish(self) -> None:
        """Write what is left and wait; the array's metadata is written by `write_metadata`."""
        if self._filled:
            self._flush()

    def wait(self) -> None:
        """Wait until what was flushed is stored.

        Raises:
            StorageError: it could not be stored.
        """
        if self._pending is not None:
            result_of(self._pending, self._storage.where(self._key))

    def final_metadata(self) -> bytes:
        return _pretty(self._metadata(self.length))


def _pretty(metadata: dict[str, Any]) -> bytes:
    return json.dumps(metadata, indent=1, sort_keys=True).encode("ascii")


@dataclass
class Statistics:
    """What a shard's details tell of one field that has offsets.

    Attributes:
        empty: rows without values.
        smallest, largest: of all values; None where they are no integers or there are none.
        lengths: rows by `length_bucket`, int64 of shape (64,).
    """

    empty: int = 0
    smallest: int | None = None
    largest: int | None = None
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(64, np.int64))

    def add(self, column: Ragged) -> None:
        lengths = column.lengths
        self.empty += int(np.count_nonzero(lengths == 0))
        self.lengths += np.bincount(length_bucket(lengths), minlength=64)
        if len(column.values) and column.values.dtype.kind in "iu":
            low, high = int(column.values.min()), int(column.values.max())
            self.smallest = low if self.smallest is None else min(low, self.smallest)
            self.largest = high if self.largest is None else max(high, self.largest)

    def to_json(self) -> dict[str, Any]:
        return {
            "empty": self.empty,
            "min": self.smallest,
            "max": self.largest,
            "lengths": np.trim_zeros(self.lengths, "b").tolist(),
        }


def length_bucket(lengths: np.ndarray) -> np.ndarray:
    """Bucket of each row length: 0 for empty rows, else k with 2^(k - 1) <= length < 2^k."""
    return np.frexp(lengths.astype(np.float64))[1].astype(np.int64)


class ShardWriter:
    """Writes the rows of one shard into a fresh attempt folder, in bounded memory.

    Args:
        storage: of the cache.
        schema: of the cache.
        shard: the shard's id.
    """

    def __init__(self, storage: Storage, schema: Schema, shard: str) -> None:
        self.shard = shard
        self.attempt = os.urandom(8).hex()
        self.rows = 0
        self._storage = storage
        self._schema = schema
        self._prefix = attempt_prefix(shard, self.attempt)
        self._sources: dict[str, int] = {}
        self._digests: list[Digest] = []
        self._reasons: dict[str, int] = {}
        self._reject_lines = bytearray()
        self._data = {
            f.name: _ArrayWriter(storage, self._prefix + data_key(f), partial(data_metadata, f))
            for f in schema.stored
        }
        self._offsets = {
            f.name: _ArrayWriter(
                storage, self._prefix + offsets_key(f), lambda n: offsets_metadata(n - 1)
            )
            for f in schema.fields
            if has_offsets(f)
        }
        self._statistics = {name: Statistics() for name in self._offsets}
        for writer in self._offsets.values():
            writer.append(np.zeros(1, np.int64))

    def source(self, name: str) -> int:
        """The index by which rows refer to a source, given out in the order of asking."""
        return self._sources.setdefault(name, len(self._sources))

    def append(
        self,
        columns: Mapping[str, np.ndarray | Ragged],
        sources: np.ndarray,
        positions: np.ndarray,
    ) -> None:
        """Append rows.

        Args:
            columns: one column a field of the schema, all of the same number of rows.
            sources: uint32 of shape (rows,), indices from `source`.
            positions: int64 of shape (rows,), where each row began in its source.

        Raises:
            ValueError: a column is missing, is no field, or has another dtype, shape or length;
                or a source is not one that `source` gave.
        """
        check_columns(self._schema, columns, len(positions))
        self._check_provenance(sources, positions)
        if len(positions) == 0:
            return
        self._digests.append(digest_rows(self._schema, columns))
        for f in self._schema.fields:
            column = columns[f.name]
            if isinstance(column, Ragged):
                if f.name in self._offsets:
                    self._offsets[f.name].append(column.offsets[1:] + self._elements(f.name))
                    self._statistics[f.name].add(column)
                self._data[f.name].append(column.values)
            else:
                self._data[f.name].append(column)
        self._data["_source"].append(sources)
        self._data["_position"].append(positions)
        self.rows += len(positions)

    def _check_provenance(self, sources: np.ndarray, positions: np.ndarray) -> None:
        for f, column in ((SOURCE, sources), (POSITION, positions)):
            if column.dtype != np.dtype(f.dtype) or column.shape != (len(positions),):
                raise ValueError(
                    f"{f.name} has values {column.dtype} {column.shape}, "
                    f"expected {f.dtype} {(len(positions),)}"
                )
        if len(sources) and sources.max() >= len(self._sources):
            raise ValueError(
                f"source index {sources.max()} was not given: {len(self._sources)} were"
            )

    def _elements(self, name: str) -> int:
        writer = self._data[name]
        return writer.length + writer._filled

    def reject(self, source: str, position: int, reason: str, detail: str, excerpt: str) -> None:
        """Count a record that could not be processed, and keep a shortened copy of it.

        All are counted by reason; copies are kept up to `REJECTS_KEPT_BYTES` a shard.
        """
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        line = canonical(
            {
                "source": source,
                "position": position,
                "reason": reason,
                "detail": detail,
                "excerpt": excerpt,
            }
        )
        if len(self._reject_lines) + len(line) < REJECTS_KEPT_BYTES:
            self._reject_lines += line + b"\n"

    def finish(
        self, *, covers: Sequence[Cover], counts: Mapping[str, int], task: Mapping[str, Any]
    ) -> Manifest:
        """Write what is left, the metadata and the details; the manifest is not published yet.

        Args:
            covers: what was read for this shard, in order.
            counts: other things counted on the way.
            task: where the shard stands in its plan.
        """
        if self._reject_lines:
            self._storage.write(self._prefix + "rejects.jsonl", bytes(self._reject_lines))
        if self.rows:
            self._write_arrays()
        return Manifest(
            shard=self.shard,
            attempt=self.attempt,
            rows=self.rows,
            elements={name: self._data[name].length for name in self._offsets},
            digest=str(fold(self._digests)),
            covers=tuple(covers),
            records=self.rows + sum(self._reasons.values()),
            rejects=dict(sorted(self._reasons.items())),
            counts=dict(sorted(counts.items())),
            task=dict(task),
        )

    def _write_arrays(self) -> None:
        arrays = [
            (f"{name}/{kind}", writer)
            for kind, writers in (("data", self._data), ("offsets", self._offsets))
            for name, writer in writers.items()
        ]
        for _, writer in arrays:
            writer.finish()
        for _, writer in arrays:
            writer.wait()
        objects = {f"{key}/zarr.json": writer.final_metadata() for key, writer in arrays}
        group = _pretty({"zarr_format": 3, "node_type": "group", "attributes": {}})
        for folder in {parent for key, _ in arrays for parent in _parents(key)}:
            objects[f"{folder}/zarr.json"] = group
        details = {
            "sources": list(self._sources),
            "fields": {name: s.to_json() for name, s in self._statistics.items()},
        }
        objects["details.json"] = seal(details)
        self._storage.write_many({self._prefix + key: data for key, data in objects.items()})
        self._storage.write(self._prefix + "zarr.json", group)


def _parents(key: str) -> list[str]:
    """The folders above a key, which Zarr wants to be groups: "a/b/data" -> ["a", "a/b"]."""
    parts = key.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def has_offsets(field: Field) -> bool:
    """Whether a field has offsets of its own."""
    return field.ragged and field.like is None


def check_columns(schema: Schema, columns: Mapping[str, np.ndarray | Ragged], rows: int) -> None:
    """Check that columns are exactly the schema's, with its dtypes and shapes and `rows` rows.

    Raises:
        ValueError: naming the column, what it is and what it should be.
    """
    if set(columns) != set(schema.names):
        raise ValueError(f"columns {sorted(columns)} are not the fields {sorted(schema.names)}")
    for f in schema.fields:
        column = columns[f.name]
        if isinstance(column, Ragged) != f.ragged:
            raise ValueError(f"field {f.name!r} is {'' if f.ragged else 'not '}ragged")
        values = column.values if isinstance(column, Ragged) else column
        if not isinstance(values, np.ndarray):
            raise ValueError(f"field {f.name!r} is no array but {type(values).__name__}")
        if len(column) != rows:
            raise ValueError(f"field {f.name!r} has {len(column)} rows, expected {rows}")
        if values.dtype != np.dtype(f.dtype) or values.shape[1:] != f.shape:
            raise ValueError(
                f"field {f.name!r} has values {values.dtype} {values.shape[1:]}, "
                f"expected {f.dtype} {f.shape}"
            )
        if f.like is not None:
            other = columns[f.like]
            assert isinstance(column, Ragged)
            assert isinstance(other, Ragged)
            if not np.array_equal(column.offsets, other.offsets):
                row = int(np.argmax(column.lengths != other.lengths))
                raise ValueError(
                    f"field {f.name!r} is like {f.like!r}, but row {row} has "
                    f"{column.lengths[row]} values beside {other.lengths[row]}"
                )


def read_details(storage: Storage, shard: str, attempt: str) -> dict[str, Any]:
    """The sources and statistics of a shard's rows.

    Raises:
        CorruptData: they are missing.
    """
    key = attempt_prefix(shard, attempt) + "details.json"
    value = storage.read_json(key)
    if value is None:
        raise CorruptData(f"{storage.where(key)} is missing, though the shard has rows")
    return value


def read_rejects(storage: Storage, shard: str, attempt: str) -> list[dict[str, Any]]:
    """The rejects of a shard, as they were stored: source, position, reason, detail, excerpt.

    Raises:
        CorruptData: they are damaged.
    """
    key = attempt_prefix(shard, attempt) + "rejects.jsonl"
    data = storage.read(key)
    try:
        return [] if data is None else [json.loads(line) for line in data.splitlines()]
    except ValueError as error:
        raise CorruptData(f"{storage.where(key)}: not lines of JSON: {error}") from error
