"""Ranges: what becomes of the runs of a plan, as tasks of small picklable values. No Beam here.

A merge is planned once, stored below the runs and carried out share by share; shards that are
published are not made again. Passes that make longer runs come before the one that makes the shards
of the cache.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cachelib.errors import CorruptData, ForebayError, LedgerConflict, StorageError
from cachelib.format.canonical import digest
from cachelib.format.ledger import Ledger
from cachelib.format.shard import Manifest, ShardWriter, publish, read_manifest, read_rejects
from cachelib.format.storage import Storage
from cachelib.format.succession import add_counts
from cachelib.reading.scan import in_order
from pipelines.commit import commit_wave, commits_of
from pipelines.merging import Runs, merged
from pipelines.order.keys import Sampler, run_size
from pipelines.order.passes import (
    Merge,
    group_size,
    plan_groups,
    plan_ranges,
    range_count,
)
from pipelines.overlap import read_ahead
from pipelines.plan import Plan
from pipelines.runs import RUNS, runs_storage, write_rows
from pipelines.tasks import Job, failed, failure_of, guarded, load_plan, store_failure

MANIFESTS_AT_ONCE = 32

FINAL = "_merges/final.json"
LONGER = "_merges/longer.json"

PASSES = (LONGER, FINAL)
"""The keys of all passes that there may be, in order."""

Item = tuple[str, int]
"""A share of a merge ("range", number), or shards whose rejects are carried over ("carry", ...)."""


def next_merge(storage: Storage, plan: Plan, name: str) -> str:
    """Plan the next pass over the runs of a plan, which are all written; the key of what is stored.

    Args:
        storage: of the cache.
        plan, name: the plan and its name.
    """
    place = runs_storage(storage, name)
    if place.read(FINAL) is not None:
        return FINAL
    longer = place.read_json(LONGER)
    written = _written(place)
    runs = [m for m in written if m.rows]
    size = sum(run_size(plan.schema, m.rows, m.elements) for m in runs)
    ranges = range_count(size, plan.split_bytes)
    if longer is None:
        group = group_size(len(runs), size, ranges)
        if group > 1:
            place.put_json(LONGER, plan_groups(runs, group).to_json())
            return LONGER
    else:
        made = _read_manifests(place, shard_ids(name, Merge.from_json(longer)))
        if any(m is None for m in made):
            return LONGER
        runs = [m for m in made if m is not None]
    merge = plan_ranges(plan.order, runs, ranges, written)
    place.put_json(FINAL, merge.to_json())
    return FINAL


def _written(place: Storage) -> list[Manifest]:
    """The manifests of all parts, in the order of the sources."""
    shards = Ledger(place).snapshot().entries.shard
    found = _read_manifests(place, shards)
    missing = [shard for shard, m in zip(shards, found, strict=True) if m is None]
    if missing:
        raise CorruptData(f"{place.url}: {len(missing)} manifests are missing, first {missing[0]}")
    return [m for m in found if m is not None]


def _read_manifests(place: Storage, shards: Any) -> list[Manifest | None]:
    return list(in_order(lambda shard: read_manifest(place, shard), shards, MANIFESTS_AT_ONCE))


@functools.lru_cache(maxsize=2)
def load_merge(cache: str, plan: str, key: str) -> Merge:
    """A merge that is stored.

    Raises:
        CorruptData: there is none.
    """
    place = runs_storage(Storage(cache), plan)
    value = place.read_json(key)
    if value is None:
        raise CorruptData(f"{place.where(key)}: the plan of the merge is missing")
    return Merge.from_json(value)


def items_of(merge: Merge) -> list[Item]:
    """The tasks of a merge, in the order of their shards."""
    return [
        *(("range", number) for number in range(len(merge.shares))),
        *(("carry", number) for number in range(len(merge.carried))),
    ]


def items_now(job: Job, key: str, before: Iterable[dict[str, Any]] = ()) -> list[Item]:
    """The tasks of the pass of that key over the runs of a plan, which are all written.

    None where there is no such pass, where the plan is committed, and after a failure, which is
    stored.

    Args:
        before: what came of the work before in the same graph.
    """
    storage = Storage(job.cache)
    failure = next((result for result in before if "failure" in result), None)
    if failure is not None:
        store_failure(storage, job, failure)
    if failure is not None or failed(storage, job) is not None:
        return []
    try:
        plan = load_plan(job.cache, job.plan)
        if commits_of(Ledger(storage), plan, job.plan)[1]:
            return []
        next_merge(storage, plan, job.plan)
        if runs_storage(storage, job.plan).read(key) is None:
            return []
        return items_of(load_merge(job.cache, job.plan, key))
    except StorageError:
        raise
    except ForebayError as error:
        store_failure(storage, job, failure_of(error))
        return []


def shard_ids(name: str, merge: Merge) -> list[str]:
    """The ids of the shards that a merge makes, in order."""
    return [_shard_id(name, merge, item) for item in items_of(merge)]


def shards_begun(storage: Storage, name: str) -> list[str]:
    """The ids of the shards of the cache that the merge of a plan's runs may be writing."""
    value = runs_storage(storage, name).read_json(FINAL)
    return [] if value is None else shard_ids(name, Merge.from_json(value))


def _shard_id(name: str, merge: Merge, item: Item) -> str:
    kind = item[0] if merge.final else "longer"
    return digest(f"{name}/{kind}/{item[1]}".encode("ascii"))


