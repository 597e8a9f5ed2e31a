"""Removal: the objects of attempts that were given up, in an order that misleads nobody."""

from __future__ import annotations

from collections.abc import Collection

from cachelib.format.shard import attempt_prefix, manifest_key, read_manifest
from cachelib.format.storage import Storage
from pipelines.maintenance.garbage import Attempt


def delete_attempts(cache: str, attempts: Collection[Attempt]) -> int:
    """Delete attempts that a commit gave up; returns how many.

    The manifest goes first, so that nobody finds one whose arrays are gone, and then the object
    that says that the arrays are whole.
    """
    storage = Storage(cache)
    for shard, attempt in attempts:
        if published(storage, (shard, attempt)):
            storage.delete(manifest_key(shard))
        storage.delete_folder(attempt_prefix(shard, attempt), first="zarr.json")
    return len(attempts)


def published(storage: Storage, attempt: Attempt) -> bool:
    """Whether an attempt is the one that its shard's manifest names."""
    manifest = read_manifest(storage, attempt[0])
    return manifest is not None and manifest.attempt == attempt[1]
