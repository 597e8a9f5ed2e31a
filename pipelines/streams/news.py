"""News: what the workers of a stream find out about files, told to who began it through the store.

That is how it comes from any engine and any machine. It is advisory: nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from cachelib.errors import StorageError
from cachelib.format.canonical import digest_of, seal
from cachelib.format.storage import Storage
from cachelib.words import legible

PREFIX = "_status/"


@dataclass(frozen=True)
class News:
    """What became of files.

    Attributes:
        became: "found" (to be read), "vanished", "changed" (after it was taken in), "rewritten"
            (while it was read), "unreached" (its store), "unusable" (set aside), "known" (set
            aside before); "failed" (a look), "nothing" (an input matches none) and "stopped" (the
            stream, by an error) have no names.
        names: of the files.
        message: the fault, where there is one.
    """

    became: str
    names: tuple[str, ...]
    message: str = ""


def announce(
    storage: Storage, run: str, became: str, names: Iterable[str], message: str = ""
) -> None:
    """Tell who began a run of a stream; "" is a run that nobody wants to be told of."""
    told = {"became": became, "names": sorted(names), "message": legible(message)}
    if run and (told["names"] or message):
        with suppress(StorageError):
            storage.write(f"{PREFIX}{run}/{digest_of(told)}.json", seal(told))


def collect(storage: Storage, run: str) -> list[News]:
    """What was told since the last time."""
    found = []
    with suppress(StorageError):
        for key in storage.list(f"{PREFIX}{run}/"):
            told = storage.read_json(key) if key.endswith(".json") else None
            if told is not None:
                found.append(News(told["became"], tuple(told["names"]), told["message"]))
                storage.delete(key)
    return found


def forget(storage: Storage, run: str) -> None:
    """Remove what was told and not collected."""
    with suppress(StorageError):
        storage.delete_folder(f"{PREFIX}{run}/", "last.json")
