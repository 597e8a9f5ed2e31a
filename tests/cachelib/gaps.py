"""Deletes and compactions of small caches of every kind of field, without a pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from cachelib.format.commit import Commit
from cachelib.format.digest import digest_rows
from cachelib.format.entries import Replacement
from cachelib.format.ledger import Ledger
from cachelib.format.shard import publish
from cachelib.format.storage import Storage
from cachelib.format.succession import replace_shards
from cachelib.ragged import ranges
from cachelib.reading.scan import Scan
from tests.cachelib.helpers import EVERY_KIND, Columns, take, write_shard


def delete(storage: Storage, rows: Sequence[int], columns: Columns) -> Commit:
    """Commit that rows of a cache, by index, are no longer there."""
    ledger = Ledger(storage)
    parent = ledger.snapshot()
    groups = []
    for number in range(len(parent.entries)):
        entry = parent.entries.slice(number, number + 1)
        index = np.full(int(entry.rows[0]), -1, np.int64)
        left = entry.left
        index[ranges(left.stored, left.rows)] = ranges(left.first, left.rows)
        index[index >= 0] += parent.row_bases[number]
        kept = (index >= 0) & ~np.isin(index, np.array(rows, np.int64))
        if kept.sum() == (index >= 0).sum():
            continue
        scan = Scan.of(storage, EVERY_KIND, parent.entries, number)
        offsets = {name: scan.offsets(EVERY_KIND[name], 0, scan.rows) for name in entry.elements}
        digest = str(digest_rows(EVERY_KIND, take(columns, index[kept])))
        thinned = entry.thinned(kept, offsets, digest)
        groups.append(Replacement(entry.shard, thinned))
    commit = replace_shards(ledger, parent, operation="delete", task={}, groups=groups)
    assert ledger.append(commit).digest == commit.digest
    return commit


def compact(storage: Storage, start: int, stop: int, name: str, columns: Columns) -> Commit:
    """Commit one shard in the place of shards [start, stop) of a cache."""
    ledger = Ledger(storage)
    parent = ledger.snapshot()
    group = parent.entries.slice(start, stop)
    left = group.left
    bases = parent.row_bases[start:stop]
    rows = ranges(bases[left.entry] + left.first, left.rows)
    written = write_shard(storage, EVERY_KIND, name, take(columns, rows))
    manifest = publish(storage, dataclasses.replace(written, covers=()))  # nothing is taken in
    packed = group.packed(manifest.shard, manifest.attempt, manifest.digest)
    groups = [Replacement(group.shard, packed)]
    commit = replace_shards(ledger, parent, operation="compact", task={}, groups=groups)
    assert ledger.append(commit).digest == commit.digest
    return commit
