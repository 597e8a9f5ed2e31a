"""Arrays: those of all shards of a snapshot, put back to back and read by position."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import numpy as np

from cachelib.errors import CorruptData
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Field
from cachelib.format.shard import (
    OFFSETS_CHUNK,
    attempt_prefix,
    data_key,
    data_metadata,
    offsets_key,
    offsets_metadata,
)
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage, check_fork, values_of
from cachelib.latest import Latest
from cachelib.local.tier import Tier
from cachelib.order.cuts import Cuts, coalesce, cut, join
from cachelib.ragged import LONG, gather, offsets_of
from cachelib.reading import chunks
from cachelib.reading.kept import Kept

OPEN_ARRAYS = 1024
"""Array handles that one cache keeps open."""

Kind = Literal["data", "offsets"]


class Arrays:
    """The arrays of the shards of a snapshot. Thread-safe.

    Those on this machine are read by `chunks`, others by TensorStore. With a tier, what is kept
    there is read from there, and only the rest from where the cache lies.

    Args:
        storage: of the cache.
        snapshot: whose shards.
        tier: where objects are kept on this machine, if anywhere.
    """

    def __init__(self, storage: Storage, snapshot: Snapshot, tier: Tier | None = None) -> None:
        self._storage = storage
        self._snapshot = snapshot
        self._tier = tier
        self._kept: dict[tuple[str, Kind], Kept] = {}
        self._folder = storage.local_path if chunks.AVAILABLE else None
        self._arrays: Latest[tuple[int, str], Any] = Latest(OPEN_ARRAYS)

    def __len__(self) -> int:
        """Number of arrays held open."""
        return len(self._arrays)

    def bases(self, field: Field, kind: Kind) -> np.ndarray:
        """Where each shard's part begins, and the end of all: int64 of shape (shards + 1,)."""
        snapshot = self._snapshot
        if kind == "offsets":
            # A shard has one more offset than it has rows.
            return snapshot.stored_bases + np.arange(len(snapshot.stored_bases))
        if field.ragged:
            return snapshot.element_bases[field.like or field.name]
        return snapshot.stored_bases

    def read(self, field: Field, kind: Kind, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Ranges of one array over all shards, back to back in the order asked.

        Args:
            starts: int64 of shape (n,).
            lengths: int64 of shape (n,); each start..start+length lies inside the array.

        Returns:
            Shape (sum of lengths, *shape of a value).

        Raises:
            CorruptData: stored bytes are missing or damaged; names shard, field and rows.
            SnapshotExpired: they are gone, since the snapshot has expired.
        """
        try:
            return self._read(field, kind, starts, lengths)
        except CorruptData as error:
            raise Ledger(self._storage).explained(self._snapshot.version, error) from error

    def spans(self, field: Field, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of stored rows begin over all shards, and how many there are.

        Args:
            field: a ragged field that has lengths of its own.
            rows: int64 of shape (n,), places among the stored rows.

        Raises:
            CorruptData: as of `read`; or offsets do not run from 0 to the values of their shard.
        """
        snapshot = self._snapshot
        bases, values = snapshot.stored_bases, snapshot.element_bases[field.name]
        shards = np.searchsorted(bases, rows, side="right") - 1
        # A shard has one more offset than it has rows, so shard s begins s places later.
        pairs = self.read(field, "offsets", rows + shards, np.full(len(rows), 2, np.int64))
        first, last = pairs[0::2], pairs[1::2]
        begins, after = values[shards], shards + 1
        elements = values[after] - begins
        wrong = (first < 0) | (last < first) | (last > elements)
        wrong |= (first != 0) & (rows == bases[shards])
        wrong |= (last != elements) & (rows + 1 == bases[after])
        if wrong.any():
            at = int(np.argmax(wrong))
            shard = int(shards[at])
            raise self._misplaced(field, shard, int(rows[at] - bases[shard]), pairs[2 * at :])
        return begins + first, last - first

    def rows_at(self, field: Field, values: np.ndarray) -> np.ndarray:
        """The stored rows that own values.

        Args:
            field: a ragged field that has lengths of its own.
            values: int64 of shape (n,), places among the stored values.

        Raises:
            CorruptData: as of `spans`.
        """
        bases, firsts = self.bases(field, "data"), self._snapshot.stored_bases
        shards = np.searchsorted(bases, values, side="right") - 1
        found = np.empty(len(values), np.int64)
        for shard in np.unique(shards).tolist():
            chosen = shards == shard
            count = int(firsts[shard + 1] - firsts[shard]) + 1
            begin = np.array([firsts[shard] + shard])  # as in `spans`
            offsets = self.read(field, "offsets", begin, np.array([count]))
            wrong = offsets[1:] < offsets[:-1]
            wrong[0] |= offsets[0] != 0
            wrong[-1] |= offsets[-1] != bases[shard + 1] - bases[shard]
            if wrong.any():
                row = int(np.argmax(wrong))
                raise self._misplaced(field, shard, row, offsets[row:])
            rows = np.searchsorted(offsets, values[chosen] - bases[shard], side="right") - 1
            found[chosen] = firsts[shard] + rows
        return found

    def _read(
        self, field: Field, kind: Kind, starts: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        check_fork()  # arrays may be open already
        bases = self.bases(field, kind)
        total = int(lengths.sum())
        if total == 0:
            dtype, shape = _stored_as(field, kind)
            return np.empty((0, *shape), dtype)
        kept = self._kept_of(field, kind)
        if kept is not None and kept.mapped and total >= LONG * len(lengths):
            return self._values(field, kind, starts, starts + lengths)
        spans = join(starts, lengths, _chunk(field, kind))
        if self._folder is not None or kept is not None:
            runs = coalesce(starts, lengths)
            long = total >= LONG * len(runs[0])
            # What is asked for several times is cheaper read once.
            if long and total <= 2 * (spans[1] - spans[0]).sum():
                return self._values(field, kind, *runs)
        cuts = cut(*spans, bases)
        # What stores nothing was joined over: nothing of it was asked for.
        cuts = cuts.where(self._snapshot.entries.rows[cuts.shards] > 0)
        begins = bases[cuts.shards] + cuts.starts
        buffer = self._values(field, kind, begins, begins + cuts.sizes)
        which = np.searchsorted(begins, starts, side="right") - 1
        wanted = offsets_of(cuts.sizes)[which] + starts - begins[which]
        if len(buffer) == total and np.array_equal(wanted, offsets_of(lengths)[:-1]):
            return buffer  # asked for in stored order, and nothing else was read
        return gather(buffer, wanted, lengths)

    def _values(
        self, field: Field, kind: Kind, starts: np.ndarray, stops: np.ndarray
    ) -> np.ndarray:
        """The values of ranges, back to back."""
        kept = self._kept_of(field, kind)
        if kept is None:
            return self._far(field, kind, cut(starts, stops, self.bases(field, kind)))
        pieces = cut(starts, stops, kept.bounds)
        here, data = kept.read(pieces, keep=kind == "offsets")
        dtype, shape = _stored_as(field, kind)
        near = np.frombuffer(data, dtype).reshape(-1, *shape)
        if here is None:
            return near
        far = self._far(field, kind, kept.by_shard(pieces.where(~here)))
        if not here.any():
            return far
        places = np.empty(len(here), np.int64)
        places[here] = offsets_of(pieces.sizes[here])[:-1]
        places[~here] = len(near) + offsets_of(pieces.sizes[~here])[:-1]
        return gather(np.concatenate([near, far]), places, pieces.sizes)

    def _far(self, field: Field, kind: Kind, cuts: Cuts) -> np.ndarray:
        """The values of cuts from where the cache lies."""
        return (self._remote if self._folder is None else self._local)(field, kind, cuts)

    def _kept_of(self, field: Field, kind: Kind) -> Kept | None:
        """An array's objects in the tier, if there is one; two threads may both make it."""
        if self._tier is None:
            return None
        kept = self._kept.get((field.name, kind))
        if kept is None:
            dtype, shape = _stored_as(field, kind)
            kept = self._kept[field.name, kind] = Kept(
                self._storage,
                self._tier,
                lambda shard: self._place(shard, field, kind),
                self.bases(field, kind),
                np.dtype(dtype).itemsize * math.prod(shape),
                _chunk(field, kind),
            )
        return kept

    def _local(self, field: Field, kind: Kind, cuts: Cuts) -> np.ndarray:
        dtype, shape = _stored_as(field, kind)
        data = chunks.read(
            [
                chunks.Part(self._array(shard, field, kind), low, high)
                for shard, low, high in cuts.bounds()
            ],
            lambda i: self._describe(field, kind, cuts, i),
            keep=kind == "offsets",
        )
        return np.frombuffer(data, dtype).reshape(-1, *shape)

    def _remote(self, field: Field, kind: Kind, cuts: Cuts) -> np.ndarray:
        import tensorstore as ts

        dtype, shape = _stored_as(field, kind)
        at = offsets_of(cuts.sizes)
        buffer = np.empty((int(at[-1]), *shape), dtype)
        with ts.Batch() as batch:
            parts = [
                self._array(shard, field, kind)[low:high] for shard, low, high in cuts.bounds()
            ]
            reads = [part.read(batch=batch) for part in parts]
        for i, (part, read) in enumerate(zip(parts, reads, strict=True)):
            what = partial(self._describe, field, kind, cuts, i)
            buffer[at[i] : at[i + 1]] = values_of(part, read, self._storage.url, what)
        return buffer

    def _array(self, shard: int, field: Field, kind: Kind) -> Any:
        """A `chunks.LocalArray` on this machine, else an array of TensorStore."""

        def opened() -> Any:
            key, metadata = self._place(shard, field, kind)
            if self._folder is None:
                return self._storage.open_array(key, metadata, write=False)
            return chunks.local_array(f"{self._folder}/{key}", metadata)

        return self._arrays.get((shard, f"{field.name}/{kind}"), opened)

    def _place(self, shard: int, field: Field, kind: Kind) -> tuple[str, dict[str, Any]]:
        """Key and metadata of an array of a shard."""
        entries = self._snapshot.entries
        if kind == "offsets":
            place, metadata = offsets_key(field), offsets_metadata(int(entries.rows[shard]))
        else:
            bases = self.bases(field, kind)
            length = int(bases[shard + 1] - bases[shard])
            place, metadata = data_key(field), data_metadata(field, length)
        return attempt_prefix(entries.shard[shard], entries.attempt[shard]) + place, metadata

    def _misplaced(self, field: Field, shard: int, row: int, offsets: np.ndarray) -> CorruptData:
        """That the offsets of a row of a shard, which come first, cannot be."""
        cuts = Cuts(np.array([shard]), np.array([row]), np.array([row + 2]))
        rows = int(self._snapshot.entries.rows[shard])
        total = int(np.diff(self.bases(field, "data")[shard : shard + 2])[0])
        return CorruptData(
            f"{self._describe(field, 'offsets', cuts, 0)}: row {row} of {rows} of the shard has "
            f"offsets {offsets[0]} and {offsets[1]}, expected them to go from 0 up to the {total} "
            "values of the shard; verify the cache, and restore the object or build it anew"
        )

    def _describe(self, field: Field, kind: Kind, cuts: Cuts, i: int) -> str:
        entries = self._snapshot.entries
        shard = int(cuts.shards[i])
        place = self._storage.where(attempt_prefix(entries.shard[shard], entries.attempt[shard]))
        rows = self._snapshot.row_bases[shard : shard + 2]
        return (
            f"{place}{field.name}/{kind}[{cuts.starts[i]}:{cuts.stops[i]}] "
            f"(rows {rows[0]} to {rows[1]})"
        )


def _chunk(field: Field, kind: Kind) -> int:
    """Values in an inner chunk."""
    return field.chunk if kind == "data" else OFFSETS_CHUNK


def _stored_as(field: Field, kind: Kind) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of a value."""
    return ("int64", ()) if kind == "offsets" else (field.dtype, field.shape)
