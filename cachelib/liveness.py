"""Liveness: whether somebody builds a cache, by the status objects that builders rewrite.

Clocks are never compared: what counts is for how long a status has stayed as it is, by the clock
of whoever looks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from cachelib.errors import CorruptData
from cachelib.format.canonical import unseal
from cachelib.format.storage import Storage

State = Literal["running", "ended", "failed", "unknown"]


@dataclass(frozen=True)
class Sign:
    """What the status of a builder tells.

    Attributes:
        state: as the status says; "unknown" where there is none.
        age: seconds for which it has been seen as it is, or for which there was none.
        name: of the status object's key, "" where there is none.
        status: its content.
    """

    state: State
    age: float
    name: str
    status: dict[str, Any]

    def __str__(self) -> str:
        if self.state == "unknown":
            return "no builder has a status there"
        told = f"{self.name} says {self.state!r}"
        if self.status.get("message"):
            told += f" ({self.status['message']})"
        if "wave" in self.status and self.state == "running":
            told += f", wave {self.status['wave'] + 1} of {self.status['waves']}"
        if self.status.get("waiting"):
            since = self.status["idle"]
            told += (
                f", {self.status['waiting']} files were found of which nothing is committed, and "
                f"nothing was committed for {since:.0f} s"
            )
        return f"{told}, unchanged for {self.age:.0f} s"


class Builders:
    """Looks at the status objects of a cache. For one thread at a time.

    Args:
        storage: of the cache.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._began = time.monotonic()
        self._seen: dict[str, tuple[bytes | None, float]] = {}

    def look(self, plan: str) -> Sign:
        """The builder that shows most life.

        Args:
            plan: the one that the newest commit carries out, "" where that is not known; statuses
                of earlier plans do not count.
        """
        keys = [
            key
            for key in self._storage.list("_status/")
            if key >= f"_status/{plan}"
            and not key.endswith(".failure.json")
            and "/" not in key.removeprefix("_status/")
        ]
        now = time.monotonic()
        signs = []
        for key, data in zip(keys, self._storage.read_many(keys), strict=True):
            before = self._seen.get(key)
            if before is None or before[0] != data:
                self._seen[key] = (data, now)
            signs.append(self._sign(key, data, now - self._seen[key][1]))
        if not signs:
            return Sign("unknown", now - self._began, "", {})
        running = [sign for sign in signs if sign.state == "running"]
        return min(running, key=lambda sign: sign.age) if running else signs[-1]

    def _sign(self, key: str, data: bytes | None, age: float) -> Sign:
        try:
            status = {} if data is None else unseal(data, self._storage.where(key))
        except CorruptData:  # it is being written
            status = {}
        return Sign(status.get("state", "running"), age, key, status)
