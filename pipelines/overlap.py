"""Overlap: threads that read ahead of the work at hand, write behind it, or work meanwhile."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

Item = TypeVar("Item")


@contextmanager
def meanwhile(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Work in a thread of that name until the block has ended, of which the event tells it."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def read_ahead(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """The items, made by a background thread that is at most `depth` of them ahead.

    An error of the iterator is raised where its item would have come. Closing this generator stops
    the thread after the item it is making, and closes the iterator there.
    """
    ready: queue.Queue[tuple[str, Item | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def offer(kind: str, value: Item | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not offer("item", item):
                    break
            else:
                offer("end", None)
        except BaseException as error:
            offer("error", error)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=make, name="forebay-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(value, BaseException)
                raise value
            yield value  # type: ignore[misc]
    finally:
        stopped.set()


class WriteBehind:
    """Does tasks in the background, one after another in the order given; a context manager.

    After a task that fails none is done: they all fail with its error.

    Args:
        depth: tasks that may wait; whoever gives one more waits, too.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._pool = ThreadPoolExecutor(1, "forebay-write-behind")
        self._waiting: deque[Future[object]] = deque()
        self._failed: BaseException | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def do(self, task: Callable[[], Item]) -> Future[Item]:
        """Hand over a task.

        Raises:
            BaseException: that of an earlier task.
        """
        while len(self._waiting) >= self._depth:
            self._waiting.popleft().result()
        future = self._pool.submit(self._run, task)
        self._waiting.append(future)  # type: ignore[arg-type]
        return future

    def _run(self, task: Callable[[], Item]) -> Item:
        if self._failed is not None:
            raise self._failed
        try:
            return task()
        except BaseException as error:
            self._failed = error
            raise


class AtOnce:
    """Does tasks as they are given; in place of `WriteBehind` where that is running already."""

    def do(self, task: Callable[[], Item]) -> Future[Item]:
        """Do a task; its error is raised."""
        future: Future[Item] = Future()
        future.set_result(task())
        return future
