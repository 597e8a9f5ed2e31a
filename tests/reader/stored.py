"""Small stored caches, written with the format's own writers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cachelib.format.commit import Commit
from cachelib.format.entries import Entries
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import Manifest, ShardWriter, publish
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import follow
from cachelib.ragged import Ragged

SCHEMA = Schema((Field("tokens", "uint16", ragged=True, chunk=8), Field("label", "int64", chunk=4)))


def write_commit(
    path: str | os.PathLike[str],
    shards: Sequence[Sequence[int]],
    tokenizer: str | None = None,
    edges: Mapping[str, Any] | None = None,
) -> None:
    """Append one commit of tokens and labels: a list of row lengths for each shard.

    Both count on through the whole cache, so that token t is t and label i is 10 * i.
    ``tokenizer`` is the content of the tokenizer that the commit names, if any, and ``edges`` are
    the tokens that it says are at the edges of documents.
    """
    storage = Storage.at(path)
    ledger = Ledger(storage)
    parent = None if ledger.head() is None else ledger.snapshot()
    row = 0 if parent is None else parent.rows
    token = 0 if parent is None else int(parent.element_bases["tokens"][-1])
    contents: list[dict[str, np.ndarray | Ragged]] = []
    for lengths in shards:
        tokens = np.arange(token, token + sum(lengths), dtype=np.uint16)
        labels = np.arange(row, row + len(lengths), dtype=np.int64) * 10
        ragged = Ragged.from_lengths(tokens, np.array(lengths, np.int64))
        contents.append({"tokens": ragged, "label": labels})
        row, token = row + len(lengths), token + sum(lengths)
    told = {} if edges is None else {"edges": dict(edges)}
    identity = {} if tokenizer is None else {"tokenizer": {"content": tokenizer, **told}}
    _commit(ledger, parent, SCHEMA, contents, identity)


def write_frames(path: str | os.PathLike[str], lengths: Sequence[int]) -> None:
    """A cache of one shard of rows of ``frames``, three values each; frame t begins with t."""
    shifts = np.array([0, 0.25, 0.5], np.float32)
    frames = np.arange(sum(lengths), dtype=np.float32)[:, None] + shifts
    schema = Schema((Field("frames", "float32", shape=(3,), ragged=True),))
    column = Ragged.from_lengths(frames, np.array(lengths, np.int64))
    _commit(Ledger(Storage.at(path)), None, schema, [{"frames": column}])


def write_masks(path: str | os.PathLike[str], lengths: Sequence[int]) -> None:
    """A cache of one shard of tokens, a ``mask`` like them that is true at odd ones, and others."""
    tokens = np.arange(sum(lengths), dtype=np.uint16)
    schema = Schema(
        (
            Field("tokens", "uint16", ragged=True),
            Field("mask", "bool", ragged=True, like="tokens"),
            Field("others", "uint16", ragged=True),
        )
    )
    columns = {"tokens": tokens, "mask": tokens % 2 == 1, "others": tokens}
    counts = np.array(lengths, np.int64)
    content = {name: Ragged.from_lengths(values, counts) for name, values in columns.items()}
    _commit(Ledger(Storage.at(path)), None, schema, [content])


def write_columns(
    path: str | os.PathLike[str], schema: Schema, columns: Mapping[str, np.ndarray | Ragged]
) -> None:
    """A cache of one shard of the rows given."""
    _commit(Ledger(Storage.at(path)), None, schema, [columns])


def _commit(
    ledger: Ledger,
    parent: Snapshot | None,
    schema: Schema,
    contents: Sequence[Mapping[str, np.ndarray | Ragged]],
    identity: Mapping[str, Any] | None = None,
) -> None:
    version = 0 if parent is None else parent.version + 1
    manifests = []
    for number, columns in enumerate(contents):
        writer = ShardWriter(ledger.storage, schema, f"{version}-{number}")
        rows = len(columns[schema.names[0]])
        source = np.full(rows, writer.source("numbers"), np.uint32)
        writer.append(columns, source, np.arange(rows, dtype=np.int64))
        manifests.append(publish(ledger.storage, writer.finish(covers=(), counts={}, task={})))
    _append(ledger, parent, schema, manifests, identity or {})


def _append(
    ledger: Ledger,
    parent: Snapshot | None,
    schema: Schema,
    manifests: Sequence[Manifest],
    identity: Mapping[str, Any],
) -> Commit:
    operation = "create" if parent is None else "append"
    commit = follow(
        ledger,
        parent,
        operation=operation,
        task={},
        schema=schema,
        identity=identity,
        manifests=manifests,
    )
    assert ledger.append(commit).digest == commit.digest
    return commit


def write_simulated(path: str | os.PathLike[str], shards: int, rows: int, commits: int = 1) -> None:
    """A ledger of shards that are not there: 0, 1, 2, ... of ``rows`` rows of 64 tokens each."""
    ledger = Ledger(Storage.at(path))
    elements = {"tokens": 64 * rows}
    parent: Snapshot | None = None
    for numbers in np.array_split(np.arange(shards), commits):
        manifests = [
            Manifest(f"{n}", "0", rows, elements, f"{rows}:{n:016x}", (), rows, {}, {}, {})
            for n in numbers.tolist()
        ]
        commit = _append(ledger, parent, SCHEMA, manifests, {})
        before = Entries() if parent is None else parent.entries
        parent = Snapshot.of(commit, Entries.concatenate([before, commit.entries]))


def seal(path: str | os.PathLike[str], finished: bool = False) -> None:
    """End an era with the rows there are, or mark the cache complete."""
    ledger = Ledger(Storage.at(path))
    parent = ledger.snapshot()
    commit = follow(
        ledger,
        parent,
        operation="finish" if finished else "seal",
        task={},
        schema=parent.commit.schema,
        identity=parent.commit.identity,
        seals=True,
        finished=finished,
    )
    assert ledger.append(commit).digest == commit.digest
