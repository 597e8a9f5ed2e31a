"""Loader: the batches of a dataset, step by step, for one rank, from any position."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, SupportsIndex

from cachelib.errors import StateMismatch
from cachelib.nodes.base import TRACED, Columns, Ordered, Origin, grows, ready, wait
from cachelib.nodes.leaves import why_empty
from cachelib.order.batches import Batches, Last, Part, Uneven
from cachelib.order.fingerprint import differences, fingerprint
from cachelib.order.indices import LARGEST, as_integer
from cachelib.order.schedule import Schedule
from cachelib.ragged import Ragged
from cachelib.recipe import recipe
from cachelib.switch import switched

STATE_FORMAT = 1

WEIGHT = "weight"
"""The column that tells samples (1) from padding (0)."""

PREFETCH_BYTES = 256 << 20

PREFETCH_MOST = 256
"""Batches read ahead, at most: each has a thread of its own."""

Batch = Any
"""A rank's part of a batch as columns, or the list of its micro-batches where there are several."""

BatchSize = SupportsIndex | Sequence[tuple[SupportsIndex, SupportsIndex]]
"""Rows of a batch, or (sample, rows) pairs: from that sample on, batches have so many rows."""

Ranks = SupportsIndex | Sequence[SupportsIndex]
"""A data-parallel rank, or several."""


