"""Schemas, random columns of them, and small stored caches."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cachelib.format.canonical import digest
from cachelib.format.commit import Commit
from cachelib.format.digest import digest_rows
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import Cover, Manifest, ShardWriter, publish
from cachelib.format.storage import Storage
from cachelib.format.succession import follow
from cachelib.ragged import Ragged

Columns = dict[str, np.ndarray | Ragged]

# Every kind of field; chunks so small that a few rows fill several outer chunks.
EVERY_KIND = Schema(
    (
        Field("tokens", "uint16", ragged=True, chunk=1),
        Field("mask", "bool", ragged=True, like="tokens", chunk=1),
        Field("weights/loss", "float16", ragged=True, like="tokens", chunk=3),
        Field("big", "uint64", ragged=True, chunk=1),
        Field("frames", "float32", shape=(2, 3), ragged=True, chunk=1),
        Field("title", "uint8", ragged=True, text=True, chunk=1),
        Field("label", "int8", chunk=1),
        Field("time", "int64", chunk=1),
        Field("score", "float64", shape=(4,), chunk=1),
        Field("good", "bool", chunk=1),
    )
)

TOKENS = Schema((Field("tokens", "uint16", ragged=True, chunk=8), Field("label", "int64", chunk=4)))


def random_values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits at all of a dtype, NaN and negative zero included."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape)


def random_columns(schema: Schema, lengths: Sequence[int], seed: int) -> Columns:
    """Rows of random bits; row i of the first ragged field and those like it has lengths[i]."""
    rng = np.random.default_rng(seed)
    columns: Columns = {}
    for field in schema.fields:
        if not field.ragged:
            columns[field.name] = random_values(rng, field.dtype, (len(lengths), *field.shape))
            continue
        if field.like is not None:
            owner = columns[field.like]
            assert isinstance(owner, Ragged)
            sizes = owner.lengths
        elif not columns:
            sizes = np.array(lengths, np.int64)
        else:
            sizes = rng.integers(0, 4, len(lengths))
        values = random_values(rng, field.dtype, (int(sizes.sum()), *field.shape))
        columns[field.name] = Ragged.from_lengths(values, sizes)
    return columns


def take(columns: Mapping[str, np.ndarray | Ragged], rows: np.ndarray | slice) -> Columns:
    """Chosen rows of columns held in memory: what a cache must agree with."""
    indices = np.arange(len(next(iter(columns.values()))))[rows]
    return {
        name: column.take(indices) if isinstance(column, Ragged) else column[indices]
        for name, column in columns.items()
    }


def assert_equal(
    found: Mapping[str, np.ndarray | Ragged], expected: Mapping[str, np.ndarray | Ragged]
) -> None:
    """Equal columns, bit by bit."""
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        other = found[name]
        assert isinstance(column, Ragged) == isinstance(other, Ragged), name
        if isinstance(column, Ragged) and isinstance(other, Ragged):
            np.testing.assert_array_equal(other.offsets, column.offsets, err_msg=name)
            assert_same_bits(other.values, column.values)
        elif isinstance(column, np.ndarray) and isinstance(other, np.ndarray):
            assert_same_bits(other, column)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


def write_shard(
    storage: Storage,
    schema: Schema,
    shard: str,
    columns: Mapping[str, np.ndarray | Ragged],
    *,
    source: str = "numbers",
    batches: Sequence[int] = (),
    rejects: Sequence[str] = (),
    start: int = 0,
) -> Manifest:
    """One finished shard, not published; row i lies at position start + i of its source.

    Args:
        batches: where the rows are cut into batches.
        rejects: reasons, of records behind the rows.
    """
    writer = ShardWriter(storage, schema, shard)
    rows = len(next(iter(columns.values())))
    limits = [0, *batches, rows]
    for low, high in itertools.pairwise(limits):
        writer.append(
            take(columns, slice(low, high)),
            np.full(high - low, writer.source(source), np.uint32),
            np.arange(start + low, start + high, dtype=np.int64),
        )
    for number, reason in enumerate(rejects):
        writer.reject(source, start + rows + number, reason, "detail", "excerpt")
    stop = start + rows + len(rejects)
    return writer.finish(
        covers=[Cover(source, start, stop, False)] if stop > start else [],
        counts={"audited": 1},
        task={"shard": shard},
    )


def coverage_of(manifests: Sequence[Manifest]) -> dict[str, Any] | None:
    """The coverage object of manifests whose covers of one source follow on one another."""
    covers = [cover for manifest in manifests for cover in manifest.covers]
    names = sorted({cover.source for cover in covers})
    ranges = {
        name: [
            [
                min(c.start for c in covers if c.source == name),
                max(c.stop for c in covers if c.source == name),
            ]
        ]
        for name in names
    }
    return {
        "source": names,
        "version": ["1"] * len(names),
        "ranges": [ranges[name] for name in names],
        "extent": [None] * len(names),
    }


TOKENIZER = "tokenizer/abc/tokenizer.json"
"""Where the tests keep what stands for a tokenizer."""


def with_tokenizer(identity: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """An identity that names a file of this content as its tokenizer."""
    return {**identity, "files": {TOKENIZER: digest(data)}}


def append_commit(
    storage: Storage,
    schema: Schema,
    manifests: Sequence[Manifest],
    *,
    identity: Mapping[str, Any] | None = None,
    finish: bool = False,
) -> Commit:
    """Commit manifests after whatever is there."""
    ledger = Ledger(storage)
    parent = None if ledger.head() is None else ledger.snapshot()
    commit = follow(
        ledger,
        parent,
        operation="finish" if finish else "create" if parent is None else "append",
        task={},
        schema=schema,
        identity={} if identity is None else identity,
        manifests=manifests,
        coverage=coverage_of(manifests) if manifests else None,
        finished=finish,
    )
    there = ledger.append(commit)
    assert there.digest == commit.digest
    return there


def write_cache(
    path: str | os.PathLike[str],
    schema: Schema,
    columns: Mapping[str, np.ndarray | Ragged],
    commits: Sequence[Sequence[int]],
    *,
    rejects: Sequence[str] = (),
    identity: Mapping[str, Any] | None = None,
) -> Storage:
    """A cache of columns cut into commits, each a list of the row counts of its shards.

    Args:
        rejects: reasons, of records behind the last row.
    """
    storage = Storage.at(path)
    at = 0
    counts = [list(rows) for rows in commits]
    assert sum(map(sum, counts)) == len(next(iter(columns.values())))
    for version, rows in enumerate(counts):
        manifests = []
        for number, count in enumerate(rows):
            last = version == len(counts) - 1 and number == len(rows) - 1
            manifest = write_shard(
                storage,
                schema,
                f"{version}-{number}",
                take(columns, slice(at, at + count)),
                rejects=rejects if last else (),
                start=at,
            )
            manifests.append(publish(storage, manifest))
            at += count
        append_commit(storage, schema, manifests, identity=identity)
    digest = digest_rows(schema, columns)
    assert Ledger(storage).snapshot().digest == digest
    return storage
