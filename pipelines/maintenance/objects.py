"""Objects: what lies in a cache, with sizes and ages, which the ledger does not tell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cachelib.errors import ForebayError, StorageError
from cachelib.format.storage import Storage
from pipelines.sources.files import filesystem


@dataclass(frozen=True)
class Stored:
    """An object of a cache.

    Attributes:
        key: relative to the cache.
        size: in bytes.
        modified: when it was written, in seconds since the epoch by the clock of the store; None
            where the store does not tell.
    """

    key: str
    size: int
    modified: float | None


def listed(storage: Storage, folder: str) -> Iterator[Stored]:
    """All objects in a folder of a cache, such as "shards", unfinished writes of files included."""
    if storage.local_path is not None:
        yield from _local(str(storage.local_path), folder)
    elif storage.url.startswith("memory://"):  # TensorStore's, which tells no ages
        yield from (Stored(key, 0, None) for key in storage.list(folder + "/"))
    else:
        yield from _remote(storage, folder)


def _local(root: str, folder: str) -> Iterator[Stored]:
    try:
        entries = list(os.scandir(os.path.join(root, folder)))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        key = f"{folder}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _local(root, key)
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield Stored(key, found.st_size, found.st_mtime)


def _remote(storage: Storage, folder: str) -> Iterator[Stored]:
    try:
        system, path = filesystem(storage.url)
        root = path.rstrip("/")
        found = system.find(f"{root}/{folder}", detail=True)
    except FileNotFoundError:
        return
    except ImportError as error:
        scheme = {"gs": "gcs"}.get(storage.url[:2], "s3")
        raise ForebayError(
            f"{storage.url}: ages of objects cannot be told: {error}; "
            f"pip install 'forebay[{scheme}]'"
        ) from error
    except Exception as error:  # each remote file system has exceptions of its own
        raise StorageError(f"{storage.where(folder)}: cannot be listed: {error}") from error
    for name, details in found.items():
        key = name.removeprefix(root + "/")
        yield Stored(key, int(details.get("size") or 0), _seconds(details))


def _seconds(details: dict[str, Any]) -> float | None:
    """When an object was written, by any of the names that stores have for it."""
    for name in ("LastModified", "mtime", "updated", "timeCreated", "created"):
        value = details.get(name)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None
