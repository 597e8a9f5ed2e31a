"""Watch: new files into a cache by one batch run after another, for as long as it is let.

Beam is started once. A look that finds nothing new costs a listing, and no commit.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from cachelib.errors import (
    EngineError,
    ForebayError,
    LedgerConflict,
    SourceChanged,
    SourceError,
    StorageError,
)
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.words import legible
from pipelines.commit import seal
from pipelines.config import BuildConfig, GrowthConfig
from pipelines.eras import EraClock
from pipelines.launcher import Done, take_in
from pipelines.planning import note_on_twins
from pipelines.progress import Progress, alive
from pipelines.quarantine import SetAside, read_quarantine, release, set_aside
from pipelines.request import Request, belongs_to, cache_url, inquire
from pipelines.sources import Discovery, Source
from pipelines.sources.arrivals import Arrivals
from pipelines.sources.discover import THREADS, File, inspect_file
from pipelines.tally import Head, Tally, sources_of

TRIES = 8
"""Rounds that may fail one after another, for reasons that may pass, before the watch ends."""

LONGEST_PAUSE = 60.0
"""Seconds between two rounds that fail, at most."""

CHANGES = 3
"""Times that a file may be found changed while it is read before it is set aside."""


def watch(
    config: BuildConfig,
    growth: GrowthConfig,
    *,
    stopped: threading.Event,
    tell: Callable[[str], None] = lambda line: None,
    show: Callable[[Progress], None] | None = None,
    beam_arguments: Sequence[str] = (),
) -> Tally:
    """Take in files as they come, until it is stopped.

    Args:
        config, growth: as `growing_config` gives them.
        stopped: set to end it after the pipeline that is running.
        tell: called with a line for whatever happens.
        show: called with the progress of what is being taken in.
        beam_arguments: further options of the Beam runner.

    Raises:
        CacheNotFound: the cache was deleted meanwhile.
        ForebayError: of the kind that fits; what was committed before stays.
    """
    watching = _Watch(config, growth, stopped, tell, show, beam_arguments)
    failures = 0
    with watching.alive():
        while not stopped.is_set():
            pause = growth.every
            try:
                watching.round()
                failures = 0
            except Exception as error:
                failures += 1
                if failures == TRIES or not _may_pass(error):
                    raise
                pause = min(LONGEST_PAUSE, growth.every * 2**failures)
                tell(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}; trying again")
            stopped.wait(pause)
        watching.end()
    return watching.seen


def _may_pass(error: Exception) -> bool:
    """Whether another round may do better: stores and engines fail now and then."""
    if not isinstance(error, ForebayError):
        return not isinstance(error, ImportError)
    return isinstance(error, StorageError | EngineError | LedgerConflict | SourceError)


class _Watch:
    """The rounds of a watch, and what one round leaves to the next."""

    def __init__(
        self,
        config: BuildConfig,
        growth: GrowthConfig,
        stopped: threading.Event,
        tell: Callable[[str], None],
        show: Callable[[Progress], None] | None,
        beam_arguments: Sequence[str],
    ) -> None:
        self._config = config
        self._stopped = stopped
        self._tell = tell
        self._show = show
        self._beam_arguments = beam_arguments
        self._storages = [
            Storage.at(cache_url(config, held))
            for held in ((False, True) if config.holdout else (False,))
        ]
        self._arrivals = Arrivals(
            config.inputs,
            any_suffix=config.format is not None,
            settle_seconds=growth.settle,
            leave_out=lambda file: belongs_to(config, file.url),
        )
        self._eras = [EraClock(growth.seal_after, growth.seal_bytes) for _ in self._storages]
        self._requests: list[Request] | None = None
        self._quarantine = read_quarantine(self._storages[0])
        self._changes: dict[str, int] = {}
        self._told: set[str] = set()
        self._heads = [Head(storage) for storage in self._storages]
        self._plans: set[str] = set()
        # What no round could mend is told before the first.
        if config.runner != "embedded":
            importlib.import_module("pipelines.runners").check(config.runner)  # it imports Beam
        inquire(config, Discovery((), (), (), time.time_ns()))
        self._tallies = [Tally(storage.url) for storage in self._storages]
        self.seen, *held = self._tallies
        self.seen.holdout = held[0] if held else None
        self._take_stock()

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Show in each cache that it is being watched for, as long as the block runs."""
        with ExitStack() as signs:
            for storage in self._storages:
                signs.enter_context(alive(storage, "watch"))
            yield

    def round(self) -> None:
        """Look once, and take in what has come."""
        look = self._arrivals.look()
        for line in look.nothing:
            self._tell_once(f"nothing yet: {line}")
        self._have_vanished(look.vanished)
        for name, fault in look.unusable:
            self._tell(self.seen.set_aside(name, fault))
        new = {file.name: file for file in look.settled if not self._is_set_aside(file)}
        if new:
            self._take_stock()
            try:
                self._take_in(new)
            except BaseException:
                self._arrivals.forget(new)
                raise
            finally:
                self._take_stock()
        for storage, era in zip(self._storages, self._eras, strict=True):
            if era.due:
                self._take_stock()
                seal(storage)
                era.see(Ledger(storage).snapshot())

    def end(self) -> None:
        """Let the rows that are there be an era."""
        self._take_stock()
        for storage in self._storages:
            if Ledger(storage).head() is not None:
                seal(storage)
        self._take_stock()

    def _take_in(self, new: dict[str, File]) -> None:
        inspected_ns = time.time_ns()
        roots = tuple(sorted({file.root for file in new.values()}))
        sources = self._inspect(new, roots)
        while sources:
            discovery = Discovery(roots, tuple(sources.values()), (), inspected_ns)
            try:
                done = self._run(discovery)
            except SourceError as error:
                if error.source not in sources:
                    raise
                del sources[error.source]
                self._has_fault(new[error.source], error)
                continue
            for name in done.changed:
                self._tell(self.seen.leave_out(name))
            if done.twins:
                self._tell(f"note: {note_on_twins(done.twins)}")
            if done.whole:
                self._were_taken(set(sources) - set(done.changed))
            return

    def _inspect(self, new: Mapping[str, File], roots: Sequence[str]) -> dict[str, Source]:
        """The sources that files are, by name and in its order, but for those with a fault."""

        def inspect(file: File) -> Source | SourceError:
            try:
                return inspect_file(file, roots, self._config.format)
            except SourceError as error:
                return error

        files = sorted(new.values())
        with ThreadPoolExecutor(THREADS, "inspect") as pool:
            found = list(pool.map(inspect, files))
        for file, result in zip(files, found, strict=True):
            if isinstance(result, SourceError):
                self._has_fault(file, result)
        return {source.name: source for source in found if isinstance(source, Source)}

    def _run(self, discovery: Discovery) -> Done:
        """Bring the caches up to date; returns what was done for the last of them."""
        if self._requests is None:
            held = (False, True)[: len(self._storages)]
            self._requests = [inquire(self._config, discovery, held=each) for each in held]
            for note in self._requests[0].prepared.notes:
                self._tell(f"note: {note}")
        for request in self._requests:
            done = take_in(
                replace(request, discovery=discovery),
                self._show,
                self._beam_arguments,
                grows=True,
                stopped=self._stopped.is_set,
                begun=self._plans.add,
            )
        return done

    def _take_stock(self) -> None:
        """Count what this watch committed since the last time, and see that the caches are there.

        Raises:
            CacheNotFound: one is not.
        """
        since = [head.since() for head in self._heads]
        for head, storage, era in zip(self._heads, self._storages, self._eras, strict=True):
            if head.commit is not None:
                era.see(Ledger(storage).snapshot(head.commit.version))
        for head, storage, seen, commits in zip(
            self._heads, self._storages, self._tallies, since, strict=True
        ):
            if head.commit is not None:
                seen.see(head.commit)
            own = [commit for commit in commits if commit.task.get("plan") in self._plans]
            if own:
                line = seen.take(own, sources_of(Ledger(storage), own))
                self._tell(line if seen is self.seen else f"held out, {line}")

    def _were_taken(self, names: set[str]) -> None:
        for name in names:
            self.seen.damaged.pop(name, None)
        for name in names & set(self._quarantine):
            release(self._storages[0], name)
            del self._quarantine[name]

    def _is_set_aside(self, file: File) -> bool:
        before = self._quarantine.get(file.name)
        if before is None or before.stamp != file.stamp:
            return False
        self._tell_once(self.seen.set_aside(file.name, before.message, before=True))
        return True

    def _have_vanished(self, names: Sequence[str]) -> None:
        for name in names:
            self._tell(self.seen.miss(name))

    def _has_fault(self, file: File, error: SourceError) -> None:
        """Set a file aside, unless it has gone or changed meanwhile."""
        now = self._arrivals.find(file.name)
        if now is None:
            self._have_vanished([file.name])
            return
        if now.stamp != file.stamp or isinstance(error, SourceChanged):
            self._changes[file.name] = self._changes.get(file.name, 0) + 1
            if self._changes[file.name] < CHANGES:
                self._arrivals.forget([file.name])
                self._tell(f"waiting for {file.name}: it changed while it was read")
                return
        found = SetAside(file.name, now.stamp, type(error).__name__, legible(str(error)))
        set_aside(self._storages[0], found)
        self._quarantine[file.name] = found
        self._tell(self.seen.set_aside(file.name, found.message))

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)
