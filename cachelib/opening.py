"""Opening caches: at one version, or to follow one that grows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, overload

from cachelib.cache import Cache
from cachelib.errors import ForebayError, UnfinishedCache
from cachelib.following import Followed, Patience, Waiting
from cachelib.format.pins import pinned
from cachelib.format.storage import Storage
from cachelib.local.entry import Form
from cachelib.local.tier import Tier
from cachelib.order.indices import as_integer
from cachelib.reading import chunks

Path = str | os.PathLike[str]


@overload
def open(
    path: Path,
    version: int | None = None,
    *,
    pin: str | None = None,
    partial: bool = False,
    follow: Literal[False] = False,
    local: Path | None = None,
    local_format: Form = "encoded",
    local_bytes: int | None = None,
) -> Cache: ...


@overload
def open(
    path: Path,
    version: None = None,
    *,
    follow: Literal[True],
    timeout: float = Patience.timeout,
    stale: float = Patience.stale,
    waiting: Callable[[Waiting], object] | None = None,
    local: Path | None = None,
    local_format: Form = "encoded",
    local_bytes: int | None = None,
) -> Followed: ...


def open(
    path: Path,
    version: int | None = None,
    *,
    pin: str | None = None,
    partial: bool = False,
    follow: bool = False,
    timeout: float = Patience.timeout,
    stale: float = Patience.stale,
    waiting: Callable[[Waiting], object] | None = None,
    local: Path | None = None,
    local_format: Form = "encoded",
    local_bytes: int | None = None,
) -> Cache | Followed:
    """Open a cache, pinned to one version of its ledger, or to follow it while it grows.

    Args:
        path: a local path, or a file://, gs:// or s3:// URL.
        version: the version to read; None for the newest, or the one that the pin stands for.
        pin: a name; the version that it stands for is opened, and kept by `gc` until the pin is
            removed (``forebay unpin``). Where there is no pin of that name, one is stored, for the
            version given or the newest.
        partial: read the newest version also where it is the middle of a build.
        follow: read eras as they are sealed: see `cachelib.following.Followed`. Also waits for a
            cache that is not there yet.
        timeout: seconds that one read of a followed cache waits for more of it, at most.
        stale: seconds after which a builder that gives no sign of life is taken for dead.
        waiting: is called with a `Waiting`, about once a second, while a read waits; ``print``
            shows it as a line.
        local: a folder on this machine in which objects of the cache are kept for reads to come:
            see `cachelib.local.tier.Tier`. Made if it is missing; any number of jobs, caches and
            users may share it.
        local_format: "encoded" keeps objects as they are stored, "raw" the values that they decode
            to, mapped into memory.
        local_bytes: limit of all that is kept in that folder; None leaves a tenth of the disk free.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        SnapshotExpired: the rows of that version are gone; names the commit that gave them up.
        UnfinishedCache: the newest version is the middle of a build, and neither ``version``,
            ``pin``, ``partial`` nor ``follow`` says that this is meant.
        StateMismatch: the pin stands for another version than the one given.
        StorageError: the pin cannot be stored, as where the store can only be read.
        NotYetBuilt, BuilderGone: a cache to be followed does not appear.
        TypeError, ValueError: path, version or pin are of another type, or no name; options that
            do not go together; or path is no place that a cache could be at, such as a file of
            another host.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be the path or URL of a cache, got {path!r}")
    storage = Storage.at(path)
    tier = _tier(local, local_format, local_bytes)
    if follow:
        if version is not None or pin is not None or partial:
            raise ValueError(
                "a followed cache is not pinned to a version: leave version, pin and partial out"
            )
        return Followed(storage, Patience(timeout, stale, waiting), local=tier)
    version = None if version is None else as_integer("version", version)
    if pin is not None:
        version = pinned(storage, pin, version).version
    cache = Cache(storage, version, local=tier)
    task = cache.snapshot.commit.task
    if version is None and not partial and task.get("wave", 0) < task.get("waves", 0) - 1:
        raise UnfinishedCache(
            f"{cache.url} holds {task['wave'] + 1} of {task['waves']} waves of a build (plan "
            f"{task.get('plan')}), {len(cache):,} rows so far. If it is running, open(path, "
            "follow=True) reads the rest as it comes; if it was stopped, the same command goes on "
            f"with it. open(path, partial=True), or version={cache.version}, reads what there is"
        )
    return cache


def _tier(local: Path | None, form: Form, limit: int | None) -> Tier | None:
    """Where a cache is to be kept on this machine, if anywhere."""
    if local is not None:
        if not chunks.AVAILABLE:
            raise ForebayError("local needs a little-endian machine and google-crc32c built in C")
        return Tier(local, form, limit)
    if form != "encoded" or limit is not None:
        raise ValueError("local_format and local_bytes need local: name a folder on this machine")
    return None
