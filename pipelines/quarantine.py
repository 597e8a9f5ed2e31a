"""Quarantine: damaged files that a growing cache has set aside, so that none is tried for ever.

A file is tried again when its stamp has changed: what its store says of its content.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachelib.format.canonical import digest, seal
from cachelib.format.storage import Storage

PREFIX = "_quarantine/"


@dataclass(frozen=True)
class SetAside:
    """One file that cannot be used.

    Attributes:
        source: its name.
        stamp: what told its content when it was tried.
        fault: kind of the error.
        message: the error in words.
    """

    source: str
    stamp: str
    fault: str
    message: str


def key_of(source: str) -> str:
    return f"{PREFIX}{digest(source.encode('utf-8'))}.json"


def set_aside(storage: Storage, file: SetAside) -> None:
    """Remember a file, in place of what was remembered of it."""
    storage.write(key_of(file.source), seal(vars(file)))


def release(storage: Storage, source: str) -> None:
    """Forget a file: it has been taken in."""
    storage.delete_prefix(key_of(source))


def read_quarantine(storage: Storage) -> dict[str, SetAside]:
    """The files that were set aside, by name of source."""
    found = (storage.read_json(key) for key in storage.list(PREFIX))
    files = (SetAside(**value) for value in found if value is not None)
    return {file.source: file for file in files}
