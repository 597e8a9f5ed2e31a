"""Kept: the objects of an array that lie in a local tier, and what is read from there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

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
from cachelib.ragged import ranges
from cachelib.reading import chunks

OPEN_ARRAYS = 1024
"""Arrays of which one `Kept` holds the layout."""

LATELY_SECONDS = 1.0
"""For how long an entry is taken to be there without looking."""


class Kept:
    """One array of all shards of a snapshot, as far as its objects are kept. Thread-safe.

    What an object is called in the tier depends on its key below the cache and on how it is
    decoded. An attempt has a random name and is written once: so caches that were copied share
    entries, wherever they lie, and one that was made anew in the place of another never does.

    Args:
        storage: of the cache.
        tier: where objects are kept.
        place: key and metadata of the array of a shard.
        bases: where the array of each shard begins among all, and the end: int64 (shards + 1,).
        value_bytes: of a value of the array.
        chunk: values in an inner chunk.

    Attributes:
        bounds: where each object begins among all, and the end: int64 of shape (objects + 1,).
    """

    def __init__(
        self,
        storage: Storage,
        tier: Tier,
        place: Callable[[int], tuple[str, dict[str, Any]]],
        bases: np.ndarray,
        value_bytes: int,
        chunk: int,
    ) -> None:
        self._storage = storage
        self._tier = tier
        self._place = place
        self._value_bytes = value_bytes
        self._block = chunk * value_bytes
        self._object_values = chunk * CHUNKS_PER_OBJECT
        counts = -(-np.diff(bases) // self._object_values)
        self._shards = np.repeat(np.arange(len(counts)), counts)
        self._numbers = ranges(np.zeros_like(counts), counts)
        begins = bases[self._shards] + self._numbers * self._object_values
        self.bounds = np.append(begins, bases[-1])
        self._paths: dict[int, str] = {}
        self._lately: dict[int, Entry] = {}  # what was found a moment ago
        self._until = 0.0
        self._arrays: Latest[int, chunks.LocalArray] = Latest(OPEN_ARRAYS)

    @property
    def mapped(self) -> bool:
        """Whether values are copied from maps, and nothing is decoded."""
        return self._tier.form == "raw"

    def by_shard(self, pieces: Cuts) -> Cuts:
        """Pieces of objects as pieces of the arrays of shards."""
        before = self._numbers[pieces.shards] * self._object_values
        return Cuts(self._shards[pieces.shards], pieces.starts + before, pieces.stops + before)

    def read(self, pieces: Cuts, *, keep: bool) -> tuple[np.ndarray | None, bytearray]:
        """What is kept of pieces of objects; the rest is asked for.

        Args:
            pieces: cut at `bounds`, so that objects take the place of shards.
            keep: as of `chunks.read`.

        Returns:
            Which pieces are here, bool of shape (pieces,), None for all, and the bytes of their
            values, back to back.
        """
        entries = self._entries(pieces.shards.tolist())
        read = self._copied if self.mapped else self._decoded
        here, data = read(entries, pieces, keep)
        misses = 0 if here is None else int(np.count_nonzero(~here))
        self._tier.count(len(entries) - misses, misses)
        if here is not None:
            self._tier.read_elsewhere(int(pieces.sizes[~here].sum()) * self._value_bytes)
        return here, data

    def _entries(self, objects: list[int]) -> list[Entry | None]:
        """The entries of objects; those that are not there are asked for."""
        now = time.monotonic()
        if now > self._until:
            self._lately, self._until = {}, now + LATELY_SECONDS
        lately = self._lately
        try:
            return [lately[each] for each in objects]
        except KeyError:
            pass  # some are to be looked for
        fresh = [each for each in dict.fromkeys(objects) if each not in lately]
        found = self._tier.find([self._path(each) for each in fresh])
        for each, entry in zip(fresh, found, strict=True):
            there = entry or self._tier.obtain(self._wanted(each))
            if there is not None:
                lately[each] = there
        return [lately.get(each) for each in objects]

    def _copied(
        self, entries: list[Entry | None], pieces: Cuts, keep: bool
    ) -> tuple[np.ndarray | None, bytearray]:
        """Values of mapped entries."""
        lows = (pieces.starts * self._value_bytes).tolist()
        highs = (pieces.stops * self._value_bytes).tolist()
        if None not in entries:
            there = cast("list[Entry]", entries)
            try:
                views = [
                    (entry.view if entry.unseen is None else self._proven(entry, low, high))[
                        low:high
                    ]
                    for entry, low, high in zip(there, lows, highs)  # noqa: B905, for speed
                ]
                return None, bytearray().join(views)
            except CorruptData:
                pass  # which one is found below
        here, views = np.zeros(len(entries), bool), []
        for i, (entry, low, high) in enumerate(zip(entries, lows, highs, strict=True)):
            if entry is not None:
                with suppress(CorruptData):
                    views.append(self._proven(entry, low, high)[low:high])
                    here[i] = True
        return here, bytearray().join(views)

    def _proven(self, entry: Entry, low: int, high: int) -> memoryview:
        """The body of a mapped entry, of which some bytes are as they were put there.

        Each block is checked once, when something of it is read first.

        Raises:
            CorruptData: they are not.
        """
        unseen = entry.unseen
        if unseen is None:
            return entry.view
        first, end = low // self._block, (high - 1) // self._block + 1
        fresh = False
        while (block := unseen.find(1, first, end)) >= 0:
            data = entry.view[block * self._block : (block + 1) * self._block]
            if google_crc32c.value(bytes(data)) != entry.checks[block]:
                self._give_up(entry)
                raise CorruptData(f"block {block} of {entry.path} does not fit its crc32c")
            unseen[block] = 0
            fresh = True
        if fresh and unseen.find(1) < 0:
            entry.unseen = None
        return entry.view

    def _give_up(self, entry: Entry, damaged: bool = True) -> None:
        """Look for an entry anew, and if it is damaged, fetch it again."""
        self._lately = {}
        self._tier.give_up(entry.path, damaged)

    def _decoded(
        self, entries: list[Entry | None], pieces: Cuts, keep: bool
    ) -> tuple[np.ndarray | None, bytearray]:
        """Values of entries that are as they are stored; these carry a check for each chunk."""
        here = np.array([entry is not None for entry in entries], bool)
        parts = [
            chunks.Part(self._array(shard), low, high)
            for shard, low, high in self.by_shard(pieces.where(here)).bounds()
        ]
        if not parts:
            return here, bytearray()
        try:
            return None if here.all() else here, chunks.read(parts, str, keep=keep)
        except (CorruptData, StorageError):
            pass
        data = bytearray()
        for i, part in zip(np.flatnonzero(here).tolist(), parts, strict=True):
            try:
                data += chunks.read([part], str, keep=keep)
            except (CorruptData, StorageError) as error:
                here[i] = False
                entry = entries[i]
                assert entry is not None
                # A file that is not there was evicted, and may be there again.
                self._give_up(entry, damaged=not isinstance(error.__cause__, OSError))
        return here, data

    def _array(self, shard: int) -> chunks.LocalArray:
        """The array of a shard, in entries."""

        def made() -> chunks.LocalArray:
            key, metadata = self._place(shard)
            array = chunks.local_array(key, metadata)
            first = int(np.searchsorted(self._shards, shard))
            return replace(array, paths=lambda n: self._path(first + n), tail=END_BYTES)

        return self._arrays.get(shard, made)

    def _path(self, each: int) -> str:
        """The file of an object."""
        path = self._paths.get(each)
        if path is None:
            place, metadata = self._place(int(self._shards[each]))
            what = f"{place}/{self._numbers[each]} {json.dumps(metadata, sort_keys=True)}"
            path = self._paths[each] = self._tier.path(what)
        return path

    def _wanted(self, each: int) -> Wanted:
        shard, number = int(self._shards[each]), int(self._numbers[each])
        array = self._array(shard)
        size = array.object_bytes(number)
        place = f"{self._place(shard)[0]}/{array.object_key(number)}"

        def made() -> tuple[bytes, np.ndarray]:
            data = self._storage.read(place)
            where = self._storage.where(place)
            if data is None:
                raise CorruptData(f"{where} is missing")
            if self.mapped:
                values = chunks.decode_object(data, array, number, where)
                return values, checks_of(values, self._block)
            chunks.check_object(data, array, number, where)
            return data, np.empty(0, np.uint32)

        checks = -(-size // self._block) if self.mapped else None
        return Wanted(self._path(each), size, checks, made)
