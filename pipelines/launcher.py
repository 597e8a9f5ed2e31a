"""Build: sources into a cache, by plans that are stored before they are carried out."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

from cachelib.errors import (
    AttemptRetired,
    CorruptData,
    ForebayError,
    IncompatibleCache,
    LedgerConflict,
)
from cachelib.format import coverage
from cachelib.format.ledger import Commit, Ledger, Snapshot, add_counts
from cachelib.format.shard import attempt_prefix
from cachelib.format.storage import Storage
from cachelib.words import counted
from pipelines.commit import commits_of, finish
from pipelines.config import BuildConfig, build_config, setting
from pipelines.early import committing
from pipelines.order.orders import parse_order
from pipelines.plan import Plan, Work, check_unchanged, make_splits, make_waves, remaining, spread
from pipelines.progress import Progress, Status, Watcher, published, watching_merge
from pipelines.ranges import load_merge, next_merge, remove_runs, shard_ids, target_of
from pipelines.request import Request, cache_url, find_sources, inquire
from pipelines.runs import parts_of
from pipelines.sample import check_sample
from pipelines.sample import notes as notes_on_sample
from pipelines.sources import Discovery
from pipelines.tasks import (
    Job,
    lanes,
    load_plan,
    plan_key,
    plans_after,
    take_failure,
    tokenizer_objects,
    write,
)


@dataclass(frozen=True)
class Planned:
    """What a build would do next.

    Attributes:
        plan: the work, or None where nothing is left to do.
        stored: whether it is a plan that an earlier build stored and did not end.
        waves_done: waves of it that are committed.
        splits_done: splits of it that are finished, in committed waves or not.
        tokens_waiting: tokens of finished parts that are not committed.
        reused: sources that are taken in already.
        changed: sources left out because they changed.
        notes: what the user should know.
    """

    plan: Plan | None
    stored: bool
    waves_done: int
    splits_done: frozenset[int]
    tokens_waiting: int
    reused: int
    changed: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """What a build did.

    Attributes:
        url: of the cache.
        version: newest version afterwards, or -1 where there is no cache.
        rows, tokens: of the cache.
        new_rows, new_tokens, records, rejects, counts: of what this build committed.
        earlier_tokens: those of new_tokens that an earlier run had written, but not committed.
        bytes: of text read by this run, about.
        stored_bytes: of the shards of this build, None where the store does not tell.
        seconds: from the call to its end; `working` without what came before the first wave.
        notes: what the user should know.
        holdout: what was done for the cache of what is held out, None where nothing is.
    """

    url: str
    version: int
    rows: int
    tokens: int
    new_rows: int
    new_tokens: int
    earlier_tokens: int
    records: int
    rejects: dict[str, int]
    counts: dict[str, int]
    bytes: int
    stored_bytes: int | None
    seconds: float
    working: float
    notes: tuple[str, ...]
    holdout: Summary | None = None


def build(
    config: BuildConfig | None = None,
    *,
    show: Callable[[Progress], None] | None = None,
    beam_arguments: Sequence[str] = (),
    **values: Any,
) -> Summary:
    """Bring a cache up to date with its sources; does nothing where it is.

    Args:
        config: a checked configuration; or its keys as keyword arguments.
        show: called with the progress, about twice a second.
        beam_arguments: further options of the Beam runner.

    Raises:
        ForebayError: of the kind that fits; what was committed before stays.
    """
    config = build_config(values) if config is None else config
    began = time.monotonic()
    discovery = find_sources(config)
    summary = _build(config, discovery, False, began, show, beam_arguments)
    if config.holdout is None:
        return summary
    began = time.monotonic()
    held = _build(config, discovery, True, began, show, beam_arguments)
    return replace(summary, holdout=held)


def _build(
    config: BuildConfig,
    discovery: Discovery,
    held: bool,
    began: float,
    show: Callable[[Progress], None] | None,
    beam_arguments: Sequence[str],
) -> Summary:
    """Bring one cache up to date: that of what is held out, or the other one."""
    storage = Storage.at(cache_url(config, held))
    if sys.flags.optimize > 1 and remaining(discovery.sources, _taken(Ledger(storage))).pieces:
        raise ForebayError(
            "Apache Beam cannot run without docstrings: leave out PYTHONOPTIMIZE=2 or python "
            "-OO (PYTHONOPTIMIZE=1 and -O are fine)"
        )
    request = inquire(config, discovery, held=held)
    working = time.monotonic()
    done = take_in(request, show, beam_arguments)
    seconds = time.monotonic()
    head = Ledger(request.storage).head()
    if config.finish and head is not None:
        finish(request.storage)
    remove_runs(storage)
    return _summary(request, done, seconds - began, seconds - working)


@dataclass(frozen=True)
class Done:
    """What was taken in of the sources of a request.

    Attributes:
        commits: made for it.
        bytes: of text read, about.
        earlier: tokens that an earlier run had written, but not committed.
        changed: sources left out because they changed.
        notes: what the user should know.
        whole: whether nothing is left to do.
    """

    commits: tuple[Commit, ...]
    bytes: int
    earlier: int
    changed: tuple[str, ...]
    notes: tuple[str, ...]
    whole: bool


def take_in(
    request: Request,
    show: Callable[[Progress], None] | None = None,
    beam_arguments: Sequence[str] = (),
    *,
    grows: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    begun: Callable[[str], object] = lambda plan: None,
) -> Done:
    """Take in what the cache lacks of the sources of a request.

    Args:
        show: called with the progress, about twice a second.
        beam_arguments: further options of the Beam runner.
        grows: whether more is to follow: the cache may be without a row for now.
        stopped: asked before each pipeline whether to leave the rest for another time.
        begun: told the name of each plan before it is carried out.

    Raises:
        ForebayError: of the kind that fits; what was committed before stays.
    """
    commits: list[Commit] = []
    size = earlier = 0
    notes: dict[str, None] = {}
    while (planned := next_plan(request)).plan is not None and not stopped():
        notes |= dict.fromkeys(planned.notes)
        _check_sample(request, planned)
        begun(planned.plan.name)
        try:
            made = _carry_out(request, planned, show, beam_arguments, grows, stopped)
        except AttemptRetired:
            continue  # what was given up is planned anew
        commits += made
        size += _bytes_read(planned.plan, planned, _tokens(made))
        earlier += planned.tokens_waiting
    notes |= dict.fromkeys(planned.notes)
    whole = planned.plan is None
    return Done(tuple(commits), size, earlier, planned.changed, tuple(notes), whole)


def _tokens(commits: Iterable[Commit]) -> int:
    return sum(int(commit.entries.elements["tokens"].sum()) for commit in commits)


def _bytes_read(plan: Plan, planned: Planned, tokens: int) -> int:
    """Bytes of text that a run read for a plan, about, from the tokens that it committed."""
    size = sum(split.size for split in plan.splits[plan.waves[planned.waves_done] :])
    return round(size * (1 - planned.tokens_waiting / tokens)) if tokens else size


def next_plan(request: Request) -> Planned:
    """The stored plan to go on with, or a new one for what the coverage lacks.

    Raises:
        SourceChanged: a source changed since it was taken in, and that is an error.
        IncompatibleCache: the cache was marked complete.
        CorruptData: its newest commits were lost.
    """
    ledger = Ledger(request.storage)
    newest = ledger.newest()
    loss = newest.loss(request.storage.url)
    if loss is not None:
        raise CorruptData(f"{loss}. Restore them, or delete _ledger/head to go on without them")
    head = newest.version
    snapshot = None if head is None else ledger.snapshot(head)
    taken = _taken(ledger)
    sources = request.discovery.sources
    work = remaining(sources, taken)
    if request.config.changed == "error":
        check_unchanged(work, sources, taken)
    notes = _notes(request, work)
    stored = _unfinished(request, ledger, snapshot, work)
    if stored is not None:
        plan, done = stored
        splits = plan.splits_of(plan.together(done))
        place, parts_plan, parts_name = parts_of(request.storage, plan, plan.name)
        parts = list(published(place, parts_plan, parts_name, splits))
        return Planned(
            plan=plan,
            stored=True,
            waves_done=done,
            splits_done=frozenset(range(plan.waves[done]))
            | {split for split, manifest in parts if manifest.task["next"] is None},
            tokens_waiting=sum(manifest.elements.get("tokens", 0) for _, manifest in parts),
            reused=work.reused,
            changed=work.changed,
            notes=(*notes, *_note_on_reopening(request, ledger, plan)),
        )
    anew = Planned(None, False, 0, frozenset(), 0, work.reused, work.changed, notes)
    if not work.pieces:
        return anew
    if snapshot is not None and snapshot.commit.finished and not request.config.reopen:
        raise IncompatibleCache(
            f"{request.storage.url} was marked complete at version {snapshot.version}, and "
            f"its sources have {counted(len(work.pieces), 'new piece')}; "
            f"{setting('reopen', True)} adds what is new"
        )
    plan = _new_plan(request, snapshot, work.pieces)
    return replace(anew, plan=plan, notes=(*notes, *_note_on_reopening(request, ledger, plan)))


def _check_sample(request: Request, planned: Planned) -> None:
    """Stop a plan that begins with sources of which no record can be used."""
    assert planned.plan is not None
    begun = {source.name for source in planned.plan.sources}
    if planned.waves_done == 0 and begun.issuperset(request.sample.sources):
        check_sample(request.sample, request.config.max_reject_rate)


def _note_on_reopening(request: Request, ledger: Ledger, plan: Plan) -> tuple[str, ...]:
    """What becomes of a cache that was marked complete."""
    if request.config.finish or not plan.parent or not ledger.commit(plan.parent_version).finished:
        return ()
    return (
        f"the cache was marked complete at version {plan.parent_version}; adding to it leaves it "
        f"unfinished, until {setting('finish', True)} marks it complete again",
    )


def _notes(request: Request, work: Work) -> tuple[str, ...]:
    notes = list(request.prepared.notes)
    lacking = {request.discovery.sources[piece.source].name for piece in work.pieces}
    if lacking.issuperset(request.sample.sources):
        notes += notes_on_sample(request.sample)
    if work.changed:
        notes.append(f"left out {counted(len(work.changed), 'source')} changed since taken in")
    if work.twins:
        new, old = work.twins[0]
        notes.append(
            f"the content of {counted(len(work.twins), 'source')} is in the cache already by "
            f"another name ({new!r} is {old!r}) and is taken in, too. Names are paths relative to "
            "an input's root: give the inputs as before if these are the same files"
        )
    if request.discovery.skipped:
        reasons = Counter(why for _, why in request.discovery.skipped)
        told = ", ".join(f"{count:,} x {why}" for why, count in sorted(reasons.items()))
        notes.append(f"left out below the inputs: {told}; plan names them")
    return tuple(notes)


def _taken(ledger: Ledger) -> coverage.Coverage:
    """What the newest snapshot has taken in."""
    head = ledger.head()
    return {} if head is None else coverage.merge(ledger.coverage_deltas(ledger.snapshot(head)))


def _new_plan(request: Request, snapshot: Snapshot | None, pieces: Sequence[Any]) -> Plan:
    used = sorted({piece.source for piece in pieces})
    places = {index: place for place, index in enumerate(used)}
    sources = tuple(request.discovery.sources[index] for index in used)
    moved = [replace(piece, source=places[piece.source]) for piece in pieces]
    splits = make_splits(moved, sources, request.config.split_bytes)
    if request.config.spread:
        splits = spread(splits, sources)
    order = parse_order(request.config.order)
    return Plan(
        parent="" if snapshot is None else snapshot.commit.digest,
        parent_version=-1 if snapshot is None else snapshot.version,
        schema=request.schema,
        identity=request.identity,
        reading=request.reading,
        tokenizer=request.prepared.to_json(),
        sources=sources,
        splits=splits,
        waves=(0, len(splits)) if order.sorts else make_waves(splits, request.config.split_bytes),
        split_bytes=request.config.split_bytes,
        order=order,
        seals_last=request.config.seal,
    )


def _unfinished(
    request: Request, ledger: Ledger, snapshot: Snapshot | None, work: Work
) -> tuple[Plan, int] | None:
    """A stored plan that can be gone on with, and how many of its waves are committed.

    One that is partly committed is gone on with if every source that it still needs is among those
    asked for, unchanged; one of which nothing is committed if it takes in just what is asked for.
    Otherwise what was taken in stays, and the rest is planned anew.
    """
    names = _newest_plans(request.storage, ledger, snapshot)
    present = {(source.name, source.version) for source in request.discovery.sources}
    lacking = {request.discovery.sources[piece.source] for piece in work.pieces}
    wanted = {(source.name, source.version) for source in lacking}
    for name in names:
        try:
            plan = load_plan(request.storage.url, name)
            done = len(commits_of(ledger, plan, name)[1])
        except (CorruptData, LedgerConflict):
            continue  # it cannot be gone on with; what it took in is in the coverage
        left = plan.splits[plan.waves[done] :]
        needed = {plan.sources[piece.source] for split in left for piece in split.pieces}
        keys = {(source.name, source.version) for source in needed}
        alike = (
            plan.reading == request.reading
            and plan.identity["tokenizer"] == request.identity["tokenizer"]
            and str(plan.order) == request.config.order
        )
        fits = left and alike and (keys == wanted or (done > 0 and keys <= present))
        if fits and not _given_up(ledger, snapshot, plan, name, done):
            return plan, done
    return None


def _given_up(ledger: Ledger, snapshot: Snapshot | None, plan: Plan, name: str, done: int) -> bool:
    """Whether a gc gave up a part of a plan that is not committed: none can take its place."""
    retired = ledger.retired_attempts(None if snapshot is None else snapshot.commit.collected)
    if not retired:
        return False
    splits = plan.splits_of(range(done, plan.wave_count))
    parts = published(ledger.storage, plan, name, splits)
    return any((manifest.shard, manifest.attempt) in retired for _, manifest in parts)


def _newest_plans(storage: Storage, ledger: Ledger, snapshot: Snapshot | None) -> list[str]:
    """The plan that the newest rows of a cache are of, and those made since then."""
    if snapshot is None:
        return plans_after(storage, -1)
    commit = snapshot.commit
    names: list[str] = plans_after(storage, commit.version)
    while commit.operation in ("seal", "compact", "delete", "retire"):  # a plan goes on over these
        commit = ledger.commit(commit.version - 1)
        names += plans_after(storage, commit.version)
    return [commit.task["plan"], *names] if "plan" in commit.task else names


def _roots(request: Request, plan: Plan) -> tuple[str, ...]:
    """Where each of a plan's roots lies now, found by the names of its sources."""
    present = {source.name: source for source in request.discovery.sources}
    roots = [""] * (1 + max(source.root for source in plan.sources))
    for source in plan.sources:
        if source.name in present:
            roots[source.root] = request.discovery.roots[present[source.name].root]
    return tuple(roots)