class Loader:
    """An iterator over global steps: each ``next`` gives this rank's part of one batch.

    Global batch k holds the same rows for any number of ranks: the rows of the dataset from the
    position on, in order; rank r gets the r-th of ``dp_world`` equal, contiguous parts. Ranks that
    work on the same rows (tensor, pipeline, context parallel) pass the same ``dp_rank``. One step
    is one optimizer step: with ``micro_batches`` above 1, ``next`` gives a list of so many equal,
    contiguous pieces of the rank's part.

    Where rows may be padding, batches have a column ``weight``, float32 of shape (rows,): 1 for the
    dataset's rows, 0 for padding, which repeats the last row of the batch.

    Batches are read ahead by threads, which never changes what is delivered: the position moves
    when ``next`` returns a batch, and an error in reading is raised by the ``next`` it belongs to,
    which may be called again. Iterating anew goes on from the current position, so a loader that
    has come to its end stays there. ``close``, a ``with`` block and garbage collection stop the
    threads; the next ``next`` would start them again. A pickled loader keeps its position, and
    after a fork each process goes on by itself, where what it reads can be used there.

    Args:
        dataset: what is read.
        batch_size: rows of a batch over all ranks, a multiple of ``dp_world * micro_batches``; or
            stages of sizes: [(0, 256), (100_000, 512)] has 512 rows from the batch on that begins
            at sample 100,000 or after it.
        dp_rank: this rank, from 0 to ``dp_world - 1``, which must be given where ``dp_world`` is
            above 1; or several ranks, whose parts (of each micro-batch) are given one after
            another.
        dp_world: number of data-parallel ranks.
        micro_batches: pieces of a rank's part.
        start: a saved state, or a step (in these batch sizes) to begin with; None is the start.
            Where no batch is left from there on, a warning (UserWarning) says so.
        last: at the end of a finite dataset, "drop" leaves out rows that fill no whole batch,
            "short" delivers them as a smaller batch, which must divide among the ranks as well,
            "pad" as one that is padded to the full size.
        uneven: a batch that does not divide among ranks and micro-batches is an "error", or gets
            "pad"ding up to the next multiple.
        tell: columns that batches have besides, of "component", "row" and "epoch": which row
            stands there, as `Dataset.trace` tells.
        prefetch: batches read ahead, up to 256, each by a thread of its own; 0 reads when asked.
        prefetch_bytes: of batches read ahead, at most, as the last one tells; one is always read.

    Raises:
        ValueError: a value that does not fit, or a dataset that has no batch at all.
        StateMismatch: ``start`` is a state of another order.
    """

    def __init__(
        self,
        dataset: Ordered,
        batch_size: BatchSize,
        *,
        dp_rank: Ranks | None = None,
        dp_world: SupportsIndex = 1,
        micro_batches: SupportsIndex = 1,
        start: Mapping[str, Any] | SupportsIndex | None = None,
        last: Last = "drop",
        uneven: Uneven = "error",
        tell: Sequence[str] = (),
        prefetch: SupportsIndex = 4,
        prefetch_bytes: SupportsIndex = PREFETCH_BYTES,
    ) -> None:
        self.dataset = dataset
        dp_world = as_integer("dp_world", dp_world)
        self._batches = Batches(
            dataset.size,
            _schedule(batch_size),
            dp_world,
            as_integer("micro_batches", micro_batches),
            last,
            uneven,
            dataset.borders,
        )
        self._grows = grows(dataset.node)
        if self._grows and last == "short" and uneven == "error" and self._batches.shares > 1:
            raise ValueError(
                "last='short' of a followed cache may be a batch that does not divide among "
                f"{self._batches.among}: use last='drop', last='pad' or uneven='pad'"
            )
        self.dp_ranks = _ranks(dp_rank, dp_world)
        self.prefetch = as_integer("prefetch", prefetch)
        self.prefetch_bytes = as_integer("prefetch_bytes", prefetch_bytes)
        if (
            isinstance(tell, str)
            or not isinstance(tell, Sequence)
            or any(name not in TRACED for name in tell)
        ):
            raise ValueError(f"tell must be some of {TRACED}, in a list, got {tell!r}")
        self.tell = tuple(tell)
        if not 0 <= self.prefetch <= PREFETCH_MOST:
            raise ValueError(
                f"prefetch must be from 0 to {PREFETCH_MOST} batches, since a thread reads each of "
                f"them, got {prefetch}"
            )
        if self.prefetch_bytes < 0:
            raise ValueError(f"prefetch_bytes must be 0 or more, got {prefetch_bytes}")
        if self.batches.span(0) is None:
            size = self.batches.schedule.size_at(0)
            raise ValueError(
                f"there is no batch of {size} in {dataset.size} rows (last={last!r})"
                f"{why_empty(dataset.node)}"
            )
        self.stalled = 0.0
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = 0  # how often
        self._ahead: _ReadAhead | None = None
        # Samples and step in one object, so that a state is consistent without the lock.
        self._position = self._started = (0, 0)
        self._switched = 0  # the step from which on the run has this order
        if isinstance(start, Mapping):
            self.load_state_dict(start)
            return
        if start is not None and not isinstance(start, SupportsIndex):
            raise TypeError(
                f"start must be an integer, got {start!r:.200}, or a saved state, which is a "
                "mapping: json.loads makes one of text"
            )
        step = 0 if start is None else as_integer("start", start)
        if step < 0:
            raise ValueError(f"start must be a state or a step from 0 on, got {step}")
        steps = self.batches.remaining(0)
        if steps is not None and step > steps:
            raise ValueError(
                f"start must be a step up to {steps}, where the {dataset.size} rows end, got {step}"
            )
        self._move(self.batches.schedule.after(0, step), step)
        self._started = (0, 0)
        self._warn_of_the_end()

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(
            Loader,
            dp_rank=self.dp_ranks,
            dp_world=self.batches.world,
            micro_batches=self.batches.micro,
            start=self.state_dict(),
            last=self.batches.last,
            uneven=self.batches.uneven,
            tell=self.tell,
            prefetch=self.prefetch,
            prefetch_bytes=self.prefetch_bytes,
        )
        return again, (self.dataset, self.batches.schedule.stages), {"_started": self._started}

    @property
    def batches(self) -> Batches:
        """How the dataset is cut; where it ends, of one that grows, is told once it is known."""
        size = self.dataset.size
        return self._batches if size == self._batches.size else replace(self._batches, size=size)

    @property
    def samples(self) -> int:
        """Rows delivered so far over all ranks: the global position in the dataset."""
        return self._position[0]

    @property
    def step(self) -> int:
        """Batches delivered so far, which is the number of the next one."""
        return self._position[1]

    @property
    def remaining(self) -> int | None:
        """Batches from here to the end; None for an endless dataset, or where it is not known."""
        return self.batches.remaining(self.samples)

    def batch(self, step: SupportsIndex) -> Batch:
        """This rank's part of the batch of any step, read at once; the position stays.

        Steps count in the batch sizes given here from the state that the loader was started from,
        or from where its description says that these sizes began; those before it only where
        these sizes lead there from step 0. Steps before a switch from another order were served
        in that one, and are not told.

        Raises:
            IndexError: no batch begins there, or it is not known where it began, or the run had
                another order then.
        """
        return self._pieces(self._reader(self._part(self.span(step))))

    def seek(self, step: SupportsIndex) -> Loader:
        """Go to a step, forwards or back, in the time of one batch; returns this loader.

        Args:
            step: the number of the batch that comes next, as for `batch`.

        Raises:
            IndexError: as of `batch`.
        """
        span, started = self.span(step), self._started
        self._move(span.start, as_integer("step", step))
        self._started = started
        return self

    def explain(self, step: SupportsIndex, row: SupportsIndex) -> list[Origin]:
        """What a row of the whole batch of a step, over all ranks, is made of.

        Args:
            step: as for `batch`.
            row: from 0 to the number of rows of the batch, padding left out.

        Raises:
            IndexError: there is no such batch, or no such row in it.
        """
        span, row = self.span(step), as_integer("row", row)
        if not 0 <= row < len(span):
            raise IndexError(f"row {row} is outside the {len(span)} rows of the batch {step}")
        return self.dataset.origins(span[row])

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        self._wait_for_rows()
        with self._owned():
            samples, step = self._position
            span = self.batches.span(samples)
            if span is None:
                self._stop()
                raise StopIteration
            began = perf_counter()
            try:
                batch = self._read_next(samples, span)
            finally:
                self.stalled += perf_counter() - began
            self._position = (span.stop, step + 1)
            return self._pieces(batch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches delivered so far: JSON of less than 1 KB.

        ``samples`` alone says where to go on; ``order`` says in which order. The rest is for
        people: batch size, world and cache version may change at a resume. ``switched`` is there
        if the run went on in another order (see `load_state_dict`), and is the step of it.
        """
        samples, step = self._position
        switched = {"switched": self._switched} if self._switched else {}
        return {
            "format": STATE_FORMAT,
            "samples": samples,
            "step": step,
            "epoch": self.dataset.epoch_of(samples),
            "batch_size": self.batches.schedule.size_at(samples),
            "world": self.batches.world,
            "version": self.dataset.version,
            "order": fingerprint(self.dataset.describe(samples)),
            **switched,
        }

    def description(self) -> dict[str, Any]:
        """What the dataset is, as JSON of any size, to be saved once beside the states of a run.

        With it a mismatch of a state names values and not digests, and `cachelib.rebuild` makes
        the dataset again. ``order`` is what the order depends on, ``dataset`` what the dataset is
        made of and where its caches are, ``batches`` how it is cut: sizes, ``last``, and as
        ``start`` the samples and steps that were delivered when the run began with these sizes.
        """
        return {
            "format": STATE_FORMAT,
            "order": self.dataset.describe(),
            "dataset": recipe(self.dataset.node),
            "batches": {
                "sizes": [list(stage) for stage in self.batches.schedule.stages],
                "last": self.batches.last,
                "start": list(self._started),
            },
        }

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        description: Mapping[str, Any] | None = None,
        override: bool = False,
    ) -> None:
        """Go on after the batches that a state counts as delivered.

        A position at or beyond the end of a finite dataset is kept, and a warning (UserWarning)
        tells that no batch is left.

        Args:
            state: as `state_dict` gave it.
            description: what `description` gave in the run that the state is of. Where its batch
                sizes are those given here, steps can be named from its start on.
            override: go on at the same position where the order is another one; what that does to
                the rows served so far is told by a warning (UserWarning): how many of them will be
                served again and how many of this order left out, exactly if the description is
                given and they can be counted, else at most. Steps before are named no more.

        Raises:
            StateMismatch: the state is of another order, or is no state; names what differs.
            ValueError: the last batch from there on does not divide among the ranks.
        """
        if not isinstance(override, bool):
            raise TypeError(f"override must be True or False, got {override!r}")
        check_state(state)
        if description is not None:
            _check_description(description)
        wait(self.dataset.node, state["samples"])
        order = state["order"]
        here = fingerprint(self.dataset.describe(state["samples"]))
        # What is said of the differences is of both orders whole: a description is no beginning.
        told = None if description is None else (description["order"], self.dataset.describe())
        found = differences(order, here, told)
        if found and not override:
            if description is None and any("'#" in line for line in found):
                found.append("load_state_dict(state, description=...) names values for digests")
            raise StateMismatch(self._advice(found, state.get("version")))
        self._move(state["samples"], state["step"])
        self._switched = state["step"] if found else state.get("switched", 0)
        self._warn_of_the_end()
        if description is not None and not found:
            self._started = self._begun(state, description)
        if found:
            effect = switched(state, description, self.dataset.node)
            warnings.warn(
                f"going on at sample {state['samples']:,} in another order ({'; '.join(found)}): "
                f"{effect}",
                stacklevel=2,
            )

    def skip(self, batches: int) -> None:
        """Count the next batches, 0 or more, as delivered, without reading them."""
        if not batches:
            return  # what is read ahead stays
        samples, step = self._position
        started = self._started
        self._move(self.batches.schedule.after(samples, batches), step + batches)
        self._started = started

    def close(self) -> None:
        """Stop the threads that read ahead, and who waits for rows to come; the position stays."""
        self._closed += 1
        with self._owned():
            self._stop()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for_rows(self) -> None:
        """Wait until the rows of the next batch are there, or it is known that there are less.

        Others may meanwhile close the loader, so nothing is locked.
        """
        if self._grows:
            closed = self._closed
            samples = self.samples
            stop = samples + self._batches.schedule.size_at(samples)
            began = perf_counter()
            try:
                wait(self.dataset.node, stop, given_up=lambda: self._closed != closed)
            finally:
                self.stalled += perf_counter() - began

    def _move(self, samples: int, step: int) -> None:
        self.batches.check(samples)
        with self._owned():
            self._stop()
            self._position = self._started = (samples, step)

    def _begun(self, state: Mapping[str, Any], description: Mapping[str, Any]) -> tuple[int, int]:
        """Samples and step at which the run of a state began with the batch sizes given here.

        Those of the state itself where the description tells of none that lead to it.
        """
        schedule, step = self.batches.schedule, state["step"]
        match description.get("batches"):
            case {"sizes": sizes, "start": [int(samples), int(first)]} if (
                sizes == [list(stage) for stage in schedule.stages]
                and first <= step
                and schedule.after(samples, step - first) == state["samples"]
            ):
                return samples, first
        return state["samples"], step

    def _warn_of_the_end(self) -> None:
        samples, step = self._position
        if self.batches.span(samples) is None:
            warnings.warn(
                f"nothing is left: at sample {samples} (step {step}) the {self.dataset.size} rows "
                f"have no more batch of {self.batches.schedule.size_at(samples)} "
                f"(last={self.batches.last!r})",
                stacklevel=3,
            )

    def _owned(self) -> threading.Lock:
        """The lock of this process: a fork copies neither threads nor who holds a lock."""
        if self._process != os.getpid():
            self._process, self._lock, self._ahead = os.getpid(), threading.Lock(), None
        return self._lock

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _read_next(self, samples: int, span: range) -> Columns:
        if not self.prefetch:
            return self._reader(self._part(span))
        self._ahead = self._ahead or _ReadAhead(self._reader, self.prefetch, self.prefetch_bytes)
        return self._ahead.next(list(islice(self._parts(samples), self.prefetch + 1)))

    @property
    def _reader(self) -> _Reader:
        return _Reader(self.dataset, self.batches.pads, self.tell)

    def span(self, step: SupportsIndex) -> range:
        """The samples of the whole batch of a step, over all ranks; steps as for `batch`.

        Raises:
            IndexError: as of `batch`.
        """
        step = as_integer("step", step)
        if self._switched and step < self._switched:
            raise IndexError(
                f"step {step} lies before step {self._switched}, where the run went on in this "
                "order (override=True), and had another one: ask a loader of that order, from a "
                "state at or before that step"
            )
        schedule = self.batches.schedule
        samples, first = self._started
        position = None
        if step >= first:
            position = schedule.after(samples, step - first)
        elif schedule.after(0, first) != samples:
            raise IndexError(
                f"step {step} lies before the state that was started from (step {first}, sample "
                f"{samples}), whose batches may have had other sizes: give the sizes of the whole "
                "run, as in batch_size=[(0, 8), (80, 4)], or ask from a state at or before that "
                "step"
            )
        elif step >= 0:
            position = schedule.after(0, step)
        span = None if position is None else self.batches.span(position)
        if span is None or span[-1] > LARGEST:
            size = self.dataset.size
            of = f"{size} rows"
            if size is None:
                of = f"an endless dataset, whose samples are counted from 0 to {LARGEST}"
            raise IndexError(f"there is no batch at step {step} of {of}")
        return span

    def _part(self, span: range) -> Part:
        return self.batches.part(span, self.dp_ranks)

    def _parts(self, samples: int) -> Iterator[Part]:
        """This rank's parts of the batches from a position on, as far as rows are there."""
        while (span := self.batches.span(samples)) is not None:
            yield self._part(span)
            samples = span.stop
            stop = samples + self._batches.schedule.size_at(samples)
            if self._grows and not ready(self.dataset.node, stop):
                return

    def _pieces(self, columns: Columns) -> Batch:
        """The micro-batches of a part, or the part where it is the only one."""
        micro = self.batches.micro
        return columns if micro == 1 else _cut(columns, micro)

    def _advice(self, found: list[str], version: object) -> str:
        here = self.dataset.version
        if version is None and here is not None:
            found = [*found, "the state is of a followed cache: open it with follow=True"]
            version = here
        if isinstance(version, Mapping) and isinstance(here, Mapping):
            version = {name: v for name, v in version.items() if v != here.get(name, v)}
            here = {name: here[name] for name in version}
        if version != here and here is not None:
            found = [
                *found,
                f"the state is of cache version {version} and this is version {here}: "
                f"if the cache has changed since, open it with version={version}",
            ]
        return f"the state belongs to another order: {'; '.join(found)}"


def check_state(state: object) -> None:
    """Check that a value has the form of a loader's state, of whatever order.

    Raises:
        StateMismatch: it has not; names what it is.
    """
    if not isinstance(state, Mapping):
        raise StateMismatch(f"a loader's state is a mapping, {_found(state)}")
    if "dataset" in state:
        raise StateMismatch(
            "a loader's state was expected, found a description: give what state_dict() gave, and "
            "this as load_state_dict(state, description=...)"
        )
    found = state.get("format")
    if type(found) is not int or found != STATE_FORMAT:
        raise StateMismatch(f"a loader's state has format {STATE_FORMAT}, found {found!r}")
    for key in ("samples", "step", "switched"):
        value = state.get(key, 0 if key == "switched" else None)  # most runs have one order
        if type(value) is not int or value < 0:
            raise StateMismatch(
                f"{key} of a loader's state is an integer from 0 on, found {value!r}"
            )
    if not isinstance(state.get("order"), Mapping):
        raise StateMismatch(f"order of a loader's state is a mapping, found {state.get('order')!r}")


def _check_description(description: object) -> None:
    if not isinstance(description, Mapping):
        raise StateMismatch(f"a loader's description is a mapping, {_found(description)}")
    order = description.get("order")
    if "dataset" not in description or not isinstance(order, Mapping) or "kind" not in order:
        kind = "a loader's state" if "samples" in description else "something else"
        raise StateMismatch(
            f"a loader's description was expected, found {kind}: give what description() gave in "
            "the run that the state is of"
        )


def _found(value: object) -> str:
    advice = ": json.loads makes one of text" if isinstance(value, str | bytes) else ""
    return f"found {type(value).__name__}{advice}"


@dataclass(frozen=True)
class _Reader:
    """Reads the rows of a part, with the columns that a loader adds."""

    dataset: Ordered
    weighted: bool
    tell: tuple[str, ...]

    def __call__(self, part: Part) -> Columns:
        indices = part.indices
        columns = self.dataset.take(indices)
        added: Columns = {}
        if self.weighted:
            added[WEIGHT] = part.weight
        if self.tell:
            traced = self.dataset.trace(indices)
            added |= {name: traced[name] for name in self.tell}
        for name in added:
            if name in columns:
                raise ValueError(
                    f"the dataset has a column {name!r} already, which was to be added"
                )
        return {**columns, **added}


class _ReadAhead:
    """Reads the parts of coming batches by threads, a bounded number ahead.

    It holds no loader, so that a forgotten loader takes its threads along.
    """

    def __init__(self, read: Callable[[Part], Columns], threads: int, limit: int) -> None:
        self._depth = self._threads = threads
        self._limit = limit
        self._read = read
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="forebay-loader")
        self._reads: deque[tuple[Part, Future[Columns]]] = deque()

    def next(self, coming: Sequence[Part]) -> Columns:
        """The rows of the first of ``coming``, and a start on those after it."""
        # An interrupt may have come between a read taken and a position moved.
        if [part for part, _ in self._reads] != list(coming[: len(self._reads)]):
            self._forget()
        self._begin(coming[: self._depth])
        try:
            batch = self._reads[0][1].result()
        except Exception:
            self._forget()
            raise
        self._reads.popleft()
        self._depth = max(1, min(self._threads, self._limit // max(1, _nbytes(batch))))
        self._begin(coming[1 : 1 + self._depth])
        return batch

    def close(self) -> None:
        self._forget()
        self._pool.shutdown(wait=True)

    def _begin(self, parts: Sequence[Part]) -> None:
        """Read ``parts``, the first of which are being read already."""
        for part in parts[len(self._reads) :]:
            self._reads.append((part, self._pool.submit(self._read, part)))

    def _forget(self) -> None:
        while self._reads:
            self._reads.pop()[1].cancel()


def _schedule(batch_size: BatchSize) -> Schedule:
    stages: Any = batch_size if isinstance(batch_size, list | tuple) else [(0, batch_size)]
    for stage in stages:
        if not isinstance(stage, list | tuple) or len(stage) != 2:
            raise TypeError(
                "batch_size must be a number of rows, or stages as (sample, rows) pairs such as "
                f"[(0, 256), (100_000, 512)], got {batch_size!r}"
            )
    sample, rows = "a stage of batch_size", "batch_size"
    return Schedule(tuple((as_integer(sample, at), as_integer(rows, n)) for at, n in stages))


def _ranks(dp_rank: Ranks | None, world: int) -> tuple[int, ...]:
    if dp_rank is None:
        if world > 1:
            raise ValueError(
                f"dp_world={world} needs dp_rank, from 0 to {world - 1}: without it every rank "
                "would read the same part"
            )
        return (0,)
    given = dp_rank if isinstance(dp_rank, Sequence) else [dp_rank]
    ranks = tuple(as_integer("dp_rank", rank) for rank in given)
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"dp_rank must be a rank, or several different ones, got {dp_rank}")
    if not all(0 <= rank < world for rank in ranks):
        raise ValueError(f"dp_rank must be from 0 to {world - 1}, got {dp_rank}")
    return ranks


def _cut(columns: Columns, count: int) -> list[Columns]:
    """Equal, contiguous pieces of columns, without a copy."""
    rows = len(next(iter(columns.values()))) // count

    def piece(column: Any, start: int) -> Any:
        if isinstance(column, Ragged):
            return column.slice(start, start + rows)
        return column[start : start + rows]

    return [
        {name: piece(column, i * rows) for name, column in columns.items()} for i in range(count)
    ]


def _nbytes(columns: Columns) -> int:
    return sum(c.values.nbytes if isinstance(c, Ragged) else c.nbytes for c in columns.values())
