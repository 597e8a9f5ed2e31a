"""Tasks: what the stages of a build do, as functions of small picklable values. No Beam here.

A task that fails for a reason that trying again will not change says so in the status object of its
plan, where the launcher finds it: engines pass on the text of an error at best. Errors of storage
are left to the engine, which may try the task again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cachelib.errors
from cachelib.canonical import digest, digest_of, seal
from cachelib.errors import CorruptData, ForebayError, StorageError
from cachelib.shard import Manifest
from cachelib.storage import Storage
from pipelines.commit import commit_wave
from pipelines.merge import in_order
from pipelines.plan import Plan
from pipelines.tokenization import Prepared, TokenizerFiles, open_encoder
from pipelines.worker import Workplace, write_splits


@dataclass(frozen=True)
class Job:
    """One wave of a stored plan: all that the graph carries.

    Attributes:
        cache: URL of the cache.
        plan: the plan's digest.
        wave: the wave's number.
        roots: where the plan's sources lie in this run.
        inspected_ns: when the sources were inspected for this run, since the epoch.
        max_reject_rate: share of the plan's records that may be rejected.
    """

    cache: str
    plan: str
    wave: int
    roots: tuple[str, ...]
    inspected_ns: int
    max_reject_rate: float


def plan_key(name: str) -> str:
    return f"_plans/{name}.json"


@functools.lru_cache(maxsize=4)
def load_plan(cache: str, name: str) -> Plan:
    """A stored plan.

    Raises:
        CorruptData: there is none of that name.
    """
    storage = Storage(cache)
    value = storage.read_json(plan_key(name))
    if value is None:
        raise CorruptData(f"{storage.where(plan_key(name))}: the plan is missing")
    return Plan.from_json(value)


def plans_after(storage: Storage, version: int) -> list[str]:
    """The names of stored plans that follow a version of the ledger, -1 for none yet."""
    prefix = plan_key(f"{version + 1:06d}-").removesuffix(".json")
    return [key.removeprefix("_plans/").removesuffix(".json") for key in storage.list(prefix)]


def tokenizer_objects(files: TokenizerFiles) -> dict[str, bytes]:
    """A tokenizer's files by the keys under which a cache keeps them.

    They lie in a folder named by the digest of all of them, so that two tokenizers never mix.
    """
    named = {name: digest(data) for name, data in files.to_files().items()}
    return {f"tokenizer/{digest_of(named)}/{n}": data for n, data in files.to_files().items()}


def read_tokenizer(storage: Storage, files: Mapping[str, str]) -> TokenizerFiles:
    """The tokenizer whose files an identity names.

    Args:
        files: digest of each file by its key.

    Raises:
        CorruptData: a file is missing, or is not the one that was stored.
    """
    found = {}
    for key, data in zip(files, storage.read_many(files), strict=True):
        if data is None or digest(data) != files[key]:
            state = "missing" if data is None else f"damaged (digest {digest(data)})"
            raise CorruptData(f"{storage.where(key)} is {state}, expected digest {files[key]}")
        found[key.split("/", 2)[2]] = data
    return TokenizerFiles.from_files(found, storage.where("tokenizer/"))


@functools.lru_cache(maxsize=4)
def _workplace(cache: str, name: str, roots: tuple[str, ...], inspected_ns: int) -> Workplace:
    storage = Storage(cache)
    plan = load_plan(cache, name)
    prepared = Prepared.from_json(plan.tokenizer)
    encoder = open_encoder(read_tokenizer(storage, plan.identity["files"]), prepared)
    return Workplace(storage, plan, name, roots, inspected_ns, encoder)


def lanes(job: Job, count: int) -> list[tuple[int, ...]]:
    """The splits of a wave dealt out to at most `count` lanes, each worked on in order."""
    splits = load_plan(job.cache, job.plan).wave(job.wave)
    return [tuple(splits[lane::count]) for lane in range(min(count, len(splits)))]


def write(job: Job, splits: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Write the parts of splits; yields manifests, or one failure, as JSON."""
    try:
        for manifest in write_splits(
            _workplace(job.cache, job.plan, job.roots, job.inspected_ns), splits
        ):
            yield manifest.to_json()
    except StorageError:
        raise
    except ForebayError as error:
        yield _failure(error)


def merge(job: Job, results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The manifests of a wave in row order, or a single failure."""
    found = list(results)
    failures = [result for result in found if "failure" in result]
    if failures:
        return [min(failures, key=lambda failure: str(failure))]
    plan = load_plan(job.cache, job.plan)
    try:
        manifests = [Manifest.from_json(value) for value in found]
        return [m.to_json() for m in in_order(plan, job.plan, job.wave, manifests)]
    except ForebayError as error:
        return [_failure(error)]


def commit(job: Job, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Commit a wave; returns the version committed, or the failure, which is also stored."""
    storage = Storage(job.cache)
    failures = [result for result in results if "failure" in result]
    if failures:
        return _stored_failure(storage, job, failures[0])
    plan = load_plan(job.cache, job.plan)
    try:
        manifests = [Manifest.from_json(value) for value in results]
        made = commit_wave(storage, plan, job.plan, job.wave, manifests, job.max_reject_rate)
        return {"version": made.version}
    except StorageError:
        raise
    except ForebayError as error:
        return _stored_failure(storage, job, _failure(error))


def failure_key(job: Job) -> str:
    return f"_status/{job.plan}.{job.wave}.failure.json"


def _failure(error: ForebayError) -> dict[str, Any]:
    kind = type(error).__name__
    known = kind if hasattr(cachelib.errors, kind) else "ForebayError"
    return {"failure": known, "message": str(error)}


def _stored_failure(storage: Storage, job: Job, failure: dict[str, Any]) -> dict[str, Any]:
    storage.write(failure_key(job), seal(failure))
    return failure


def take_failure(job: Job) -> ForebayError | None:
    """The failure that a wave's run left behind, as the error it was; removes it."""
    storage = Storage(job.cache)
    failure = storage.read_json(failure_key(job))
    if failure is None:
        return None
    storage.delete_prefix(failure_key(job))
    kind: type[ForebayError] = getattr(cachelib.errors, failure["failure"])
    return kind(failure["message"])
