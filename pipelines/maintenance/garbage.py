"""Garbage: which attempts no version needs that is to be kept, and which versions expire. Pure.

An attempt is a folder of arrays, named (shard, attempt). Some versions of the ledger need it: from
the commit that adds it to the one that puts another in its place. It is garbage if none of those
versions is kept. A version has expired once anything that it needs is garbage; where all that an
old version needs is needed by a newer one, too, there is nothing to gain, and it stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cachelib.format.commit import Commit

Attempt = tuple[str, str]
"""Ids of a shard and of an attempt of it."""

Range = tuple[int, int]
"""Versions [start, stop)."""

Expired = tuple[int, int, int]
"""Versions [start, stop), and that of the commit that let them expire."""


@dataclass
class History:
    """What the commits of a ledger so far tell about attempts.

    Attributes:
        versions: how many commits these are.
        rows: of every attempt that was ever named, the rows in its arrays.
        appends: the version and the plan, if any, of each commit that added rows.
        retires: versions of the commits that gave up attempts.
    """

    versions: int = 0
    rows: dict[Attempt, int] = field(default_factory=dict)
    appends: list[tuple[int, str | None]] = field(default_factory=list)
    retires: list[int] = field(default_factory=list)
    _since: dict[Attempt, int] = field(default_factory=dict)
    _ended: dict[Attempt, list[Range]] = field(default_factory=dict)
    _attempts: dict[str, str] = field(default_factory=dict)

    def add(self, commit: Commit) -> None:
        """Take in the next commit."""
        entries = commit.entries
        added = list(zip(entries.shard, entries.attempt, strict=True))
        removed = [(shard, self._attempts.pop(shard)) for shard in commit.removed]
        for attempt in set(removed) - set(added):
            life = (self._since.pop(attempt), commit.version)
            self._ended.setdefault(attempt, []).append(life)
        for attempt, rows in zip(added, entries.rows.tolist(), strict=True):
            self.rows[attempt] = rows
            self._since.setdefault(attempt, commit.version)
        self._attempts.update(added)
        if commit.operation in ("create", "append"):
            self.appends.append((commit.version, commit.task.get("plan")))
        if commit.operation == "retire":
            self.retires.append(commit.version)
        self.versions = commit.version + 1

    def lives(self, attempt: Attempt) -> Iterator[Range]:
        """The versions that need an attempt."""
        yield from self._ended.get(attempt, ())
        if attempt in self._since:
            yield (self._since[attempt], self.versions)

    def newest(self, keep: int) -> int:
        """The first of the newest versions: so many that do more than give up attempts."""
        left = keep
        retires = set(self.retires)
        for version in range(self.versions - 1, -1, -1):
            left -= version not in retires
            if left == 0:
                return version
        return 0


@dataclass(frozen=True)
class Garbage:
    """What is to go.

    Attributes:
        attempts: to be deleted.
        expired: the versions that need any of them, as ranges, sorted and apart.
    """

    attempts: frozenset[Attempt]
    expired: tuple[Range, ...]


def garbage(
    history: History,
    first: int,
    pins: Collection[int],
    retired: Collection[Attempt],
    gone: Collection[Attempt],
    loose: Collection[Attempt],
) -> Garbage:
    """What no version needs that is kept.

    Args:
        history: of all commits.
        first: the versions from this one on are kept.
        pins: versions that are kept besides.
        retired: attempts that were given up before. But for pins they stay so: another gc may be
            deleting them.
        gone: those of them that are deleted already, at least in part.
        loose: attempts that no version names, and that are to go.
    """

    def needed(attempt: Attempt) -> bool:
        lives = list(history.lives(attempt))
        if any(start <= pin < stop for start, stop in lives for pin in pins):
            return attempt not in gone
        return attempt not in retired and any(stop > first for _, stop in lives)

    doomed = [attempt for attempt in history.rows if not needed(attempt)]
    lives = [life for attempt in doomed if history.rows[attempt] for life in history.lives(attempt)]
    return Garbage(frozenset(doomed).union(loose), tuple(joined(lives)))


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges sorted, and joined where they overlap or touch."""
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def attributed(expired: Iterable[Range], before: Sequence[Expired], by: int) -> list[Expired]:
    """Expired versions with the commits that let them expire.

    Args:
        expired: sorted and apart.
        before: those of earlier commits, sorted and apart.
        by: the commit of all others.
    """
    found: list[Expired] = []
    for start, stop in expired:
        inside = [edge for low, high, _ in before for edge in (low, high) if start < edge < stop]
        for low, high in itertools.pairwise(sorted({start, stop, *inside})):
            own = next((each for a, b, each in before if a <= low < b), by)
            if found and found[-1][1] == low and found[-1][2] == own:
                found[-1] = (found[-1][0], high, own)
            else:
                found.append((low, high, own))
    return found


def in_progress(plans: Mapping[str, int], appends: Sequence[tuple[int, str | None]]) -> set[str]:
    """The plans that can be gone on with: not all is committed, and nobody else appended since.

    Args:
        plans: how many waves a plan has, by its name, which begins with its place in the ledger.
        appends: as of `History`.
    """
    found = set()
    for name, waves in plans.items():
        since = [plan for version, plan in appends if version >= position(name)]
        if all(plan == name for plan in since) and len(since) < waves:
            found.add(name)
    return found


def position(plan: str) -> int:
    """The version that the first commit of a plan is to have, by the plan's name; -1 if it is no
    name of a plan."""
    head, _, _ = plan.partition("-")
    return int(head) if head.isdigit() else -1