Shown = tuple[Callable[[Progress], None], Status]
"""Who is told of the progress."""


def _carry_out(
    request: Request,
    planned: Planned,
    show: Callable[[Progress], None] | None,
    beam_arguments: Sequence[str],
    grows: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Commit]:
    """Store a plan and carry it out; returns the commits made meanwhile."""
    plan = planned.plan
    assert plan is not None
    storage, name, ledger = request.storage, plan.name, Ledger(request.storage)
    roots = _roots(request, plan)
    _store(request, storage, plan)
    shown: Shown = (show or (lambda progress: None), Status(storage, name))
    if not plan.order.sorts:
        run = partial(_run_waves, may_be_empty=grows, stopped=stopped)
        with shown[1].of_all():
            run(request, storage, plan, planned, roots, shown, beam_arguments)
        return commits_of(ledger, plan, name)[1][planned.waves_done :]
    try:
        place, own, _ = parts_of(storage, plan, name)
        _store(request, place, own)
        run = partial(_run_waves, may_be_empty=True)
        with shown[1].of_all():
            run(request, place, own, planned, roots, shown, beam_arguments)
            _merge_runs(request, plan, shown, beam_arguments)
    except Exception:
        # Another builder of the same plan may have committed it, and removed the runs.
        if not commits_of(ledger, plan, name)[1]:
            raise
    return commits_of(ledger, plan, name)[1]


