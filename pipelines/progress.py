"""Progress: what a running build shows, taken from published manifests on any engine."""

from __future__ import annotations

import bisect
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cachelib.errors import CacheNotFound, StorageError
from cachelib.format.canonical import seal
from cachelib.format.shard import Manifest, read_manifest
from cachelib.format.storage import Storage
from cachelib.words import counted, size
from pipelines.overlap import meanwhile
from pipelines.plan import Plan, shard_id

POLL_SECONDS = 0.5
"""How often what is being written is looked at."""

STATUS_SECONDS = 5.0
"""How often the status object is written, at most: stores limit writes to one object."""

LOG_SECONDS = 10.0
"""How often a line of progress is written where it cannot be rewritten."""

LOOK_AHEAD = 32
"""Unfinished splits that are looked at each time."""


@dataclass(frozen=True)
class Progress:
    """How far a build is.

    Attributes:
        waves, wave: number of waves, and the first one that is not written yet.
        bytes, total: bytes of text done and in all, about.
        earlier: those of the bytes done that an earlier run did.
        rows, tokens, rejects: of the finished parts of waves that this run commits.
        seconds: since the plan was begun or gone on with.
        stage: "wave" of shards as they are read; "run wave" of runs, before they are merged; "pass"
            over all runs. Each counts waves and bytes of its own.
    """

    waves: int
    wave: int
    bytes: int
    total: int
    earlier: int
    rows: int
    tokens: int
    rejects: int
    seconds: float
    stage: str = "wave"

    def line(self) -> str:
        """One line for a terminal."""
        share = self.bytes / self.total if self.total else 1.0
        line = (
            f"{self.stage} {self.wave + 1}/{self.waves}  {share:4.0%}  "
            f"{size(self.bytes)} of {size(self.total)}  {counted(self.rows, 'row')}  "
            f"{counted(self.tokens, 'token')}  {counted(self.rejects, 'reject')}"
        )
        if self.bytes <= self.earlier:
            return line
        rate = (self.bytes - self.earlier) / self.seconds
        return f"{line}  {size(rate)}/s  {(self.total - self.bytes) / rate:.0f} s left"


def published(
    storage: Storage, plan: Plan, name: str, splits: Iterable[int]
) -> Iterator[tuple[int, Manifest]]:
    """The parts of splits that are finished, each with its split."""
    for split in splits:
        part = 0
        while (manifest := read_manifest(storage, shard_id(name, split, part))) is not None:
            yield split, manifest
            if manifest.task["next"] is None:
                break
            part += 1


