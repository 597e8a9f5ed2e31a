"""Loader: the batches of a dataset, step by step, for one rank, from any position."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, SupportsIndex

import numpy as np

from cachelib.errors import StateMismatch
from cachelib.nodes.base import Columns, Ordered
from cachelib.order.batches import Batches, Last
from cachelib.order.fingerprint import differences, fingerprint
from cachelib.order.indices import as_integer

STATE_FORMAT = 1


class Loader:
    """An iterator over global steps: each ``next`` gives this rank's part of one batch.

    Global batch k holds the same rows for any number of ranks: the rows of the dataset from the
    position on, in order; rank r gets the r-th of ``dp_world`` equal, contiguous parts. Ranks that
    work on the same rows (tensor, pipeline, context parallel) pass the same ``dp_rank``.

    Batches are read ahead by threads, which never changes what is delivered: the position moves
    when ``next`` returns a batch, and an error in reading is raised by the ``next`` it belongs to,
    which may be called again. Iterating anew goes on from the current position, so a loader that
    has come to its end stays there. ``close``, a ``with`` block and garbage collection stop the
    threads; the next ``next`` would start them again. A pickled loader keeps its position, and
    after a fork each process goes on by itself, where what it reads can be used there.

    Args:
        dataset: what is read.
        batch_size: rows of a batch over all ranks, a multiple of ``dp_world``.
        dp_rank: this rank, from 0 to ``dp_world - 1``.
        dp_world: number of data-parallel ranks.
        start: a saved state, or a step (of this batch size) to begin with; None is the start.
        last: at the end of a finite dataset, "drop" leaves out rows that fill no whole batch,
            "short" delivers them as a smaller batch, which must divide among the ranks as well.
        prefetch: batches read ahead, each by a thread of its own; 0 reads when asked.

    Raises:
        ValueError: a value that does not fit, or a dataset that has no batch at all.
        StateMismatch: ``start`` is a state of another order.
    """

    def __init__(
        self,
        dataset: Ordered,
        batch_size: SupportsIndex,
        *,
        dp_rank: SupportsIndex = 0,
        dp_world: SupportsIndex = 1,
        start: Mapping[str, Any] | SupportsIndex | None = None,
        last: Last = "drop",
        prefetch: SupportsIndex = 4,
    ) -> None:
        self.dataset = dataset
        batch_size = as_integer("batch_size", batch_size)
        dp_world = as_integer("dp_world", dp_world)
        self.batches = Batches(dataset.size, batch_size, dp_world, last)
        self.dp_rank = as_integer("dp_rank", dp_rank)
        self.prefetch = as_integer("prefetch", prefetch)
        if not 0 <= self.dp_rank < dp_world:
            raise ValueError(f"dp_rank must be from 0 to {dp_world - 1}, got {dp_rank}")
        if self.prefetch < 0:
            raise ValueError(f"prefetch must be 0 or more batches, got {prefetch}")
        if self.batches.span(0) is None:
            raise ValueError(
                f"there is no batch of {batch_size} in {dataset.size} rows (last={last!r})"
            )
        self._order = fingerprint(dataset.describe())
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ahead: _ReadAhead | None = None
        # Samples and step in one object, so that a state is consistent without the lock.
        self._position = (0, 0)
        if isinstance(start, Mapping):
            self.load_state_dict(start)
            return
        step = 0 if start is None else as_integer("start", start)
        if step < 0:
            raise ValueError(f"start must be a state or a step from 0 on, got {step}")
        self._move(step * batch_size, step)

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(
            Loader,
            dp_rank=self.dp_rank,
            dp_world=self.batches.world,
            start=self.state_dict(),
            last=self.batches.last,
            prefetch=self.prefetch,
        )
        return again, (self.dataset, self.batches.batch_size)

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
        """Batches from here to the end; None for an endless dataset."""
        return self.batches.remaining(self.samples)

    def batch(self, step: int) -> Columns:
        """This rank's part of the batch of any step, read at once; the position stays.

        Steps count in the present batch size, to both sides of the present position.

        Raises:
            IndexError: no batch begins there.
        """
        samples, present = self._position
        position = samples + (step - present) * self.batches.batch_size
        span = self.batches.span(position) if step >= 0 and position >= 0 else None
        if span is None:
            raise IndexError(f"there is no batch at step {step} of {self.dataset.size} rows")
        return _read(self.dataset, self.batches.part(span, self.dp_rank))

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Columns:
        with self._owned():
            samples, step = self._position
            span = self.batches.span(samples)
            if span is None:
                self._stop()
                raise StopIteration
            if self.prefetch:
                self._ahead = self._ahead or _ReadAhead(self.dataset, self.prefetch)
                batch = self._ahead.next(list(islice(self._parts(samples), self.prefetch + 1)))
            else:
                batch = _read(self.dataset, self.batches.part(span, self.dp_rank))
            self._position = (span.stop, step + 1)
            return batch

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches delivered so far: JSON of less than 1 KB.

        ``samples`` alone says where to go on; ``order`` says in which order. The rest is for
        people: batch size, world and cache version may change at a resume.
        """
        samples, step = self._position
        return {
            "format": STATE_FORMAT,
            "samples": samples,
            "step": step,
            "epoch": self.dataset.epoch_of(samples),
            "batch_size": self.batches.batch_size,
            "world": self.batches.world,
            "version": self.dataset.version,
            "order": dict(self._order),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batches that a state counts as delivered.

        A position at or beyond the end of a finite dataset is kept, and no batch is left.

        Raises:
            StateMismatch: the state is of another order, or is no state; names what differs.
            ValueError: the last batch from there on does not divide among the ranks.
        """
        if state.get("format") != STATE_FORMAT:
            raise StateMismatch(
                f"a loader's state has format {STATE_FORMAT}, found {state.get('format')!r}"
            )
        for key in ("samples", "step"):
            if type(state.get(key)) is not int or state[key] < 0:
                raise StateMismatch(
                    f"{key} of a loader's state is an integer from 0 on, found {state.get(key)!r}"
                )
        order = state.get("order")
        if not isinstance(order, Mapping):
            raise StateMismatch(f"order of a loader's state is a mapping, found {order!r}")
        found = differences(order, self._order)
        if found:
            raise StateMismatch(self._advice(found, state.get("version")))
        self._move(state["samples"], state["step"])

    def close(self) -> None:
        """Stop the threads that read ahead; the position stays."""
        with self._owned():
            self._stop()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _move(self, samples: int, step: int) -> None:
        self.batches.check(samples)
        with self._owned():
            self._stop()
            self._position = (samples, step)

    def _owned(self) -> threading.Lock:
        """The lock of this process: a fork copies neither threads nor who holds a lock."""
        if self._process != os.getpid():
            self._process, self._lock, self._ahead = os.getpid(), threading.Lock(), None
        return self._lock

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _parts(self, samples: int) -> Iterator[range]:
        """This rank's parts of the batches from a position on."""
        while (span := self.batches.span(samples)) is not None:
            yield self.batches.part(span, self.dp_rank)
            samples = span.stop

    def _advice(self, found: list[str], version: object) -> str:
        here = self.dataset.version
        if version != here:
            found = [
                *found,
                f"the state is of cache version {version} and this is version {here}: "
                f"if the cache has changed since, open it with version={version}",
            ]
        return f"the state belongs to another order: {'; '.join(found)}"


class _ReadAhead:
    """Reads the parts of coming batches by threads, a bounded number ahead.

    It holds the dataset and not the loader, so that a forgotten loader takes its threads along.
    """

    def __init__(self, dataset: Ordered, threads: int) -> None:
        self._threads = threads
        self._dataset = dataset
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="forebay-loader")
        self._reads: deque[tuple[range, Future[Columns]]] = deque()

    def next(self, coming: Sequence[range]) -> Columns:
        """The rows of the first of ``coming``, and a start on those after it."""
        # An interrupt may have come between a read taken and a position moved.
        if [part for part, _ in self._reads] != list(coming[: len(self._reads)]):
            self._forget()
        self._begin(coming[: self._threads])
        try:
            batch = self._reads[0][1].result()
        except Exception:
            self._forget()
            raise
        self._reads.popleft()
        self._begin(coming[1:])
        return batch

    def close(self) -> None:
        self._forget()
        self._pool.shutdown(wait=True)

    def _begin(self, parts: Sequence[range]) -> None:
        """Read ``parts``, the first of which are being read already."""
        for part in parts[len(self._reads) :]:
            self._reads.append((part, self._pool.submit(_read, self._dataset, part)))

    def _forget(self) -> None:
        while self._reads:
            self._reads.pop()[1].cancel()


def _read(dataset: Ordered, part: range) -> Columns:
    return dataset.take(np.arange(part.start, part.stop, dtype=np.int64))
