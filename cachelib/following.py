"""Following: the rows of a cache that grows, by sealed eras, and waiting for more of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import numpy as np

from cachelib.cache import Cache, Provenance
from cachelib.errors import (
    BuilderGone,
    CacheNotFound,
    CorruptData,
    ForebayError,
    NotYetBuilt,
    StateMismatch,
)
from cachelib.format.digest import EMPTY, Digest
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Schema
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage, check_fork
from cachelib.liveness import Builders, Sign
from cachelib.local.tier import Tier
from cachelib.order.eras import Sealed
from cachelib.order.live import Live
from cachelib.ragged import Ragged

if TYPE_CHECKING:
    from cachelib.dataset import Dataset
    from cachelib.loader import Loader
    from cachelib.order.windows import Tail
    from cachelib.segments import Targets

LOOK_SECONDS = 1.0
"""How often a followed cache is looked at, at most: between reads, and while one waits."""

GRACE_SECONDS = 10.0
"""Seconds after the end of a build in which it may still be marked complete, or another begin."""


@dataclass(frozen=True)
class Waiting:
    """What a read of a followed cache waits for. As text it is one line.

    Attributes:
        url: of the cache.
        wanted: what is waited for, in words.
        through: component of a mixture that the cache is read for, or "".
        rows, sealed: rows that are committed, and those of them in sealed eras.
        eras: sealed eras.
        seconds: waited so far.
        builder: what is known of the builder, in words.
    """

    url: str
    wanted: str
    through: str
    rows: int
    sealed: int
    eras: int
    seconds: float
    builder: str

    def __str__(self) -> str:
        name = f"{self.through!r} ({self.url})" if self.through else self.url
        return (
            f"waiting {self.seconds:.0f} s for {self.wanted} of {name}: era {self.eras} is to come "
            f"after {self.sealed:,} rows in {self.eras} sealed eras, {self.rows:,} rows are "
            f"committed; {self.builder}"
        )


@dataclass(frozen=True)
class Patience:
    """How long reads of a followed cache wait.

    Attributes:
        timeout: seconds that one read waits, at most.
        stale: seconds without a sign of life after which a builder is taken for dead.
        waiting: is called about once a second while a read waits.
        grace: seconds after the end of a build in which the next sign of life may come.
        building: tells whether a build is known to run. What statuses say is of earlier ones as
            long as it does.
    """

    timeout: float = 3600.0
    stale: float = 60.0
    waiting: Callable[[Waiting], object] | None = None
    grace: float = GRACE_SECONDS
    building: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        for name, value in (("timeout", self.timeout), ("stale", self.stale)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{name} must be a number of seconds from 0 on, got {value!r}")
        if self.waiting is not None and not callable(self.waiting):
            raise TypeError(f"waiting must be a function, got {self.waiting!r}")


@dataclass(frozen=True, eq=False)
class _Seen:
    """What is known of a followed cache.

    Attributes:
        cache: at the newest version seen.
        sealed: its eras.
        plan: that its newest rows are of, "" where that is not known.
        at: when it was seen to grow, by this process's clock.
    """

    cache: Cache
    sealed: Sealed
    plan: str
    at: float


class Followed:
    """The rows of a cache that grows. Thread-safe; picklable (it is followed on from there).

    ``take`` and ``len`` are of all rows that are committed so far. `dataset`, `windows`, `pack` and
    `shuffle` are of sealed eras, and serve them in order, one after another, each in an order of
    its own: what was served never moves, every process sees the same, and the cache once it is
    complete, followed, gives the same again. What is not there yet is waited for.

    Args:
        storage: of the cache, which may not be there yet.
        patience: how long to wait.
        version: one that is known to be there, None for the newest.
        local: as of `Cache`.

    Raises:
        NotYetBuilt, BuilderGone: the cache does not appear.
    """

    def __init__(
        self,
        storage: Storage,
        patience: Patience | None = None,
        version: int | None = None,
        local: Tier | None = None,
    ) -> None:
        self.storage = storage
        self.local = local
        self.patience = patience or Patience()
        self._ledger = Ledger(storage)
        self._builders = Builders(storage)
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seen = _seen(None, self._opened(version))

    def __reduce__(self) -> tuple[Any, ...]:
        # What is called while a read waits belongs to the process that gave it.
        patience = replace(self.patience, waiting=None, building=None)
        return Followed, (self.storage, patience, self.version, self.local)

    def __repr__(self) -> str:
        eras = len(self.sealed.rows)
        return f"Followed({self.url!r}, version={self.version}, rows={len(self)}, eras={eras})"

    @property
    def url(self) -> str:
        return self.storage.url

    @property
    def version(self) -> int:
        """The newest ledger version seen."""
        return self._seen.cache.version

    @property
    def snapshot(self) -> Snapshot:
        """The newest one seen."""
        return self._seen.cache.snapshot

    @property
    def schema(self) -> Schema:
        return self._seen.cache.schema

    @property
    def sealed(self) -> Sealed:
        """The sealed eras seen."""
        return self._seen.sealed

    @property
    def finished(self) -> bool:
        """Whether the cache was seen to be complete."""
        return self.sealed.finished

    @property
    def live(self) -> Live | None:
        """Which row indices lead to rows, as of `Cache.live`."""
        return self._seen.cache.live

    def __len__(self) -> int:
        return len(self._seen.cache)

    def at(self, version: int) -> Cache:
        """The cache pinned to a version.

        Raises:
            CacheNotFound: there is no such version.
        """
        return self._seen.cache.at(version)

    def elements(self, field: str) -> int:
        """The number of values of a ragged field in all rows committed so far."""
        return self._seen.cache.elements(field)

    def nbytes(self, fields: Sequence[str] | None = None) -> int:
        return self._seen.cache.nbytes(fields)

    def identity(self) -> dict[str, Any]:
        return self._seen.cache.identity()

    def take(
        self, indices: Iterable[SupportsIndex] | np.ndarray, fields: Sequence[str] | None = None
    ) -> dict[str, np.ndarray | Ragged]:
        """Rows at global indices, of all committed so far; see `Cache.take`."""
        return self._seen.cache.take(indices, fields)

    def __getitem__(self, index: SupportsIndex) -> NoReturn:
        """Refused, since it could mean two things.

        Raises:
            TypeError: names them.
        """
        raise TypeError(
            "a followed cache has no [i]: take([i]) gives a row of those committed so far, and "
            "dataset()[i] one of sealed eras, which is waited for; opened without follow, at a "
            "version, it has"
        )

    def provenance(self, indices: Iterable[SupportsIndex] | np.ndarray) -> list[Provenance]:
        return self._seen.cache.provenance(indices)

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        return self._seen.cache.read_elements(field, starts, length)

    def rows_at(self, field: str, positions: np.ndarray) -> np.ndarray:
        return self._seen.cache.rows_at(field, positions)

    def alike(self, field: str) -> tuple[str, ...]:
        return self._seen.cache.alike(field)

    def spans(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._seen.cache.spans(field, rows)

    def read_spans(self, field: str, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self._seen.cache.read_spans(field, starts, lengths)

    def dataset(self) -> Dataset:
        """The rows of sealed eras as a `Dataset` that grows."""
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
        """Windows over the tokens of sealed eras; see `Dataset.windows`."""
        return self.dataset().windows(
            length, stride=stride, tail=tail, field=field, documents=documents, targets=targets
        )

    def pack(self, length: int | Mapping[str, int], **options: Any) -> Dataset:
        """Documents packed into rows, era by era; options are those of `Dataset.pack`."""
        return self.dataset().pack(length, **options)

    def shuffle(self, seed: int, **options: Any) -> Dataset:
        """The rows of each era in a random order; options are those of `Dataset.shuffle`."""
        return self.dataset().shuffle(seed, **options)

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Refused with a ValueError that names what can be done: needs a pinned cache."""
        return self.dataset().split(fraction, seed)

    def where(self, condition: Any, **options: Any) -> Dataset:
        """Refused likewise."""
        return self.dataset().where(condition, **options)

    def map(self, function: Any, **options: Any) -> Dataset:
        """The rows, each changed by a function; options are those of `Dataset.map`."""
        return self.dataset().map(function, **options)

    def loader(self, batch_size: int, **options: Any) -> Loader:
        """Batches of rows in stored order; options are those of `Dataset.loader`."""
        return self.dataset().loader(batch_size, **options)

    def look(self) -> None:
        """See whether the cache has grown, unless that was done a moment ago."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._look()

    def until(
        self,
        enough: Callable[[], bool],
        wanted: str,
        through: str = "",
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until there is enough, or the cache is complete.

        Args:
            enough: tells from `sealed` whether there is.
            wanted: what is waited for, in words.
            through: component of a mixture that it is read for, or "".
            given_up: whether nobody waits any more.

        Raises:
            NotYetBuilt: it did not come in time.
            BuilderGone: nobody builds the cache any more.
            ForebayError: given up.
        """
        if not (enough() or self.finished):
            self._wait(lambda: enough() or self.finished, wanted, through, given_up)

    def _wait(
        self,
        ended: Callable[[], bool],
        wanted: str,
        through: str,
        given_up: Callable[[], bool],
    ) -> None:
        pauses = _Pauses()
        while True:
            building = self._known_to_run()
            self._look()
            if ended():
                return
            if given_up():
                raise ForebayError(f"given up: {wanted} of {self.url} is not waited for any more")
            with self._lock:
                seen = self._seen
                sign = self._builders.look(seen.plan)
            waiting = Waiting(
                url=self.url,
                wanted=wanted,
                through=through,
                rows=seen.cache.snapshot.commit.totals["rows"],
                sealed=int(seen.sealed.rows[-1]) if len(seen.sealed.rows) else 0,
                eras=len(seen.sealed.rows),
                seconds=pauses.waited,
                builder=_told(sign, building),
            )
            if self.patience.waiting is not None:
                self.patience.waiting(waiting)
            _check(waiting, None if building else sign, self.patience, time.monotonic() - seen.at)
            pauses.pause(self.patience.timeout)

    def _known_to_run(self) -> bool:
        """Whether a build is known to run; asked before a look, which then has all of one that
        has ended."""
        return self.patience.building is not None and self.patience.building()

    def _look(self) -> None:
        check_fork()  # the lock may be held by a thread that a fork left behind
        with self._lock:
            self._looked = time.monotonic()
            before = self._seen
            if before.sealed.finished:
                return
            snapshot = self._ledger.grown(before.cache.snapshot)
            if snapshot.version > before.cache.version:
                cache = Cache(self.storage, snapshot=snapshot, local=self.local)
                self._seen = _seen(before, cache)

    def _opened(self, version: int | None) -> Cache:
        """The cache, once it is there."""
        pauses, began = _Pauses(), time.monotonic()
        while True:
            building = self._known_to_run()
            try:
                return Cache(self.storage, version, local=self.local)
            except CacheNotFound:
                if version is not None:
                    raise
            sign = self._builders.look("")
            told = _told(sign, building)
            waiting = Waiting(self.url, "the first commit", "", 0, 0, 0, pauses.waited, told)
            if self.patience.waiting is not None:
                self.patience.waiting(waiting)
            _check(waiting, None if building else sign, self.patience, time.monotonic() - began)
            pauses.pause(self.patience.timeout)


