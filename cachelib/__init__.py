"""Forebay's reader: training data from immutable shards, in any order, from any position."""

from cachelib.cache import Cache, open
from cachelib.errors import (
    BuildFailed,
    CacheNotFound,
    CorruptData,
    ForebayError,
    IncompatibleCache,
    LedgerConflict,
    RowDeleted,
    SourceChanged,
    SourceError,
    StateMismatch,
    StorageError,
)
from cachelib.mixtures import concat, mix, then
from cachelib.ragged import Ragged
from cachelib.rebuild import rebuild

__all__ = [
    "BuildFailed",
    "Cache",
    "CacheNotFound",
    "CorruptData",
    "ForebayError",
    "IncompatibleCache",
    "LedgerConflict",
    "Ragged",
    "RowDeleted",
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
