"""Cache: the rows of one snapshot, read by index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from cachelib.errors import CorruptData, RowDeleted
from cachelib.format.canonical import digest_of
from cachelib.format.digest import Digest
from cachelib.format.ledger import Ledger
from cachelib.format.schema import POSITION, SOURCE, Field, Schema, as_names
from cachelib.format.shard import read_details
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.latest import Latest
from cachelib.local.tier import Tier
from cachelib.order.indices import as_indices, as_integer, as_positions
from cachelib.order.live import Live
from cachelib.ragged import Ragged, offsets_of
from cachelib.reading.arrays import Arrays

if TYPE_CHECKING:
    from cachelib.dataset import Dataset
    from cachelib.loader import Loader
    from cachelib.order.windows import Tail
    from cachelib.segments import Targets

SOURCE_LISTS = 256
"""Shards of which one cache keeps the names of their sources."""


@dataclass(frozen=True)
class Provenance:
    """Where a row came from.

    Attributes:
        source: name of the source, relative to its declared root.
        position: byte offset in the decompressed source, or row number.
    """

    source: str
    position: int


class Cache:
    """The rows of one snapshot of a cache. Thread-safe; picklable (it is opened again there).

    As a sequence it goes by row indices: ``len`` counts those that were given out, and ``[]``,
    iteration, `take` and `provenance` give the row of an index, or `RowDeleted`. `dataset`, and all
    that starts from it, counts the rows that are left.

    Args:
        storage: of the cache.
        version: the ledger version to pin; None for the newest.
        snapshot: that version, where it is known already.
        local: where objects of it are kept on this machine, if anywhere.

    Attributes:
        snapshot: what the ledger says at that version.
        local: as given; tells what was read from there (``local.counts``).
        live: which row indices lead to rows; None where all do, since none was deleted.
    """

    def __init__(
        self,
        storage: Storage,
        version: int | None = None,
        snapshot: Snapshot | None = None,
        local: Tier | None = None,
    ) -> None:
        self.storage = storage
        self.local = local
        if snapshot is None:
            ledger = Ledger(storage)
            if version is not None:
                ledger.check_kept(version)
            snapshot = ledger.snapshot(version)
        self.snapshot: Snapshot = snapshot
        self.live = Live.of(self.snapshot.entries, self.schema)
        self._arrays = Arrays(storage, self.snapshot, local)
        self._source_lists: Latest[int, list[str]] = Latest(SOURCE_LISTS)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self.storage, self.version, None, self.local)

    def __repr__(self) -> str:
        return f"Cache({self.storage.url!r}, version={self.version}, rows={len(self)})"

    @property
    def version(self) -> int:
        """The ledger version that this cache is pinned to."""
        return self.snapshot.version

    @property
    def url(self) -> str:
        return self.storage.url

    def at(self, version: int) -> Cache:
        """The same cache at another version.

        Raises:
            CacheNotFound: there is no such version.
            SnapshotExpired: its rows are gone.
        """
        return Cache(self.storage, as_integer("version", version), local=self.local)

    @property
    def schema(self) -> Schema:
        return self.snapshot.commit.schema

    def __len__(self) -> int:
        """Row indices given out: the number of rows, unless some were deleted (see `live`)."""
        return self.snapshot.rows

    def elements(self, field: str) -> int:
        """The number of values of a ragged field in all rows that are left.

        Raises:
            KeyError: there is no such field.
            ValueError: the field is not ragged.
        """
        f = self._ragged(field)
        live = self.live
        return int(self._arrays.bases(f, "data")[-1]) if live is None else live.values(field)

    def nbytes(self, fields: Sequence[str] | None = None) -> int:
        """Bytes of all values of fields once they are decoded; None for all fields."""
        total = 0
        for name in self.schema.names if fields is None else as_names("fields", fields):
            f = self.schema[name]
            rows: int = self.snapshot.commit.totals["rows"]
            count = self.elements(name) if f.ragged else rows
            total += count * math.prod(f.shape) * np.dtype(f.dtype).itemsize
        return total

    def identity(self) -> dict[str, Any]:
        """What an order over these rows depends on, as JSON."""
        totals = self.snapshot.commit.totals
        return {
            "version": self.version,
            "schema": self.schema.meaning,
            "rows": totals["rows"],
            "elements": totals["elements"],
            "digest": totals["digest"],
            **({} if self.live is None else {"gaps": digest_of(self.live.gaps())}),
        }

    def beginnings(self) -> list[Digest]:
        """The content digests of no rows, and of the rows up to the end of each shard.

        Equal ones, of any caches, mean equal rows.
        """
        return self.snapshot.beginnings

    def take(
        self, indices: Iterable[SupportsIndex] | np.ndarray, fields: Sequence[str] | None = None
    ) -> dict[str, np.ndarray | Ragged]:
        """The rows at global indices, in the order asked, repeats allowed.

        Args:
            indices: a one-dimensional array of any integer type, or an iterable of integers that
                has an order, each in [-rows, rows).
            fields: names of the fields wanted; None for all.

        Returns:
            A column a field: an array of shape (len(indices), *shape), or a `Ragged`.

        Raises:
            IndexError: an index is outside the rows.
            RowDeleted: a row was deleted.
            TypeError: bools, floats, sets, mappings, or anything else that is no integers in order;
                fields that are no names.
            KeyError: there is no such field.
            CorruptData: stored bytes are missing or damaged; names shard, field and rows.
        """
        rows = self._stored(as_indices(indices, len(self)))
        names = self.schema.names if fields is None else as_names("fields", fields)
        wanted = [self.schema[name] for name in names]
        columns: dict[str, np.ndarray | Ragged] = {}
        spans: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for f in wanted:
            if not f.ragged:
                columns[f.name] = self._arrays.read(f, "data", rows, np.ones_like(rows))
                continue
            owner = f.like or f.name
            if owner not in spans:
                spans[owner] = self._arrays.spans(self.schema[owner], rows)
            starts, lengths = spans[owner]
            columns[f.name] = Ragged(
                self._arrays.read(f, "data", starts, lengths), offsets_of(lengths)
            )
        return columns

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """The row of an index, a value for each field: shape ``shape``, or (elements, *shape) if
        ragged.

        Many rows are much cheaper by one `take`.

        Raises:
            IndexError, RowDeleted, TypeError, CorruptData: as of `take`.
        """
        return {name: column[0] for name, column in self.take([index]).items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows of all indices, as ``[]`` gives each.

        Raises:
            RowDeleted: a row is not there any more; iterate over `dataset` for those that are left.
        """
        # RowDeleted is an IndexError, which would end what Python makes of [] by itself.
        return (self[row] for row in range(len(self)))

    def provenance(self, indices: Iterable[SupportsIndex] | np.ndarray) -> list[Provenance]:
        """Where the rows at global indices came from, in the order asked."""
        rows = as_indices(indices, len(self))
        rows = self._stored(rows)
        ones = np.ones_like(rows)
        sources = self._arrays.read(SOURCE, "data", rows, ones)
        positions = self._arrays.read(POSITION, "data", rows, ones)
        shards = np.searchsorted(self.snapshot.stored_bases, rows, side="right") - 1
        return [
            Provenance(self._sources(int(shard))[source], int(position))
            for shard, source, position in zip(shards, sources, positions, strict=True)
        ]

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        """Slices of a ragged field's values put back to back over all rows that are left.

        Args:
            field: a ragged field.
            starts: integers of shape (n,); each start..start+length lies inside [0, elements).
            length: values in a slice, 0 or more.

        Returns:
            Array of shape (n, length, *shape).

        Raises:
            IndexError: a slice is not inside.
            KeyError, ValueError: as of `elements`.
            TypeError: starts or length are no integers.
            CorruptData: as of `take`.
        """
        starts, length = as_positions("starts", starts), as_integer("length", length)
        lengths = np.full(starts.shape, length, np.int64)
        values = self.read_spans(field, starts, lengths)
        return values.reshape(len(starts), length, *values.shape[1:])

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        """The global row that owns each value of a ragged field.

        Args:
            field: a ragged field.
            positions: integers of any shape, each inside [0, elements).

        Returns:
            int64 of the same shape.

        Raises:
            IndexError: a position is outside.
            KeyError, ValueError: as of `elements`.
            TypeError: positions are no integers.
            CorruptData: as of `take`.
        """
        f = self.schema[self._ragged(field).like or field]
        flat = as_positions("positions", positions).reshape(-1)
        total = self.elements(field)
        if len(flat) and (flat.min() < 0 or flat.max() >= total):
            raise IndexError(
                f"positions from {flat.min()} to {flat.max()} are not inside the "
                f"{total} values of {field!r}"
            )
        live = self.live
        if live is not None:
            flat = live.value_places(field, flat)
        rows = self._arrays.rows_at(f, flat)
        return (rows if live is None else live.rows_stored(rows)).reshape(np.shape(positions))

    def alike(self, field: str) -> tuple[str, ...]:
        """The ragged fields whose rows are as long as those of a field by declaration, itself too.

        Raises:
            KeyError, ValueError: as of `elements`.
        """
        f = self._ragged(field)
        owner = f.like or f.name
        return tuple(f.name for f in self.schema.fields if f.ragged and owner in (f.name, f.like))

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of rows begin in the stream over all rows left, and how many there are.

        Args:
            field: a ragged field.
            rows: indices of shape (n,) as `take` has them.

        Returns:
            Two int64 arrays of shape (n,), as `read_spans` takes them.

        Raises:
            IndexError, TypeError, CorruptData: as of `take`.
            KeyError, ValueError: as of `elements`.
        """
        owner = self.schema[self._ragged(field).like or field]
        rows = as_indices(rows, len(self))
        starts, lengths = self._arrays.spans(owner, self._stored(rows))
        live = self.live
        return starts if live is None else live.positions(field, rows, starts), lengths

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Slices of different lengths of a ragged field's values, back to back over all rows left.

        Args:
            field: a ragged field.
            starts: integers of shape (n,).
            lengths: integers of shape (n,), 0 or more; each start..start+length lies inside
                [0, elements).

        Returns:
            The slices back to back, in the order asked, shape (sum of lengths, *shape).

        Raises:
            IndexError: a slice is not inside.
            KeyError: there is no such field.
            TypeError: starts or lengths are no integers, or of shapes that do not fit.
            ValueError: the field is not ragged.
            CorruptData: as of `take`.
        """
        f = self._ragged(field)
        starts, lengths = as_positions("starts", starts), as_positions("lengths", lengths)
        if starts.ndim != 1 or starts.shape != lengths.shape:
            raise TypeError(
                f"starts and lengths must be of one shape (n,), got {starts.shape} and "
                f"{lengths.shape}"
            )
        total = self.elements(field)
        if len(starts) and (
            min(starts.min(), lengths.min()) < 0 or (starts - total + lengths).max() > 0
        ):
            wrong = (starts < 0) | (lengths < 0) | (lengths > total - starts)
            at = int(np.argmax(wrong))
            raise IndexError(
                f"a slice of {lengths[at]} from {starts[at]} is not inside the {total} values of "
                f"{field!r}"
            )
        if self.live is not None:
            starts, lengths = self.live.slices(field, starts, lengths)
        return self._arrays.read(f, "data", starts, lengths)

    def dataset(self) -> Dataset:
        """The rows as a `Dataset`, the start of every order."""
        from cachelib import dataset

        return dataset.of(self)

    def windows(
        self,
        length: int,
        *,
        stride: int | None = None,
        tail: Tail = "drop",
        field: str = "tokens",
        documents: bool = False,
        targets: Targets | None = None,
    ) -> Dataset:
        """Fixed-length windows over the tokens of all rows; see `Dataset.windows`."""
        return self.dataset().windows(
            length, stride=stride, tail=tail, field=field, documents=documents, targets=targets
        )

    def pack(self, length: int | Mapping[str, int], **options: Any) -> Dataset:
        """Whole documents packed into rows; options are those of `Dataset.pack`."""
        return self.dataset().pack(length, **options)

    def shuffle(self, seed: int, **options: Any) -> Dataset:
        """The rows in a random order; options are those of `Dataset.shuffle`."""
        return self.dataset().shuffle(seed, **options)

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """The rest of the rows, and a fraction that is held out; see `Dataset.split`."""
        return self.dataset().split(fraction, seed)

    def where(self, condition: Any, **options: Any) -> Dataset:
        """The rows that a condition holds for; options are those of `Dataset.where`."""
        return self.dataset().where(condition, **options)

    def map(self, function: Any, **options: Any) -> Dataset:
        """The rows, each changed by a function; options are those of `Dataset.map`."""
        return self.dataset().map(function, **options)

    def loader(self, batch_size: int, **options: Any) -> Loader:
        """Batches of rows in stored order; options are those of `Dataset.loader`."""
        return self.dataset().loader(batch_size, **options)

    def _ragged(self, name: str) -> Field:
        """A field whose rows have lengths."""
        field = self.schema[name]
        if not field.ragged:
            there = [f.name for f in self.schema.fields if f.ragged]
            raise ValueError(
                f"field {name!r} is not ragged: its rows have no lengths; ragged are {there}"
            )
        return field

    def _stored(self, rows: np.ndarray) -> np.ndarray:
        """The places of rows among the stored ones.

        Raises:
            RowDeleted: one was deleted.
        """
        live = self.live
        if live is None:
            return rows
        deleted = ~live.contains(rows)
        if deleted.any():
            raise RowDeleted(
                f"{self.url}: row {rows[np.argmax(deleted)]} was deleted before version "
                f"{self.version}. An older version may have it (open(version=...)); dataset() "
                "counts the rows that are left"
            )
        return live.places(rows)

    def _sources(self, shard: int) -> list[str]:
        def read() -> list[str]:
            entries = self.snapshot.entries
            try:
                details = read_details(self.storage, entries.shard[shard], entries.attempt[shard])
            except CorruptData as error:
                raise Ledger(self.storage).explained(self.version, error) from error
            found: list[str] = details["sources"]
            return found

        return self._source_lists.get(shard, read)