class Status:
    """The status object of a plan, by which others see that it is being carried out.

    Those who read the cache meanwhile take one that stays as it is for that of a dead builder.

    Args:
        storage: of the cache.
        name: of the plan.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._key = f"_status/{name}.json"
        self._told: float | None = None
        self._last: Progress | None = None

    def tell(self, progress: Progress) -> None:
        """Store how far it is, unless that was done a moment ago."""
        self._last, now = progress, time.monotonic()
        if self._told is None or now - self._told >= STATUS_SECONDS:
            self._told = now
            self._write("running")

    @contextmanager
    def of_all(self) -> Iterator[None]:
        """Store how it ended when the block has, in which it is carried out."""
        try:
            yield
        except Exception as error:
            self._write("failed", f"{type(error).__name__}: {error}")
            raise
        self._write("ended")

    def _write(self, state: str, message: str = "") -> None:
        if self._last is None:
            return
        status = {**vars(self._last), "state": state, "message": message}
        with suppress(StorageError):  # it is advisory
            self._storage.write(self._key, seal(status))


@contextmanager
def alive(
    storage: Storage, name: str, told: Callable[[], Mapping[str, float]] = dict
) -> Iterator[None]:
    """Show that somebody fills a cache as long as the block runs, also while there is no plan.

    Args:
        storage: of the cache.
        name: of the status object, which begins with a letter, as that of a plan does not.
        told: what the status says besides.
    """
    began = time.monotonic()

    def write(state: str, message: str = "") -> None:
        seconds = time.monotonic() - began
        status = {**told(), "seconds": seconds, "state": state, "message": message}
        with suppress(StorageError):  # it is advisory
            storage.write(f"_status/{name}.json", seal(status))

    def beat(ended: threading.Event) -> None:
        write("running")
        while not ended.wait(STATUS_SECONDS):
            write("running")

    try:
        with meanwhile("forebay-alive", beat):
            yield
    except CacheNotFound:
        raise  # a status would be all that is there
    except Exception as error:
        write("failed", f"{type(error).__name__}: {error}")
        raise
    write("ended")


class Watcher:
    """Follows the waves of a plan by the manifests of their parts.

    Args:
        storage: of the cache.
        plan, name: the plan and its digest.
        done: splits that an earlier run finished, in committed waves or not.
        show: called with each new state.
        status: of the plan, that is told, too.
    """

    def __init__(
        self,
        storage: Storage,
        plan: Plan,
        name: str,
        done: Collection[int],
        show: Callable[[Progress], None],
        status: Status,
    ) -> None:
        self._storage = storage
        self._status = status
        self._plan = plan
        self._name = name
        self._show = show
        self._began = time.monotonic()
        self._done = frozenset(done)
        self._earlier = self._bytes = sum(plan.splits[split].size for split in self._done)
        self._rows = self._tokens = self._rejects = 0
        self._parts: dict[int, int] = {}

    @contextmanager
    def waves(self, waves: range) -> Iterator[None]:
        """Watch waves in the background until the block ends."""
        open_splits = list(self._plan.splits_of(waves))

        def watch(ended: threading.Event) -> None:
            while not ended.wait(POLL_SECONDS):
                self._look(waves, open_splits)

        try:
            with meanwhile("forebay-progress", watch):
                yield
        finally:
            self._look(waves, open_splits, everything=True)

    def _look(self, waves: range, open_splits: list[int], everything: bool = False) -> None:
        for split in open_splits[: None if everything else LOOK_AHEAD]:
            while self._count(split):
                if self._parts[split] < 0:
                    open_splits.remove(split)
                    break
        first = open_splits[0] if open_splits else self._plan.splits_of(waves)[-1]
        self._report(bisect.bisect_right(self._plan.waves, first) - 1)

    def _count(self, split: int) -> bool:
        """Count the next part of a split if it is published; -1 parts mean that it was the last."""
        part = self._parts.get(split, 0)
        manifest = read_manifest(self._storage, shard_id(self._name, split, part))
        if manifest is None:
            return False
        last = manifest.task["next"] is None
        self._rows += manifest.rows
        self._tokens += manifest.elements.get("tokens", 0)
        self._rejects += sum(manifest.rejects.values())
        if last and split not in self._done:
            self._bytes += self._plan.splits[split].size
        self._parts[split] = -1 if last else part + 1
        return True

    def _report(self, wave: int) -> None:
        progress = Progress(
            waves=self._plan.wave_count,
            wave=wave,
            bytes=self._bytes,
            total=self._plan.size,
            earlier=self._earlier,
            rows=self._rows,
            tokens=self._tokens,
            rejects=self._rejects,
            seconds=time.monotonic() - self._began,
            stage="run wave" if self._plan.order.sorts else "wave",
        )
        self._show(progress)
        self._status.tell(progress)


@contextmanager
def watching_merge(
    shards: Sequence[str],
    place: Storage,
    step: tuple[int, int],
    size: int,
    show: Callable[[Progress], None],
    status: Status,
) -> Iterator[None]:
    """Watch a pass over the runs of a plan in the background, until the block ends.

    Args:
        shards: those that it makes.
        place: where they lie.
        step: number of the pass, from 0, and of passes.
        size: bytes of text that it passes over, about.
        show, status: as of `Watcher`.
    """
    began = time.monotonic()
    waiting = deque(shards)
    found: list[Manifest] = []
    earlier: list[int] = []

    def look(ended: threading.Event | None = None) -> None:
        # In turns, since shards are finished in any order, and there may be many.
        for _ in range(len(waiting) if ended is None else min(LOOK_AHEAD, len(waiting))):
            if ended is not None and ended.is_set():
                return
            shard = waiting.popleft()
            manifest = read_manifest(place, shard)
            if manifest is None:
                waiting.append(shard)
            else:
                found.append(manifest)
        done = size * len(found) // max(1, len(shards))
        earlier[:] = earlier or [done]
        progress = Progress(
            waves=step[1],
            wave=step[0],
            bytes=done,
            total=size,
            earlier=earlier[0],
            rows=sum(m.rows for m in found),
            tokens=sum(m.elements.get("tokens", 0) for m in found),
            rejects=sum(sum(m.rejects.values()) for m in found),
            seconds=time.monotonic() - began,
            stage="pass",
        )
        show(progress)
        status.tell(progress)

    def watch(ended: threading.Event) -> None:
        look(ended)
        while not ended.wait(POLL_SECONDS):
            look(ended)

    try:
        with meanwhile("forebay-progress", watch):
            yield
    finally:
        look()


class Terminal:
    """Shows progress on standard error: one line that is rewritten, or plain lines in a log.

    Attributes:
        live: whether it is a terminal, where a line can be rewritten.
    """

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self._open = False  # whether a line is shown that has no end yet
        self._shown = time.monotonic()

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if self.live:
            sys.stderr.write("\r\x1b[K" + progress.line())
            self._open = True
        elif now - self._shown > LOG_SECONDS:
            sys.stderr.write(progress.line() + "\n")
            self._shown = now
        sys.stderr.flush()

    def end(self) -> None:
        """Let what is printed next begin on a line of its own."""
        if self._open:
            sys.stderr.write("\n")
            self._open = False
