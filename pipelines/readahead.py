"""Reading ahead: an iterator that runs in a thread of its own, a few items in front."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


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
