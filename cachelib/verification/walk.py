"""Walk: the ledger from commit 0, and what lies in a cache besides.

What a gc gave up is not looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cachelib.errors import CorruptData
from cachelib.format import coverage
from cachelib.format.canonical import digest, unseal
from cachelib.format.commit import Commit, commit_key
from cachelib.format.entries import Entries
from cachelib.format.ledger import Ledger, no_cache, no_version
from cachelib.format.shard import (
    Manifest,
)
from cachelib.format.storage import Storage
from cachelib.reading.scan import in_order
from cachelib.verification.chain import Chain, sizes
from cachelib.verification.covered import Covered, check_commit
from cachelib.verification.problems import Problem, Progress
from cachelib.verification.shards import Read, Shard, read_shard

COMMITS_AT_ONCE = 64


@dataclass(frozen=True)
class _End:
    """All shards of a commit have been handed out."""

    commit: Commit


@dataclass(frozen=True)
class _Replaced:
    """Shards that a commit puts others in the place of, and the rows in their arrays: these were to
    be read as well as those of the version that is checked."""

    shards: int
    rows: int


def verify(
    storage: Storage,
    version: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Iterator[Problem]:
    """Everything that is wrong with a cache up to a version, as it is found.

    Args:
        version: the last version to check; None for the newest.
        progress: called after every shard.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        SnapshotExpired: rows of that version are gone.
        IncompatibleCache: a commit was written by a newer Forebay.
    """
    listed = _listed(storage)
    if not listed:
        raise no_cache(storage)
    last = listed[-1] if version is None else version
    if not 0 <= last <= listed[-1]:
        raise no_version(storage, last, listed[-1])
    yield from _check_hint(storage, listed[-1])
    ledger = Ledger(storage)
    ledger.check_kept(last)
    retired: frozenset[tuple[str, str]] = frozenset()
    needed = Entries()
    try:
        needed = ledger.snapshot(last).entries
        retired = ledger.retired_attempts(ledger.commit(listed[-1]).collected)
    except CorruptData:
        pass  # the walk will say so
    collected = retired.difference(zip(needed.shard, needed.attempt, strict=True))
    ahead = Progress(0, len(needed), 0, int(needed.rows.sum()))
    yield from _walk(_events(storage, ledger, last, collected), storage, ahead, progress)


def garbage(storage: Storage, version: int | None = None) -> int:
    """How many attempts lie in a cache that no commit up to a version names: remains of writers
    that were killed, what others are writing, and what a gc has yet to delete."""
    ledger = Ledger(storage)
    there = {
        (parts[1], parts[2])
        for parts in (key.split("/") for key in storage.list("shards/"))
        if len(parts) > 3
    }
    last = ledger.resolve(version)
    for _, commit in _commits(storage, last):
        if isinstance(commit, Commit):
            there.difference_update(zip(commit.entries.shard, commit.entries.attempt, strict=True))
    return len(there)


def _listed(storage: Storage) -> list[int]:
    """The versions that are there, by listing them: the one way that no lost object misleads."""
    keys = [key.removeprefix("_ledger/").removesuffix(".json") for key in storage.list("_ledger/")]
    return sorted(int(key) for key in keys if len(key) == 20 and key.isdigit())


def _walk(
    events: Iterator[Problem | Shard | _Replaced | _End],
    storage: Storage,
    done: Progress,
    progress: Callable[[Progress], None] | None,
) -> Iterator[Problem]:
    covered: dict[str, Covered] = {}
    manifests: list[Manifest | None] = []
    for event in in_order(_work, events):
        if isinstance(event, Problem):
            yield event
        elif isinstance(event, _End):
            yield from check_commit(storage, event.commit, manifests, covered)
            manifests = []
        elif isinstance(event, _Replaced):
            done = replace(
                done,
                all_shards=done.all_shards + event.shards,
                all_rows=done.all_rows + event.rows,
            )
        elif isinstance(event, Read):
            yield from event.problems
            manifests.append(event.manifest)
            if event.collected:
                done = replace(
                    done,
                    collected=done.collected + 1,
                    all_shards=done.all_shards - 1,
                    all_rows=done.all_rows - event.scan.rows,
                )
            else:
                done = replace(done, shards=done.shards + 1, rows=done.rows + event.scan.rows)
            if progress is not None:
                progress(done)


def _work(event: Problem | Shard | _Replaced | _End) -> Problem | Read | _Replaced | _End:
    return read_shard(event) if isinstance(event, Shard) else event


def _events(
    storage: Storage, ledger: Ledger, last: int, collected: Container[tuple[str, str]]
) -> Iterator[Problem | Shard | _Replaced | _End]:
    """The commits one after another: what is wrong with each, its shards, and its end."""
    chain = Chain()
    for version, found in _commits(storage, last):
        place = storage.where(commit_key(version))
        if isinstance(found, Problem):
            yield found
            chain.follows = chain.complete = False
            continue
        for what in chain.check(found):
            yield Problem(place, what)
        if found.base is not None and found.base != chain.base and chain.complete:
            yield from _check_base(ledger, place, found.base, chain)
        yield _Replaced(len(found.removed), chain.add(found, ledger))
        for index in range(len(found.entries) if len(sizes(found.entries)) == 1 else 0):
            yield Shard.of(storage, found, index, collected)
        yield _End(found)
    if chain.identity is not None:
        yield from _check_files(storage, chain.identity)


def _commits(storage: Storage, last: int) -> Iterator[tuple[int, Commit | Problem]]:
    for first in range(0, last + 1, COMMITS_AT_ONCE):
        versions = range(first, min(last + 1, first + COMMITS_AT_ONCE))
        objects = storage.read_many([commit_key(version) for version in versions])
        for version, data in zip(versions, objects, strict=True):
            where = storage.where(commit_key(version))
            if data is None:
                yield version, Problem(where, "is missing, though later commits are there")
                continue
            try:
                yield version, Commit.from_json(unseal(data, where), where)
            except CorruptData as error:
                yield version, Problem("", str(error))


def _check_hint(storage: Storage, newest: int) -> Iterator[Problem]:
    """Whether the hint, which is written after its commit, names one that is not there."""
    hint = storage.read("_ledger/head") or b""
    if hint.isdigit() and len(hint) < 20 and int(hint) > newest:
        yield Problem(
            storage.where("_ledger/head"),
            f"names version {int(hint)}, but the newest commit is {newest}: commits were lost, or "
            "left out of a copy",
        )


def _check_base(
    ledger: Ledger, place: str, base: Mapping[str, Any], chain: Chain
) -> Iterator[Problem]:
    """Whether a checkpoint stands for the commits that it claims to stand for."""
    try:
        found = Entries.concatenate(ledger.segments(base["segments"]))
    except CorruptData as error:
        yield Problem("", str(error))
        return
    if base["version"] != chain.version:
        yield Problem(place, f"has a checkpoint of version {base['version']}, not {chain.version}")
    elif found.to_json() != Entries.concatenate(chain.parts).to_json():
        yield Problem(place, "has a checkpoint that does not hold the shards of the commits before")
        return
    try:
        taken = coverage.merge(ledger.checkpointed(base["coverage"]))
        expected = coverage.merge(ledger.checkpointed(chain.coverage))
    except CorruptData as error:
        yield Problem("", str(error))
        return
    if taken != expected:
        yield Problem(place, "has a checkpoint with another coverage than the commits before")


def _check_files(storage: Storage, identity: Mapping[str, Any]) -> Iterator[Problem]:
    """Whether the files that an identity names, such as the tokenizer's, are what was stored."""
    files = identity.get("files") or {}
    for key, data in zip(files, storage.read_many(files), strict=True):
        if data is None:
            yield Problem(storage.where(key), "is missing")
        elif digest(data) != files[key]:
            yield Problem(storage.where(key), f"has digest {digest(data)}, not {files[key]}")
