"""Forebay's reader: training data from immutable shards, in any order, from any position."""

from cachelib.cache import Cache, open
from cachelib.errors import (
    AttemptRetired,
    BuildFailed,
    CacheNotFound,
    CorruptData,
    ForebayError,
    IncompatibleCache,
    LedgerConflict,
    RowDeleted,
    SnapshotExpired,
    SourceChanged,
    SourceError,
    StateMismatch,
    StorageError,
)
from cachelib.mixtures import concat, mix, then
from cachelib.ragged import Ragged
from cachelib.rebuild import rebuild

__all__ = [
    "AttemptRetired",
    "BuildFailed",
    "Cache",
    "CacheNotFound",
    "CorruptData",
    "ForebayError",
    "IncompatibleCache",
    "LedgerConflict",
    "Ragged",
    "RowDeleted",
    "SnapshotExpired",
    "SourceChanged",
    "SourceError",
    "StateMismatch",
    "StorageError",
    "concat",
    "mix",
    "open",
    "rebuild",
    "then",
]
