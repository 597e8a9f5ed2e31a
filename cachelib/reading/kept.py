"""Kept: the objects of an array that lie in a local tier, and what is read from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np

from cachelib.errors import CorruptData, StorageError
from cachelib.format.schema import CHUNKS_PER_OBJECT
from cachelib.format.storage import Storage
from cachelib.latest import Latest
from cachelib.local.entry import END_BYTES, checks_of
from cachelib.local.folder import Entry
from cachelib.local.tier import Tier, Wanted
from cachelib.order.cuts import Cuts
from cachelib.reading import chunks

OPEN_ARRAYS = 1024
"""Arrays of which one `Kept` holds the layout."""


class Kept:
    """One array of all shards of a snapshot, as far as its objects are kept. Thread-safe.

    What an object is called in the tier depends on its key below the cache and on how it is
    decoded. An attempt has a random name and is written once: so caches that were copied share
    entries, wherever they lie, and one that was made anew in the place of another never does.

    Args:
        storage: of the cache.
        tier: where objects are kept.
        place: key and metadata of the array of a shard.
        value_bytes: of a value of the array.
        chunk: values in an inner chunk.
    """

    def __init__(
        self,
        storage: Storage,
        tier: Tier,
        place: Callable[[int], tuple[str, dict[str, Any]]],
        value_bytes: int,
        chunk: int,
    ) -> None:
        self._storage = storage
        self._tier = tier
        self._place = place
        self._value_bytes = value_bytes
        self._block = chunk * value_bytes
        self.object_values = chunk * CHUNKS_PER_OBJECT
        self._paths: dict[tuple[int, int], str] = {}
        self._arrays: Latest[int, chunks.LocalArray] = Latest(OPEN_ARRAYS)

    def read(self, pieces: Cuts, *, keep: bool) -> tuple[np.ndarray, bytearray]:
        """What is kept of pieces that lie in one object each; the rest is asked for.

        Args:
            keep: as of `chunks.read`.

        Returns:
            Which pieces are here, bool of shape (pieces,), and the bytes of their values, back to
            back.
        """
        numbers = pieces.starts // self.object_values
        keys = list(zip(pieces.shards.tolist(), numbers.tolist(), strict=True))
        entries = self._tier.find([self._paths.get(key) or self._path(key) for key in keys])
        if None in entries:
            lacking = {key for key, entry in zip(keys, entries, strict=True) if entry is None}
            found = {key: self._tier.obtain(self._wanted(*key)) for key in lacking}
            entries = [entry or found.get(key) for key, entry in zip(keys, entries, strict=True)]
        if self._tier.form == "raw":
            here, data = self._copied(entries, pieces, numbers)
        else:
            here, data = self._decoded(entries, pieces, keep)
        hits = int(here.sum())
        self._tier.count(hits=hits, misses=len(here) - hits)
        self._tier.read_elsewhere(int(pieces.sizes[~here].sum()) * self._value_bytes)
        return here, data

    def _copied(
        self, entries: list[Entry | None], pieces: Cuts, numbers: np.ndarray
    ) -> tuple[np.ndarray, bytearray]:
        """Values of mapped entries."""
        here = [True] * len(entries)
        bases = numbers * self.object_values
        lows = ((pieces.starts - bases) * self._value_bytes).tolist()
        highs = ((pieces.stops - bases) * self._value_bytes).tolist()
        views = []
        for i, (entry, low, high) in enumerate(zip(entries, lows, highs, strict=True)):
            if entry is not None and (entry.unseen is None or self._proves(entry, low, high)):
                views.append(entry.view[low:high])
            else:
                here[i] = False
        return np.array(here, bool), bytearray().join(views)

    def _proves(self, entry: Entry, low: int, high: int) -> bool:
        """Whether bytes of a mapped entry are as they were put there; each block is asked once."""
        unseen = entry.unseen
        if unseen is None:
            return True
        first, end = low // self._block, (high - 1) // self._block + 1
        fresh = False
        while (block := unseen.find(1, first, end)) >= 0:
            data = entry.view[block * self._block : (block + 1) * self._block]
            if google_crc32c.value(bytes(data)) != entry.checks[block]:
                self._tier.damaged(entry.path)
                return False
            unseen[block] = 0
            fresh = True
        if fresh and unseen.find(1) < 0:
            entry.unseen = None
        return True

    def _decoded(
        self, entries: list[Entry | None], pieces: Cuts, keep: bool
    ) -> tuple[np.ndarray, bytearray]:
        """Values of entries that are as they are stored; these carry a check for each chunk."""
        here = np.array([entry is not None for entry in entries], bool)
        parts = [
            chunks.Part(self._array(shard), low, high)
            for shard, low, high in pieces.where(here).bounds()
        ]
        if not parts:
            return here, bytearray()
        try:
            return here, chunks.read(parts, str, keep=keep)
        except (CorruptData, StorageError):
            pass
        data = bytearray()
        for i, part in zip(np.flatnonzero(here).tolist(), parts, strict=True):
            try:
                data += chunks.read([part], str, keep=keep)
            except (CorruptData, StorageError):
                here[i] = False
                entry = entries[i]
                assert entry is not None
                self._tier.damaged(entry.path)
        return here, data

    def _array(self, shard: int) -> chunks.LocalArray:
        """The array of a shard, in entries."""

        def made() -> chunks.LocalArray:
            key, metadata = self._place(shard)
            array = chunks.local_array(key, metadata)
            return replace(array, paths=lambda n: self._path((shard, n)), tail=END_BYTES)

        return self._arrays.get(shard, made)

    def _path(self, key: tuple[int, int]) -> str:
        """The file of an object of the array of a shard."""
        path = self._paths.get(key)
        if path is None:
            shard, number = key
            place, metadata = self._place(shard)
            what = f"{place}/{number} {json.dumps(metadata, sort_keys=True)}"
            path = self._paths[key] = self._tier.path(what)
        return path

    def _wanted(self, shard: int, number: int) -> Wanted:
        array, raw = self._array(shard), self._tier.form == "raw"
        size = array.object_bytes(number)
        key = f"{self._place(shard)[0]}/{array.object_key(number)}"

        def made() -> tuple[bytes, np.ndarray]:
            data = self._storage.read(key)
            where = self._storage.where(key)
            if data is None:
                raise CorruptData(f"{where} is missing")
            if raw:
                values = chunks.decode_object(data, array, number, where)
                return values, checks_of(values, self._block)
            chunks.check_object(data, array, number, where)
            return data, np.empty(0, np.uint32)

        checks = -(-size // self._block) if raw else None
        return Wanted(self._path((shard, number)), size, checks, made)