def _store(request: Request, storage: Storage, plan: Plan) -> None:
    """Store a plan and the tokenizer that it names."""
    for key, data in tokenizer_objects(request.files).items():
        storage.put_if_absent(key, data)
    try:
        storage.put_json(plan_key(plan.name), plan.to_json())
    except CorruptData as error:
        raise CorruptData(f"{error}. Delete it and build again: it will be made anew") from error


def _run_waves(
    request: Request,
    storage: Storage,
    plan: Plan,
    planned: Planned,
    roots: tuple[str, ...],
    shown: Shown,
    beam_arguments: Sequence[str],
    *,
    may_be_empty: bool,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run the waves of a stored plan that are not committed, in order."""
    config, name, ledger = request.config, plan.name, Ledger(storage)
    watcher = Watcher(storage, plan, name, planned.splits_done, *shown)
    done = len(commits_of(ledger, plan, name)[1])
    while done < plan.wave_count and not stopped():
        waves = plan.together(done)
        inspected_ns = request.discovery.inspected_ns
        job = Job(
            storage.url,
            name,
            waves,
            roots,
            inspected_ns,
            config.max_reject_rate,
            may_be_empty=may_be_empty,
        )
        with (
            _raising_failures(job),
            watcher.waves(waves),
            committing(job),
            _head_start(job, config) as (runners, begun),
        ):
            runners.run_waves(
                replace(job, begun=begun),
                config.runner,
                workers=config.workers,
                processes=config.processes,
                arguments=beam_arguments,
            )
        done = len(commits_of(ledger, plan, name)[1])
        if done < waves.stop:
            raise ForebayError(f"wave {done} of plan {name} ended without a commit or an error")


def _merge_runs(
    request: Request,
    plan: Plan,
    shown: Shown,
    beam_arguments: Sequence[str],
) -> None:
    """Merge the runs of a stored plan, which are all written, and commit what comes of them."""
    storage, config, name = request.storage, request.config, plan.name
    runners = importlib.import_module("pipelines.runners")
    job = Job(
        storage.url, name, range(1), (), request.discovery.inspected_ns, config.max_reject_rate
    )
    step = 0
    while not commits_of(Ledger(storage), plan, name)[1]:
        key = next_merge(storage, plan, name)
        merge = load_merge(storage.url, name, key)
        steps = (step, step + 1 if merge.final else step + 2)
        shards, place = shard_ids(name, merge), target_of(storage, name, merge)
        with _raising_failures(job), watching_merge(shards, place, steps, plan.size, *shown):
            runners.run_merge(
                job,
                key,
                config.runner,
                workers=config.workers,
                processes=config.processes,
                arguments=beam_arguments,
            )
        if merge.final and not commits_of(Ledger(storage), plan, name)[1]:
            raise ForebayError(f"the merge of plan {name} ended without a commit or an error")
        step += 1


@contextmanager
def _raising_failures(job: Job) -> Iterator[None]:
    """Raise what the tasks of a pipeline left behind as a failure, once it has run."""
    take_failure(job)  # of an earlier run
    yield
    failure = take_failure(job)
    if failure is not None:
        raise failure


@contextmanager
def _head_start(job: Job, config: BuildConfig) -> Iterator[tuple[ModuleType, int]]:
    """The module of runners, and how many first splits of a job are being written already.

    The module imports Beam, which takes seconds the first time. Where the work is done in this
    process, splits are written meanwhile. The lanes begin when the last of them is done, take on
    the ones after them, and then adopt what was published.
    """
    name = "pipelines.runners"
    if name in sys.modules or config.runner != "embedded" or config.processes:
        yield importlib.import_module(name), 0
        return
    splits = lanes(job, 1)[0]
    begun: list[int] = []
    imported = threading.Event()

    def until_imported() -> Iterator[int]:
        for split in splits:
            if imported.is_set():
                return
            begun.append(split)
            yield split

    with ThreadPoolExecutor(1, "forebay-head-start") as threads:
        written = threads.submit(lambda: deque(write(job, until_imported()), maxlen=0))
        try:
            module = importlib.import_module(name)
        finally:
            imported.set()
        written.exception()  # whatever went wrong, the lanes meet it again
        yield module, len(begun)


def _summary(
    request: Request,
    done: Done,
    seconds: float,
    working: float,
) -> Summary:
    commits = done.commits
    ledger = Ledger(request.storage)
    head = ledger.head()
    totals: dict[str, Any] = (
        {"rows": 0, "elements": {}} if head is None else ledger.commit(head).totals
    )
    return Summary(
        url=request.storage.url,
        version=-1 if head is None else head,
        rows=totals["rows"],
        tokens=totals["elements"].get("tokens", 0),
        new_rows=sum(int(c.entries.rows.sum()) for c in commits),
        new_tokens=_tokens(commits),
        earlier_tokens=done.earlier,
        records=sum(c.records for c in commits),
        rejects=add_counts(c.rejects for c in commits),
        counts=add_counts(c.counts for c in commits),
        bytes=done.bytes,
        stored_bytes=_stored_bytes(request.storage, commits),
        seconds=seconds,
        working=working,
        notes=done.notes,
    )


def _stored_bytes(storage: Storage, commits: Sequence[Commit]) -> int | None:
    folder = storage.local_path
    if folder is None:
        return None
    return sum(
        file.stat().st_size
        for commit in commits
        for shard, attempt in zip(commit.entries.shard, commit.entries.attempt, strict=True)
        for file in (folder / attempt_prefix(shard, attempt)).rglob("*")
        if file.is_file()
    )