def target_of(storage: Storage, name: str, merge: Merge) -> Storage:
    """Where the shards of a merge lie."""
    return storage if merge.final else runs_storage(storage, name)


def carry_out(job: Job, key: str, item: Item) -> dict[str, Any]:
    """Make the shard of one item; its manifest, or a failure, as JSON."""

    def work() -> dict[str, Any]:
        storage = Storage(job.cache)
        plan, merge = load_plan(job.cache, job.plan), load_merge(job.cache, job.plan, key)
        shard = _shard_id(job.plan, merge, item)
        target = target_of(storage, job.plan, merge)
        there = read_manifest(target, shard)
        if there is not None:
            return there.to_json()
        make = _merge_share if item[0] == "range" else _carry_over
        made = make(runs_storage(storage, job.plan), target, plan, merge, item[1], shard)
        task = {"plan": job.plan, item[0]: item[1], **made.task}
        return publish(target, replace(made, task=task)).to_json()

    return guarded(job, work)


def _merge_share(
    place: Storage, target: Storage, plan: Plan, merge: Merge, number: int, shard: str
) -> Manifest:
    """The rows of one share as a shard."""
    share = merge.shares[number]
    parts = merge.runs[share.first : share.stop]
    share = replace(share, first=0, stop=len(parts))
    runs = Runs(place, plan.schema, parts, plan.order)
    writer = ShardWriter(target, plan.schema, shard)
    size = sum(run.task["size"] for run in parts)
    samples = Sampler(sum(run.rows for run in parts), size)
    last = None
    for block in read_ahead(merged(runs, share), 1):
        if last is not None and block.keys.at(0) <= last:
            raise CorruptData(f"{place.url}: merged rows are not in the order {plan.order}")
        last = block.keys.at(-1)
        if not merge.final:
            samples.add(block.keys, block.sizes, runs.names)
        write_rows(writer, block.columns, block.ranks, block.positions, runs.names)
    task = {} if merge.final else {"samples": samples.to_json(), "size": size}
    return writer.finish(covers=(), counts={}, task=task)


def _carry_over(
    place: Storage, target: Storage, plan: Plan, merge: Merge, number: int, shard: str
) -> Manifest:
    """What was read for some runs, and what was rejected, as a shard without rows."""
    first, stop = merge.carried[number]
    shards = Ledger(place).snapshot().entries.shard[first:stop]
    parts = [m for m in _read_manifests(place, shards) if m is not None]
    writer = ShardWriter(target, plan.schema, shard)
    for part in parts:
        if part.rejects:
            for r in read_rejects(place, part.shard, part.attempt):
                writer.reject(r["source"], r["position"], r["reason"], r["detail"], r["excerpt"])
    rejects = add_counts(part.rejects for part in parts)  # also those of which no copy was kept
    made = writer.finish(
        covers=[cover for part in parts for cover in part.covers],
        counts=add_counts(part.counts for part in parts),
        task={},
    )
    return replace(made, rejects=rejects, records=sum(rejects.values()))


def in_place(job: Job, key: str, results: Any) -> list[dict[str, Any]]:
    """The manifests of the shards of a merge in order, each once, or a single failure.

    Raises:
        CorruptData: one is missing, or they do not hold what the runs do.
    """
    found = list(results)
    failures = [result for result in found if "failure" in result]
    if failures:
        return [min(failures, key=str)]
    merge = load_merge(job.cache, job.plan, key)
    by_shard = {result["shard"]: result for result in found}
    wanted = shard_ids(job.plan, merge)
    if set(by_shard) != set(wanted):
        missing, extra = set(wanted) - set(by_shard), set(by_shard) - set(wanted)
        raise CorruptData(f"plan {job.plan}: merged shards lack {missing} and have {extra}")
    ordered = [by_shard[shard] for shard in wanted]
    rows, runs = sum(m["rows"] for m in ordered), merge.rows
    elements = add_counts(m["elements"] for m in ordered if m["rows"])
    if rows != runs or elements != add_counts(run.elements for run in merge.runs):
        raise CorruptData(f"plan {job.plan}: merged shards have {rows} rows, the runs {runs}")
    return ordered


def commit_ranges(job: Job, key: str, results: Any) -> dict[str, Any]:
    """Commit the shards of the last merge as the plan's one wave.

    Returns:
        The version, or the failure, which is also stored; of an earlier merge, nothing.
    """

    def work() -> dict[str, Any]:
        ordered = in_place(job, key, results)
        if key != FINAL or any("failure" in result for result in ordered):
            return {}
        manifests = [Manifest.from_json(value) for value in ordered]
        plan = load_plan(job.cache, job.plan)
        made = commit_wave(Storage(job.cache), plan, job.plan, 0, manifests, job.max_reject_rate)
        return {"version": made.version}

    return guarded(job, work)


def remove_runs(storage: Storage) -> None:
    """Remove the runs of plans that are committed, or that never will be."""
    ledger = Ledger(storage)
    for name in sorted({key.split("/")[1] for key in storage.list(RUNS)}):
        try:
            settled = bool(commits_of(ledger, load_plan(storage.url, name), name)[1])
        except (LedgerConflict, CorruptData):
            settled = True
        if settled:
            _remove(storage, f"{RUNS}{name}/")


def _remove(storage: Storage, prefix: str) -> None:
    folder = storage.local_path
    if folder is None:
        storage.delete_prefix(prefix)
        return
    shutil.rmtree(folder / prefix, ignore_errors=True)
    with suppress(OSError):  # others may be there
        (folder / RUNS).rmdir()
