"""Forebay's reader: training data from immutable shards, in any order, from any position."""

from cachelib.cache import Cache
from cachelib.errors import (
    AttemptRetired,
    BuilderGone,
    BuildFailed,
    CacheNotFound,
    CorruptData,
    ForebayError,
    IncompatibleCache,
    LedgerConflict,
    NotYetBuilt,
    RowDeleted,
    SnapshotExpired,
    SourceChanged,
    SourceError,
    StateMismatch,
    StorageError,
    StoreSlow,
    UnfinishedCache,
)
from cachelib.following import Followed
from cachelib.mixtures import concat, mix, then
from cachelib.opening import open
from cachelib.ragged import Ragged
from cachelib.rebuild import rebuild

__all__ = [
    "AttemptRetired",
    "BuildFailed",
    "BuilderGone",
    "Cache",
    "CacheNotFound",
    "CorruptData",
    "Followed",
    "ForebayError",
    "IncompatibleCache",
    "LedgerConflict",
    "NotYetBuilt",
    "Ragged",
    "RowDeleted",
    "SnapshotExpired",
    "SourceChanged",
    "SourceError",
    "StateMismatch",
    "StorageError",
    "StoreSlow",
    "UnfinishedCache",
    "concat",
    "mix",
    "open",
    "rebuild",
    "then",
]
