"""Small stored caches, written with the format's own writers."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from cachelib.ledger import Ledger, follow
from cachelib.ragged import Ragged
from cachelib.schema import Field, Schema
from cachelib.shard import Manifest, ShardWriter, publish
from cachelib.storage import Storage

SCHEMA = Schema((Field("tokens", "uint16", ragged=True, chunk=8), Field("label", "int64", chunk=4)))


def write_commit(path: str | os.PathLike[str], shards: Sequence[Sequence[int]]) -> None:
    """Append one commit: a list of row lengths for each shard.

    Tokens and labels of the whole cache count on, so that token t is t and label i is 10 * i.
    """
    storage = Storage.at(path)
    ledger = Ledger(storage)
    parent = None if ledger.head() is None else ledger.snapshot()
    row = 0 if parent is None else parent.rows
    token = 0 if parent is None else int(parent.element_bases["tokens"][-1])
    manifests: list[Manifest] = []
    for number, lengths in enumerate(shards):
        writer = ShardWriter(storage, SCHEMA, f"{0 if parent is None else 1}-{row}-{number}")
        source = writer.source("numbers")
        rows = np.arange(row, row + len(lengths), dtype=np.int64)
        values = np.arange(token, token + sum(lengths), dtype=np.uint16)
        columns: dict[str, np.ndarray | Ragged] = {
            "tokens": Ragged.from_lengths(values, np.array(lengths, np.int64)),
            "label": rows * 10,
        }
        writer.append(columns, np.full(len(rows), source, np.uint32), rows)
        manifests.append(publish(storage, writer.finish(covers=(), counts={}, task={})))
        row, token = row + len(lengths), token + sum(lengths)
    commit = follow(
        ledger,
        parent,
        operation="create" if parent is None else "append",
        task={},
        schema=SCHEMA,
        identity={},
        manifests=manifests,
    )
    assert ledger.append(commit).digest == commit.digest
