"""Growth: memory that a process takes while a piece of work runs in it."""

from __future__ import annotations

import threading
from collections.abc import Callable

NOISE = 4 << 20
"""Growth that other threads may cause as well; tables that matter grow by more at once."""


class Growth:
    """Memory that work has taken for good, as far as the process tells.

    Work that overlaps is one stretch: what the process grew by in it counts once, and not for each
    thread. Thread-safe.

    Args:
        resident: bytes of memory that the process has.
    """

    def __init__(self, resident: Callable[[], int]) -> None:
        self._resident = resident
        self._lock = threading.Lock()
        self._before = self._taken = self._running = 0
        self._overlaps = False

    def begin(self) -> None:
        """Say that work begins."""
        with self._lock:
            if self._running == 0:
                self._before, self._overlaps = self._resident(), False
            else:
                self._overlaps = True
            self._running += 1

    def end(self, given: int) -> int:
        """Say that work ends, and gave what it made: so many bytes, which others hold now.

        In a stretch of work that overlaps these are not left out, since nobody knows for how long
        they are held; they are as many as are in use at a time, and do not add up.

        Returns:
            bytes taken since the beginning, or since `forget`.
        """
        with self._lock:
            self._running -= 1
            grown = self._resident() - self._before - (0 if self._overlaps else given)
            if abs(grown) < NOISE:
                grown = 0
            if self._running:
                return self._taken + grown
            self._taken = max(0, self._taken + grown)
            return self._taken

    def forget(self) -> None:
        """Count from here on: what was taken is given back."""
        with self._lock:
            self._taken, self._before = 0, self._resident()
