"""Build: sources into a cache, by plans that are stored before they are carried out."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

from cachelib.errors import (
    AttemptRetired,
    ForebayError,
)
from cachelib.format.commit import Commit
from cachelib.format.ledger import Ledger
from cachelib.format.shard import attempt_prefix
from cachelib.format.storage import Storage
from cachelib.format.succession import add_counts
from pipelines.commit import commits_of, finish
from pipelines.config import OWN_RUNNERS, BuildConfig, build_config
from pipelines.early import committing
from pipelines.overlap import meanwhile
from pipelines.plan import Plan, remaining
from pipelines.planning import (
    Planned,
    check_first_records,
    next_plan,
    roots_of,
    store,
    taken_in,
)
from pipelines.progress import POLL_SECONDS, Progress, Status, Watcher, watching_merge
from pipelines.ranges import PASSES, load_merge, next_merge, remove_runs, shard_ids, target_of
from pipelines.request import Request, cache_url, find_sources, inquire
from pipelines.runs import parts_of
from pipelines.sources import Discovery
from pipelines.tasks import (
    Job,
    lanes,
    raising_failures,
    write,
)
from pipelines.whole import Whole, whole_of


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
    if sys.flags.optimize > 1 and remaining(discovery.sources, taken_in(Ledger(storage))).pieces:
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
        twins: (name, name in the cache) of sources whose content the cache had already.
        notes: what the user should know.
        whole: whether nothing is left to do.
    """

    commits: tuple[Commit, ...]
    bytes: int
    earlier: int
    changed: tuple[str, ...]
    twins: tuple[tuple[str, str], ...]
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
    twins: dict[tuple[str, str], None] = {}
    while (planned := next_plan(request)).plan is not None and not stopped():
        notes |= dict.fromkeys(planned.notes)
        twins |= dict.fromkeys(planned.twins)
        check_first_records(request, planned)
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
    return Done(
        commits=tuple(commits),
        bytes=size,
        earlier=earlier,
        changed=planned.changed,
        twins=tuple(twins),
        notes=tuple(notes),
        whole=whole,
    )


def _tokens(commits: Iterable[Commit]) -> int:
    return sum(int(commit.entries.elements["tokens"].sum()) for commit in commits)


def _bytes_read(plan: Plan, planned: Planned, tokens: int) -> int:
    """Bytes of text that a run read for a plan, about, from the tokens that it committed."""
    size = sum(split.size for split in plan.splits[plan.waves[planned.waves_done] :])
    return round(size * (1 - planned.tokens_waiting / tokens)) if tokens else size


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
    roots = roots_of(request, plan)
    store(request, storage, plan)
    shown: Shown = (show or (lambda progress: None), Status(storage, name))
    if request.config.runner not in OWN_RUNNERS:
        with shown[1].of_all():
            whole = whole_of(request, plan, finishes=False, fails=False, may_be_empty=grows)
            _run_whole(request, plan, planned, whole, shown, beam_arguments)
        return commits_of(ledger, plan, name)[1][planned.waves_done :]
    if not plan.order.sorts:
        run = partial(_run_waves, may_be_empty=grows, stopped=stopped)
        with shown[1].of_all():
            run(request, storage, plan, planned, roots, shown, beam_arguments)
        return commits_of(ledger, plan, name)[1][planned.waves_done :]
    try:
        place, own, _ = parts_of(storage, plan, name)
        store(request, place, own)
        run = partial(_run_waves, may_be_empty=True)
        with shown[1].of_all():
            run(request, place, own, planned, roots, shown, beam_arguments)
            _merge_runs(request, plan, shown, beam_arguments)
    except Exception:
        # Another builder of the same plan may have committed it, and removed the runs.
        if not commits_of(ledger, plan, name)[1]:
            raise
    return commits_of(ledger, plan, name)[1]


def _run_whole(
    request: Request,
    plan: Plan,
    planned: Planned,
    whole: Whole,
    shown: Shown,
    beam_arguments: Sequence[str],
) -> None:
    """Run all that is left of a stored plan by one pipeline."""
    config, name = request.config, plan.name
    runners = importlib.import_module("pipelines.runners")
    if plan.order.sorts:
        watching = _watching_runs(request.storage, plan, planned, shown)
    else:
        watcher = Watcher(request.storage, plan, name, planned.splits_done, *shown)
        watching = watcher.waves(whole.job.waves)
    early = nullcontext() if plan.order.sorts else committing(whole.job)
    try:
        with raising_failures(whole.job, *whole.branches), watching, early:
            runners.run_wholes(
                {"FillCache": whole},
                config.runner,
                workers=config.workers,
                processes=config.processes,
                arguments=beam_arguments,
            )
    except Exception:
        # Another builder of the same plan may have committed it.
        if len(commits_of(Ledger(request.storage), plan, name)[1]) < plan.wave_count:
            raise


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
            raising_failures(job),
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
        with raising_failures(job), watching_merge(shards, place, steps, plan.size, *shown):
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
def _watching_runs(storage: Storage, plan: Plan, planned: Planned, shown: Shown) -> Iterator[None]:
    """Watch runs and what becomes of them in the background, until the block ends."""
    name = plan.name
    place, own, own_name = parts_of(storage, plan, name)

    def stored(*keys: str) -> list[str]:
        return [key for key in keys if place.read(key) is not None]

    def watch(ended: threading.Event) -> None:
        runs = Watcher(place, own, own_name, planned.splits_done, *shown)
        with runs.waves(range(own.wave_count)):
            while not stored(*PASSES) and not ended.wait(POLL_SECONDS):
                pass
        passes = PASSES if stored(PASSES[0]) else PASSES[1:]
        for step, key in enumerate(passes):
            while not stored(key):
                if ended.wait(POLL_SECONDS):
                    return
            merge, later = load_merge(storage.url, name, key), passes[step + 1 :]
            shards, where = shard_ids(name, merge), target_of(storage, name, merge)
            with watching_merge(shards, where, (step, len(passes)), plan.size, *shown):
                while not stored(*later) and not ended.wait(POLL_SECONDS):
                    pass

    with meanwhile("forebay-progress-of-runs", watch):
        yield


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
