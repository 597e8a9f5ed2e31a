"""Latest: a bounded memory of what was used last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Latest(Generic[Key, Value]):
    """The values used last, by key, up to a sum of their sizes. Thread-safe.

    Args:
        limit: of the sum of sizes.
        size: of a value; without it each counts 1.
    """

    def __init__(self, limit: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit = limit
        self._size = size
        self._held = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """What ``make`` gave for a key, or gives now; two threads may both make it."""
        found = self.find([key])
        if key not in found:
            found[key] = make()
            self.keep(found.items())
        return found[key]

    def find(self, keys: Iterable[Key]) -> dict[Key, Value]:
        """What is held of some keys."""
        found = {}
        with self._lock:
            for key in keys:
                if key in self._values:
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
        return found

    def forget(self, key: Key) -> None:
        """Let go of a value, if it is held."""
        with self._lock:
            if key in self._values:
                self._held -= self._size(self._values.pop(key))

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._values.clear()
            self._held = 0

    @property
    def room(self) -> int:
        """What can still be held without letting go of anything, in sizes."""
        return self._limit - self._held

    def keep(self, items: Iterable[tuple[Key, Value]]) -> None:
        """Hold values, and let go of those used longest ago beyond the limit."""
        with self._lock:
            for key, value in items:
                if key not in self._values:
                    self._values[key] = value
                    self._held += self._size(value)
            while self._held > self._limit:
                self._held -= self._size(self._values.popitem(last=False)[1])
