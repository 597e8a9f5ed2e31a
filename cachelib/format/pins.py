"""Pins: names of versions whose rows are kept, whatever is collected as garbage.

A pin is stored first, and then it is looked whether its version has expired. A gc commits first
what expires, and then looks for pins before it deletes. So one of them sees the other, always.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cachelib.errors import CorruptData, SnapshotExpired, StateMismatch, StorageError
from cachelib.format.ledger import Ledger, no_cache
from cachelib.format.storage import Storage

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Pin:
    """A name that a version of a cache has.

    Attributes:
        name: letters, digits, ".", "_" and "-".
        version: the version that is kept.
        digest: of its commit.
    """

    name: str
    version: int
    digest: str


def pin_key(name: str) -> str:
    """The key of a pin.

    Raises:
        ValueError: the name cannot be one.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a pin: up to 100 letters, digits, '.', '_' and '-', the first "
            "a letter or digit"
        )
    return f"_refs/{name}.json"


def read_pin(storage: Storage, name: str) -> Pin | None:
    """The pin of a name, or None."""
    value = storage.read_json(pin_key(name))
    return None if value is None else Pin(name, value["version"], value["digest"])


def all_pins(storage: Storage) -> list[Pin]:
    """All pins of a cache, by name."""
    keys = storage.list("_refs/")
    names = [key.removeprefix("_refs/").removesuffix(".json") for key in keys]
    found = [read_pin(storage, name) for name in names if _NAME.fullmatch(name)]
    return [pin for pin in found if pin is not None]


def pinned(storage: Storage, name: str, version: int | None = None) -> Pin:
    """The pin of a name; it is stored if there is none.

    Args:
        version: what it is to stand for; None for what it does, or for the newest version.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        SnapshotExpired: the version has expired.
        StateMismatch: the pin stands for another version.
        CorruptData: the commit that it stands for is another one now.
        StorageError: it cannot be stored.
    """
    pin = read_pin(storage, name)
    if pin is None:
        pin = _store(storage, name, version)
    if version not in (None, pin.version):
        raise StateMismatch(
            f"{storage.where(pin_key(name))}: pin {name!r} stands for version {pin.version}, not "
            f"{version}; take another name, or remove it first: forebay unpin"
        )
    found = Ledger(storage).commit(pin.version).digest
    if found != pin.digest:
        raise CorruptData(
            f"{storage.where(pin_key(name))}: pin {name!r} stands for version {pin.version} with "
            f"digest {pin.digest}, but that commit has digest {found}: commits were lost and made "
            "anew"
        )
    return pin


def _store(storage: Storage, name: str, version: int | None) -> Pin:
    ledger = Ledger(storage)
    commit = ledger.commit(ledger.resolve(version))
    ledger.check_kept(commit.version)
    value = {"version": commit.version, "digest": commit.digest}
    try:
        there = storage.put_json(pin_key(name), value)
    except StorageError as error:
        raise StorageError(
            f"pin {name!r} of {storage.url} cannot be stored: {error}. Where the store can only "
            f"be read, open version={commit.version} instead, or have someone who may write run: "
            f"forebay pin {storage.url} {name} --version {commit.version}"
        ) from error
    newest = ledger.head()
    if newest is None:
        raise no_cache(storage)
    by = ledger.commit(newest).expired_by(there["version"])
    if by is not None:
        unpin(storage, name)
        raise SnapshotExpired(
            f"{storage.url}: version {there['version']} expired while it was being pinned: commit "
            f"{by} (retire) gave up arrays that it needs. The newest version is {newest}"
        )
    return Pin(name, there["version"], there["digest"])


def unpin(storage: Storage, name: str) -> Pin | None:
    """Remove a pin; returns what it was, or None if there was none."""
    pin = read_pin(storage, name)
    if pin is not None:
        storage.delete_prefix(pin_key(name))
    return pin
