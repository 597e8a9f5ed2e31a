"""Tasks: what the stages of a build do, as functions of small picklable values. No Beam here.

A task that fails for a reason that trying again will not change says so in the status object of its
plan, where the launcher finds it: engines pass on the text of an error at best. Errors of storage
are left to the engine, which may try the task again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cachelib.errors
from cachelib.errors import CorruptData, ForebayError, SourceError, StorageError
from cachelib.format.canonical import digest, digest_of, seal
from cachelib.format.shard import Manifest
from cachelib.format.storage import Storage
from pipelines.commit import commit_wave
from pipelines.merge import in_order
from pipelines.plan import Plan
from pipelines.tokenization import Prepared, TokenizerFiles, open_encoder
from pipelines.worker import Workplace, write_splits


@dataclass(frozen=True)
class Job:
    """Waves of a stored plan that one pipeline writes: all that the graph carries.

    Attributes:
        cache: URL of the cache.
        plan: the plan's digest.
        waves: their numbers.
        roots: where the plan's sources lie in this run.
        inspected_ns: when the sources were inspected for this run, since the epoch.
        max_reject_rate: share of the plan's records that may be rejected.
        begun: how many of their first splits are being written already, outside the pipeline.
        may_be_empty: whether they may hold no row at all.
    """

    cache: str
    plan: str
    waves: range
    roots: tuple[str, ...]
    inspected_ns: int
    max_reject_rate: float
    begun: int = 0
    may_be_empty: bool = False


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
    """The splits of a job dealt out to at most `count` lanes, each worked on in order.

    Those that are being written already come last: they are done by then, and adopted.
    """
    splits = load_plan(job.cache, job.plan).splits_of(job.waves)
    order = [*splits[job.begun :], *splits[: job.begun]]
    return [tuple(order[lane::count]) for lane in range(min(count, len(order)))]


def write(job: Job, splits: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Write the parts of splits; yields manifests, or in the end a failure, as JSON.

    A failure is stored, too. No split is begun after one, by this lane or another one.
    """
    storage = Storage(job.cache)
    failures: list[dict[str, Any]] = []

    def until_failure() -> Iterator[int]:
        for split in splits:
            failure = failed(storage, job)
            if failure is not None:
                failures.append(failure)
                return
            yield split

    try:
        workplace = _workplace(job.cache, job.plan, job.roots, job.inspected_ns)
        for manifest in write_splits(workplace, until_failure()):
            yield manifest.to_json()
    except StorageError:
        raise
    except ForebayError as error:
        failures.append(store_failure(storage, job, failure_of(error)))
    yield from failures[:1]


def merge(job: Job, results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The manifests of a job in row order, or a single failure."""
    found = list(results)
    failures = [result for result in found if "failure" in result]
    if failures:
        return [min(failures, key=lambda failure: str(failure))]
    plan = load_plan(job.cache, job.plan)
    try:
        manifests = [Manifest.from_json(value) for value in found]
        splits = plan.splits_of(job.waves)
        return [m.to_json() for m in in_order(plan, job.plan, splits, manifests)]
    except ForebayError as error:
        return [failure_of(error)]


def commit(
    job: Job, results: Sequence[dict[str, Any]], before: Iterable[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Commit a job's waves; returns the last version, or the failure, which is also stored.

    Args:
        results: the manifests of its parts, in row order, or a failure.
        before: what came of the job before in the same graph; nothing comes after a failure.
    """
    storage = Storage(job.cache)
    failures = [result for result in (*before, *results) if "failure" in result]
    if failures:
        return store_failure(storage, job, failures[0])
    plan = load_plan(job.cache, job.plan)
    try:
        manifests = [Manifest.from_json(value) for value in results]
        for wave in job.waves:
            own = [m for m in manifests if m.task["split"] in plan.wave(wave)]
            made = commit_wave(
                storage, plan, job.plan, wave, own, job.max_reject_rate, job.may_be_empty
            )
        return {"version": made.version}
    except StorageError:
        raise
    except ForebayError as error:
        return store_failure(storage, job, failure_of(error))


def guarded(job: Job, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What some work of a job gives, or its failure, which is also stored; nothing after one."""
    storage = Storage(job.cache)
    failure = failed(storage, job)
    if failure is not None:
        return failure
    try:
        return work()
    except StorageError:
        raise
    except ForebayError as error:
        return store_failure(storage, job, failure_of(error))


def failure_key(job: Job) -> str:
    return f"_status/{job.plan}.failure.json"


def failure_of(error: ForebayError) -> dict[str, Any]:
    """An error as JSON; `error_of` makes it again."""
    kind = type(error).__name__
    known = kind if hasattr(cachelib.errors, kind) else "ForebayError"
    failure = {"failure": known, "message": str(error)}
    if isinstance(error, SourceError) and error.source is not None:
        failure["source"] = error.source
    return failure


def failed(storage: Storage, job: Job) -> dict[str, Any] | None:
    """The failure that is stored, if there is one."""
    failure: dict[str, Any] | None = storage.read_json(failure_key(job))
    return failure


def store_failure(storage: Storage, job: Job, failure: dict[str, Any]) -> dict[str, Any]:
    storage.write(failure_key(job), seal(failure))
    return failure


def take_failure(job: Job) -> ForebayError | None:
    """The failure that a pipeline left behind, as the error it was; removes it."""
    storage = Storage(job.cache)
    failure = failed(storage, job)
    if failure is None:
        return None
    storage.delete_prefix(failure_key(job))
    return error_of(failure)


@contextmanager
def raising_failures(*jobs: Job) -> Iterator[None]:
    """Raise what the tasks of a pipeline left behind as a failure, once it has run.

    Where the pipeline itself failed, too, that says less.
    """
    forget_failures(jobs)
    try:
        yield
    except Exception as error:
        failure = _first_failure(jobs)
        if failure is None or isinstance(error, ForebayError):
            raise
        raise failure from None
    failure = _first_failure(jobs)
    if failure is not None:
        raise failure


def forget_failures(jobs: Iterable[Job]) -> None:
    """Remove what pipelines of an earlier run left behind as failures."""
    for job in jobs:
        take_failure(job)


def _first_failure(jobs: Iterable[Job]) -> ForebayError | None:
    return next(filter(None, [take_failure(job) for job in jobs]), None)


def error_of(failure: Mapping[str, Any]) -> ForebayError:
    """The error that `failure_of` told of."""
    kind: type[ForebayError] = getattr(cachelib.errors, failure["failure"])
    error = kind(failure["message"])
    if isinstance(error, SourceError):
        error.source = failure.get("source")
    return error