class _Pauses:
    """Pauses between looks: short ones first."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = 0.05

    @property
    def waited(self) -> float:
        return time.monotonic() - self._began

    def pause(self, timeout: float) -> None:
        time.sleep(max(0.01, min(self._next, timeout - self.waited)))
        self._next = min(2 * self._next, LOOK_SECONDS)


def _told(sign: Sign, building: bool) -> str:
    """What is known of the builder, in words."""
    if building and sign.state != "running":
        return "a build was started and has no status yet"
    return str(sign)


def _check(waiting: Waiting, sign: Sign | None, patience: Patience, quiet: float) -> None:
    """Raise what is to be raised instead of waiting on.

    Args:
        sign: of the builder; None where one is known to run.
        quiet: seconds since the cache was seen to grow, or first looked for.
    """
    if sign is not None:
        _check_builder(waiting, sign, patience, min(sign.age, quiet))
    if waiting.seconds >= patience.timeout:
        raise NotYetBuilt(
            f"{waiting}. That is longer than timeout={patience.timeout:g}: give open() a longer one"
        )


def _check_builder(waiting: Waiting, sign: Sign, patience: Patience, age: float) -> None:
    """Raise that nobody builds the cache; age: seconds without a sign of life."""
    if sign.state in ("ended", "failed") and age >= min(patience.grace, patience.stale):
        unsealed = waiting.rows - waiting.sealed
        raise BuilderGone(
            f"{waiting}. The build {sign.state} and the cache was not marked complete"
            + (f"; {unsealed:,} rows are in no sealed era" if unsealed else "")
            + ". Build again with finish: true (--finish), or open it without follow"
        )
    if age >= patience.stale:
        who = "Nobody builds it" if sign.state == "unknown" else "Its builder is gone"
        raise BuilderGone(
            f"{waiting}. {who}: there was no sign of life for stale={patience.stale:g} s. Start "
            "the same build again, which goes on where it stopped, and then this, from its last "
            "state"
        )


def _seen(before: _Seen | None, cache: Cache) -> _Seen:
    """What is known once a cache was seen at a version.

    Raises:
        StateMismatch: rows of sealed eras were deleted.
    """
    snapshot = cache.snapshot
    plan = snapshot.commit.task.get("plan") or ("" if before is None else before.plan)
    goes_on = before is not None and _goes_on(before.cache.snapshot, snapshot)
    sealed = _sealed(cache, before.sealed if before is not None and goes_on else None)
    if before is not None and not goes_on:
        known = len(before.sealed.rows)
        same = np.array_equal(sealed.rows[:known], before.sealed.rows)
        if not same or sealed.digests[:known] != before.sealed.digests:
            raise StateMismatch(
                f"{cache.url}: rows of sealed eras were deleted between versions "
                f"{before.cache.version} and {cache.version}, so that the order that was followed "
                "is another one. Open it anew and begin anew, or go on with a pinned version"
            )
    return _Seen(cache, sealed, plan, time.monotonic())


def _goes_on(before: Snapshot, after: Snapshot) -> bool:
    """Whether all shards of a snapshot are those of a later one, as they were."""
    old, new, count = before.entries, after.entries, len(before.entries)
    unchanged = old.attempt == new.attempt[:count] and old.digests == new.digests[:count]
    return unchanged and old.shard == new.shard[:count]


def _sealed(cache: Cache, before: Sealed | None) -> Sealed:
    """The sealed eras of a cache, by those of an earlier version where that goes on here.

    Raises:
        CorruptData: an era does not end with a shard.
    """
    snapshot, live = cache.snapshot, cache.live
    finished = snapshot.commit.finished
    ends = snapshot.eras
    if finished and snapshot.rows > (ends[-1] if len(ends) else 0):
        ends = np.append(ends, snapshot.rows)
    shards = np.searchsorted(snapshot.row_bases, ends, side="left")
    if not np.array_equal(snapshot.row_bases[shards], ends):
        raise CorruptData(f"{cache.url}: version {cache.version} has eras that end inside a shard")
    digests = [] if before is None else list(before.digests)
    digest = Digest.parse(digests[-1]) if digests else EMPTY
    first = int(shards[len(digests) - 1]) if digests else 0
    for shard in shards[len(digests) :].tolist():
        for each in snapshot.entries.digests[first:shard]:
            digest = digest.then(Digest.parse(each))
        digests.append(str(digest))
        first = shard
    ragged = [f for f in cache.schema.fields if f.ragged]
    if live is None:
        elements = {f.name: snapshot.element_bases[f.like or f.name][shards] for f in ragged}
        return Sealed(ends, elements, tuple(digests), finished)
    elements = {f.name: live.values_before(f.name, ends) for f in ragged}
    return Sealed(live.ranks(ends), elements, tuple(digests), finished)
