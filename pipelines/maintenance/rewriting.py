"""Rewriting: the rows that are left of some shards as one new shard, or as fewer rows of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.canonical import digest_of
from cachelib.format.digest import Digest, digest_rows, fold
from cachelib.format.entries import Entries
from cachelib.format.schema import POSITION, SOURCE, Schema
from cachelib.format.shard import (
    Manifest,
    ShardWriter,
    has_offsets,
    publish,
    read_details,
    read_manifest,
    read_rejects,
)
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged, ranges
from cachelib.reading.scan import Columns, Scan

Forget = Callable[[str], bool]
"""Whether a source, by name, is to leave nothing behind."""


def rows_stored(entry: Entries) -> np.ndarray:
    """For each row in the arrays of a single entry its row, counted from the entry's first row
    index, int64 (rows,); -1 where it is deleted."""
    index = np.full(int(entry.rows[0]), -1, np.int64)
    left = entry.left
    index[ranges(left.stored, left.rows)] = ranges(left.first, left.rows)
    return index


def thinned(storage: Storage, schema: Schema, entry: Entries, kept: np.ndarray) -> Entries:
    """A single entry of which only some rows are left; its arrays stay.

    Args:
        kept: bool (rows,), of each row in its arrays whether it may stay.
    """
    scan = Scan.of(storage, schema, entry, 0)
    kept = kept & (rows_stored(entry) >= 0)
    digests = [
        digest_rows(schema, _chosen(columns, kept[first : first + _rows(columns)]))
        for first, columns in scan.blocks(schema.fields)
    ]
    owners = [f for f in schema.fields if has_offsets(f)]
    offsets = {f.name: scan.offsets(f, 0, scan.rows) for f in owners}
    return entry.thinned(kept, offsets, str(fold(digests)))


def packed(
    storage: Storage, schema: Schema, entries: Entries, forget: Forget = lambda source: False
) -> Entries:
    """A single entry that stands for entries: a new shard of the rows that are left of them.

    The shard's id is a digest of what is packed, so that whoever packs the same again adopts it.

    Args:
        entries: shards that lie side by side.
        forget: sources whose rejects are dropped.

    Raises:
        CorruptData: the rows read are not those that the ledger names.
    """
    dropped = [
        sorted({each["source"] for each in found if forget(each["source"])})
        for found in _rejects(storage, entries)
    ]
    shard = digest_of({"packed": entries.to_json(), "dropped": dropped})
    manifest = read_manifest(storage, shard)
    if manifest is None:
        manifest = publish(storage, _written(storage, schema, entries, shard, forget))
    expected = fold(map(Digest.parse, entries.digests))
    if Digest.parse(manifest.digest) != expected:
        raise CorruptData(
            f"{storage.url}: the rows of shards {', '.join(entries.shard[:3])} have content digest "
            f"{manifest.digest}, the ledger says {expected}: they are damaged; verify tells more"
        )
    return entries.packed(manifest.shard, manifest.attempt, manifest.digest)


def _written(
    storage: Storage, schema: Schema, entries: Entries, shard: str, forget: Forget
) -> Manifest:
    writer = ShardWriter(storage, schema, shard)
    fields = (*schema.fields, SOURCE, POSITION)
    for number in range(len(entries)):
        entry = entries.slice(number, number + 1)
        if not int(entry.left.rows.sum()):
            continue
        scan = Scan.of(storage, schema, entry, 0)
        names = read_details(storage, scan.shard, scan.attempt)["sources"]
        kept = rows_stored(entry) >= 0
        for first, columns in scan.blocks(fields):
            chosen = _chosen(columns, kept[first : first + _rows(columns)])
            sources, positions = chosen.pop(SOURCE.name), chosen.pop(POSITION.name)
            assert isinstance(sources, np.ndarray)
            assert isinstance(positions, np.ndarray)
            used, places = np.unique(sources, return_inverse=True)
            numbers = np.array([writer.source(names[source]) for source in used], np.uint32)
            writer.append(chosen, numbers[places], positions)
    for found in _rejects(storage, entries):
        for each in found:
            if not forget(each["source"]):
                writer.reject(**each)
    return writer.finish(covers=(), counts={}, task={"packs": len(entries)})


def has_rejects(storage: Storage, entry: Entries, forget: Forget) -> bool:
    """Whether a shard has rejects of sources that are to leave nothing behind."""
    return any(forget(each["source"]) for found in _rejects(storage, entry) for each in found)


def _rejects(storage: Storage, entries: Entries) -> Iterator[list[dict[str, Any]]]:
    """The rejects that are kept of each shard."""
    for shard, attempt in zip(entries.shard, entries.attempt, strict=True):
        yield read_rejects(storage, shard, attempt)


def _rows(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _chosen(columns: Columns, kept: np.ndarray) -> Columns:
    """The rows of columns that a mask chooses."""
    if kept.all():
        return columns
    rows = np.flatnonzero(kept)
    return {
        name: column.take(rows) if isinstance(column, Ragged) else column[rows]
        for name, column in columns.items()
    }
