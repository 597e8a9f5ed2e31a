"""Coverage: which ranges of which sources a cache has taken in. Pure.

Coverage, never the id of a shard, decides what is done: so building again does nothing, also from a
moved folder, with another split size or after an upgrade.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachelib.errors import CorruptData
from cachelib.format.shard import Cover

Range = tuple[int, int]


@dataclass(frozen=True)
class Taken:
    """What was taken in of one source.

    Attributes:
        version: content version of the source when it was read.
        ranges: disjoint, sorted position ranges [start, stop), joined where they touch.
        extent: where the source ends, once that is known.
    """

    version: str
    ranges: tuple[Range, ...]
    extent: int | None

    def missing(self, extent: int | None) -> tuple[tuple[int, int | None], ...]:
        """The ranges not taken in; a stop of None is an end that is not known yet.

        Args:
            extent: where the source ends, if its inspection tells.
        """
        end = self.extent if self.extent is not None else extent
        gaps: list[tuple[int, int | None]] = []
        at = 0
        for start, stop in self.ranges:
            if start > at:
                gaps.append((at, start))
            at = stop
        if end is None or at < end:
            gaps.append((at, end))
        return tuple(gaps)


Coverage = Mapping[str, Taken]


def union(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sorted ranges, joined where they touch.

    Raises:
        ValueError: two overlap.
    """
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and start < joined[-1][1]:
            raise ValueError(f"range [{start}, {stop}) overlaps [{joined[-1][0]}, {joined[-1][1]})")
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], stop)
        elif stop > start:
            joined.append((start, stop))
    return tuple(joined)


def delta(covers: Iterable[Cover], versions: Mapping[str, str]) -> dict[str, Any]:
    """The coverage object of a commit, columnar and sorted by source name.

    Args:
        covers: of the commit's manifests.
        versions: content version of each source named.
    """
    ranges: dict[str, list[Range]] = {}
    extents: dict[str, int] = {}
    for cover in covers:
        ranges.setdefault(cover.source, []).append((cover.start, cover.stop))
        if cover.ends:
            extents[cover.source] = cover.stop
    return columns({n: Taken(versions[n], union(ranges[n]), extents.get(n)) for n in ranges})


def columns(coverage: Coverage) -> dict[str, Any]:
    """Coverage as a coverage object: columnar, sorted by source name."""
    names = sorted(coverage)
    return {
        "source": names,
        "version": [coverage[name].version for name in names],
        "ranges": [[list(r) for r in coverage[name].ranges] for name in names],
        "extent": [coverage[name].extent for name in names],
    }


def segments(coverage: Coverage, size: int) -> Iterator[dict[str, Any]]:
    """Coverage as coverage objects of at most `size` sources each."""
    names = sorted(coverage)
    for first in range(0, len(names), size):
        yield columns({name: coverage[name] for name in names[first : first + size]})


def merge(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Taken]:
    """The coverage that coverage objects of successive commits add up to.

    Raises:
        CorruptData: two commits took in the same range, or different versions of one source.
    """
    whole: dict[str, Taken] = {}
    for each in deltas:
        rows = (each["source"], each["version"], each["ranges"], each["extent"])
        for name, version, ranges, extent in zip(*rows, strict=True):
            new = tuple((start, stop) for start, stop in ranges)
            old = whole.get(name, Taken(version, (), None))
            if old.version != version and not old.ranges:
                old = Taken(version, (), None)  # it was empty and has been filled
            if old.version != version:
                raise CorruptData(
                    f"source {name!r} is in the ledger as version {old.version} and as {version}"
                )
            try:
                joined = union([*old.ranges, *new])
            except ValueError as error:
                raise CorruptData(f"source {name!r} was taken in twice: {error}") from error
            whole[name] = Taken(version, joined, old.extent if extent is None else extent)
    return whole
