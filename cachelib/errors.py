"""What can go wrong, by kind: callers catch kinds, people read messages."""

from __future__ import annotations


class ForebayError(Exception):
    """Base of every error that Forebay raises on purpose."""


class CacheNotFound(ForebayError):
    """There is no cache at the given place."""


class CorruptData(ForebayError):
    """Stored bytes are missing or are not what was written."""


class SnapshotExpired(ForebayError):
    """A version of a cache of which rows are gone: garbage was collected since."""


class RowDeleted(ForebayError, IndexError):
    """A row was deleted: its index leads to nothing, and will not lead to another row."""


class StorageError(ForebayError):
    """The store did not do what it was asked for; trying again may help."""


class StoreSlow(UserWarning):
    """A store has not answered for some seconds and is being tried again: a warning, no error."""


class LedgerConflict(ForebayError):
    """Another writer committed something that this one cannot go along with."""


class AttemptRetired(LedgerConflict):
    """A shard to be committed was given up meanwhile, and its arrays are deleted."""


class IncompatibleCache(ForebayError):
    """The cache was made in another way than the one asked for."""


class SourceError(ForebayError):
    """A source file as a whole cannot be used.

    Attributes:
        source: its name in the cache, where that is known.
    """

    source: str | None = None


class SourceChanged(SourceError):
    """A source file is no longer what it was when it was cached or planned."""


class BuildFailed(ForebayError):
    """A build stopped on purpose: too many rejects, or nothing to write."""


class StateMismatch(ForebayError):
    """What was saved of an order, a loader's state or a plan, belongs to another one."""


class UnfinishedCache(ForebayError):
    """A build of the cache has not committed all that it set out to."""


class NotYetBuilt(ForebayError):
    """What was waited for in a followed cache did not come in time."""


class BuilderGone(NotYetBuilt):
    """What was waited for in a followed cache does not come: nobody builds it any more."""


class EngineError(ForebayError):
    """The engine of a pipeline cannot be reached, is lost or lacks something; try again then."""
