"""Finding: files that come become units of what the ledger lacks of them. No Beam here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from cachelib.errors import SourceError, StorageError
from cachelib.format import coverage
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from pipelines.commit import seal
from pipelines.eras import EraClock
from pipelines.plan import remaining
from pipelines.quarantine import read_quarantine
from pipelines.sources.arrivals import Arrivals
from pipelines.sources.discover import File, inspect_file
from pipelines.sources.files import lies_in
from pipelines.streams.news import announce
from pipelines.streams.units import Stream, Unit, cut_unit, given_up, what_became

AGAIN_SECONDS = 300.0
"""After which a file is handed out again if the ledger does not have it; each time twice as long.

An engine that repeats a look which failed would else lose what it had found.
"""


@dataclass(frozen=True)
class _Handed:
    """A file that was handed out: its content, when it is handed out again, and after how long."""

    version: str
    due: float
    seconds: float


class Finder:
    """Looks for files, look by look; what it remembers only saves work.

    Args:
        stream: that files are for.
        inputs, format, settle_seconds: as of `Arrivals` and `discover`.
        clock: seconds, of which only differences count.
    """

    def __init__(
        self,
        stream: Stream,
        inputs: Sequence[str],
        format: str | None,
        settle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._handed: dict[str, _Handed] = {}
        self._seen: int | None = None
        self._given_up = ""
        self._stream = stream
        self._format = format
        self._arrivals = Arrivals(
            inputs,
            any_suffix=format is not None,
            settle_seconds=settle_seconds,
            leave_out=lambda file: lies_in(file.url, stream.storage),
            clock=clock,
        )
        self._quarantine = read_quarantine(stream.storage)

    def look(self) -> tuple[list[Unit], Counter[str]]:
        """The units that have come, and how many files went otherwise, by what became of them."""
        self._see_given_up()
        self._hand_out_again()
        try:
            look = self._arrivals.look()
        except SourceError as error:  # what cannot be listed now; the next look may do better
            self._announce("failed", (), str(error))
            return [], Counter(failed_looks=1)
        for line in look.nothing:
            self._announce("nothing", (), line)
        self._announce("vanished", look.vanished)
        for name, fault in look.unusable:
            self._announce("unusable", [name], fault)
        counts = Counter(vanished=len(look.vanished), unusable=len(look.unusable))
        new = [file for file in look.settled if not self._is_set_aside(file)]
        if not new:
            return [], counts
        inspected_ns = time.time_ns()
        roots = sorted({file.root for file in new})
        sources, files = [], {}
        for file in new:
            try:
                sources.append(inspect_file(file, roots, self._format))
                files[file.name] = file
            except SourceError as error:
                became = what_became(self._stream, file.name, file.url, file.stamp, error)
                counts[became] += 1
                if became == "damaged":
                    self._quarantine = read_quarantine(self._stream.storage)
                if became == "unreached":
                    self._arrivals.forget([file.name])
        work = remaining(sources, self._taken())
        counts["changed"] += len(work.changed)
        self._announce("changed", work.changed)
        self._announce("found", {sources[piece.source].name for piece in work.pieces})
        units = []
        for piece in work.pieces:
            source = sources[piece.source]
            file = files[source.name]
            unit = Unit(
                source,
                file.root,
                file.url,
                file.stamp,
                inspected_ns,
                piece.start,
                piece.stop,
                self._given_up,
            )
            units += cut_unit(self._stream, unit)
            before = self._handed.get(source.name)
            seconds = AGAIN_SECONDS if before is None else 2 * before.seconds
            due = self._clock() + seconds
            self._handed[source.name] = _Handed(source.version, due, seconds)
        return units, counts

    def _taken(self) -> coverage.Coverage:
        ledger = Ledger(self._stream.storage)
        if ledger.head() is None:
            return {}
        return coverage.merge(ledger.coverage_deltas(ledger.snapshot()))

    def _see_given_up(self) -> None:
        """Let all be handed out again, where a gc gave something up: it may have been of it."""
        ledger = Ledger(self._stream.storage)
        head = ledger.head()
        if head is None or head == self._seen:
            return
        self._seen = head
        given_up_now = given_up(ledger.commit(head))
        if given_up_now != self._given_up:
            self._given_up = given_up_now
            now = self._clock()
            self._handed = {
                name: replace(handed, due=now, seconds=handed.seconds / 2)
                for name, handed in self._handed.items()
            }

    def _hand_out_again(self) -> None:
        """Take files for new that were handed out long ago and that the ledger does not have."""
        if not any(handed.due <= self._clock() for handed in self._handed.values()):
            return
        self._quarantine = read_quarantine(self._stream.storage)
        taken = self._taken()
        self._handed = {
            name: handed
            for name, handed in self._handed.items()
            if name not in self._quarantine and not _is_whole(taken.get(name), handed.version)
        }
        self._arrivals.forget(
            name for name, handed in self._handed.items() if handed.due <= self._clock()
        )

    def _is_set_aside(self, file: File) -> bool:
        before = self._quarantine.get(file.name)
        if before is None or before.stamp != file.stamp:
            return False
        self._announce("known", [file.name], before.message)
        return True

    def _announce(self, became: str, names: Iterable[str], message: str = "") -> None:
        announce(self._stream.storage, self._stream.run, became, names, message)


def _is_whole(taken: coverage.Taken | None, version: str) -> bool:
    """Whether a source was taken in to its end, or with other content, which is left out."""
    return taken is not None and (taken.version != version or not taken.missing(None))


class Sealer:
    """Ends eras of a cache that a stream fills, also while nothing comes.

    Args:
        storage: of the cache.
        seconds, size, clock: as of `EraClock`.
    """

    def __init__(
        self,
        storage: Storage,
        seconds: float,
        size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._clock = EraClock(seconds, size, clock)
        self._seen: int | None = None

    def look(self) -> None:
        """End an era if it is time and the store lets it."""
        with suppress(StorageError):
            self._look()

    def _look(self) -> None:
        ledger = Ledger(self._storage)
        head = ledger.head()
        if head is None:
            return
        if head != self._seen:
            self._clock.see(ledger.snapshot(head))
            self._seen = head
        if self._clock.due:
            seal(self._storage)
