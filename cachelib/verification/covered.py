"""Covered: whether the counts and the coverage of commits are those of their manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachelib.errors import CorruptData
from cachelib.format.canonical import digest_of
from cachelib.format.commit import Commit, commit_key
from cachelib.format.shard import (
    Cover,
    Manifest,
)
from cachelib.format.storage import Storage
from cachelib.format.succession import add_counts
from cachelib.verification.problems import Problem


@dataclass
class Covered:
    """What was taken in of one source so far: sorted ranges, joined where they touch."""

    version: str
    ranges: list[tuple[int, int]]


def check_commit(
    storage: Storage,
    commit: Commit,
    found: Sequence[Manifest | None],
    covered: dict[str, Covered],
) -> Iterator[Problem]:
    """Whether a commit's counts and coverage are those of its manifests."""
    place = storage.where(commit_key(commit.version))
    manifests = [manifest for manifest in found if manifest is not None]
    complete = len(manifests) == len(found) and not commit.removed
    if complete:
        expected = {
            "records": (commit.records, sum(m.records for m in manifests)),
            "rejects": (commit.rejects, add_counts(m.rejects for m in manifests)),
            "counts": (commit.counts, add_counts(m.counts for m in manifests)),
        }
        for name, (said, wanted) in expected.items():
            if said != wanted:
                yield Problem(place, f"says {name} {said}, its manifests have {wanted}")
    covers = [cover for manifest in manifests for cover in manifest.covers]
    ranges, overlaps = _ranges(covers)
    yield from (Problem(place, f"took in twice: {overlap}") for overlap in overlaps)
    if commit.coverage is None:
        if ranges and complete:
            yield Problem(place, "has shards that cover sources, but no coverage")
        return
    key = f"_ledger/checkpoint/{commit.coverage}.json"
    try:
        value = storage.read_json(key)
    except CorruptData as error:
        yield Problem("", str(error))
        return
    if value is None or digest_of(value) != commit.coverage:
        what = "is missing" if value is None else "holds something else than its name says"
        yield Problem(storage.where(key), what)
        return
    if complete:
        yield from _check_coverage(storage.where(key), value, ranges, covers)
    if not complete:
        said = zip(value["source"], value["ranges"], strict=True)
        ranges = {name: [(low, high) for low, high in pairs] for name, pairs in said}
    for name, version in zip(value["source"], value["version"], strict=True):
        before = covered.setdefault(name, Covered(version, []))
        if before.version != version:
            yield Problem(place, f"took in {name!r} as {version}, before it was {before.version}")
        joined, overlaps = _union([*before.ranges, *ranges.get(name, [])])
        before.ranges = joined
        yield from (Problem(place, f"took in {name!r} again: {overlap}") for overlap in overlaps)


def _check_coverage(
    place: str,
    value: Mapping[str, Any],
    ranges: Mapping[str, list[tuple[int, int]]],
    covers: Iterable[Cover],
) -> Iterator[Problem]:
    """Whether a coverage object is the union of the covers of a commit's manifests."""
    extents = {cover.source: cover.stop for cover in covers if cover.ends}
    if value["source"] != sorted(ranges):
        wrong = sorted(set(value["source"]) ^ set(ranges))[:3] or "their order"
        yield Problem(place, f"names other sources than the manifests: {wrong}")
        return
    columns = (value["source"], value["ranges"], value["extent"])
    for name, said, extent in zip(*columns, strict=True):
        if [tuple(pair) for pair in said] != ranges[name]:
            yield Problem(place, f"says {said} of {name!r}, the manifests {ranges[name]}")
        if extent != extents.get(name):
            yield Problem(place, f"says {name!r} ends at {extent}, not {extents.get(name)}")


def _ranges(covers: Iterable[Cover]) -> tuple[dict[str, list[tuple[int, int]]], list[str]]:
    """The union of covers by source, and the overlaps in words."""
    given: dict[str, list[tuple[int, int]]] = {}
    for cover in covers:
        given.setdefault(cover.source, []).append((cover.start, cover.stop))
    joined, overlaps = {}, []
    for name, pairs in given.items():
        joined[name], twice = _union(pairs)
        overlaps += [f"{name!r}: {overlap}" for overlap in twice]
    return joined, overlaps


def _union(pairs: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[str]]:
    """Sorted ranges, joined where they touch, and the overlaps in words."""
    joined: list[tuple[int, int]] = []
    overlaps = []
    for start, stop in sorted(pairs):
        if start == stop:
            continue
        if joined and start < joined[-1][1]:
            overlaps.append(f"[{start}, {stop}) beside [{joined[-1][0]}, {joined[-1][1]})")
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined, overlaps
