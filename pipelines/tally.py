"""Tally: what was taken into a cache that grows, and what became of files otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cachelib.errors import CacheNotFound
from cachelib.format.commit import Commit
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.format.succession import add_counts
from cachelib.words import counted, legible

_OF_FILES = ("changed", "damaged", "vanished", "holdout")
"""What is not told again for the cache of what is held out."""


@dataclass
class Tally:
    """What a watch or a stream has seen and done so far, for one cache.

    Attributes:
        url: of the cache.
        version: newest version, -1 where there is no cache yet.
        rows: of the cache.
        taken: names of the sources that its own commits took in, whole or in part.
        commits, new_rows, new_tokens, records, rejects: of its own commits, which add rows.
        changed: names of files left out because they changed after they were taken in.
        damaged: names of files set aside because they cannot be used, with the fault.
        vanished: files that went before they were read.
        holdout: of the cache of what is held out, None where nothing is; what became of files
            otherwise is counted in the one of the rest alone.
    """

    url: str
    version: int = -1
    rows: int = 0
    taken: set[str] = field(default_factory=set)
    commits: int = 0
    new_rows: int = 0
    new_tokens: int = 0
    records: int = 0
    rejects: dict[str, int] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)
    vanished: int = 0
    holdout: Tally | None = None

    @property
    def files(self) -> int:
        """How many sources were taken in."""
        return len(self.taken)

    def see(self, commit: Commit) -> None:
        """Take note of the newest commit, whoever made it."""
        self.version, self.rows = commit.version, commit.totals["rows"]

    def take(self, commits: Sequence[Commit], sources: set[str]) -> str:
        """Count own commits, and the sources that they took in; returns a line that tells it."""
        rows = sum(int(commit.entries.rows.sum()) for commit in commits)
        tokens = sum(int(commit.entries.elements["tokens"].sum()) for commit in commits)
        rejects = add_counts(commit.rejects for commit in commits)
        self.taken |= sources
        self.commits += len(commits)
        self.new_rows += rows
        self.new_tokens += tokens
        self.records += sum(commit.records for commit in commits)
        self.rejects = add_counts([self.rejects, rejects])
        lost = f", {counted(sum(rejects.values()), 'reject')}" if rejects else ""
        return (
            f"version {commits[-1].version}: {counted(rows, 'row')} and "
            f"{counted(tokens, 'token')} more{lost}"
        )

    def leave_out(self, name: str) -> str:
        """Count a file that changed after it was taken in; returns a line that tells it."""
        self.changed.add(name)
        return f"left out {name}: it changed after it was taken in"

    def miss(self, name: str) -> str:
        """Count a file that went too soon; returns a line that tells it."""
        self.vanished += 1
        return f"vanished {name}: it went before it was read"

    def set_aside(self, name: str, fault: str, *, before: bool = False) -> str:
        """Count a file that cannot be used, or could not; returns a line that tells it."""
        self.damaged[name] = told = legible(fault)
        return f"set aside {'before ' if before else ''}{name}: {told}"

    def to_json(self) -> dict[str, Any]:
        """All but the names of what was taken in."""
        told = {**asdict(self), "files": self.files, "changed": sorted(self.changed)}
        del told["taken"]
        if self.holdout is not None:
            held = self.holdout.to_json()
            told["holdout"] = {key: held[key] for key in held if key not in _OF_FILES}
        return told


def sources_of(ledger: Ledger, commits: Sequence[Commit]) -> set[str]:
    """The names of the sources that commits took in, whole or in part."""
    stored = ledger.checkpointed([c.coverage for c in commits if c.coverage is not None])
    return {name for delta in stored for name in delta["source"]}


class Head:
    """The newest commit of a cache, which is to stay that cache.

    Args:
        storage: of the cache, which there may not be yet.
    """

    def __init__(self, storage: Storage) -> None:
        self._ledger = Ledger(storage)
        head = self._ledger.head()
        self.commit = None if head is None else self._ledger.commit(head)

    def since(self) -> list[Commit]:
        """The commits since the last call.

        Raises:
            CacheNotFound: the cache was deleted, or another one is in its place.
        """
        head, before = self._ledger.head(), self.commit
        if before is None:
            commits = [] if head is None else self._ledger.commits(0, head + 1)
        elif head is None or head < before.version:
            raise self._gone(before)
        else:
            there, *commits = self._ledger.commits(before.version, head + 1)
            if there.digest != before.digest:
                raise self._gone(before)
        if commits:
            self.commit = commits[-1]
        return commits

    def _gone(self, before: Commit) -> CacheNotFound:
        return CacheNotFound(
            f"{self._ledger.storage.url}: the cache was deleted or replaced while it was being "
            f"filled: version {before.version} is gone. Delete what is left there and start the "
            "command again to fill a new one, which takes in what the inputs have"
        )
