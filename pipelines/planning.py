"""Planning: what a build would do next, which is stored before it is carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachelib.errors import CorruptData, IncompatibleCache, LedgerConflict
from cachelib.format import coverage
from cachelib.format.ledger import Ledger
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.words import counted
from pipelines.commit import commits_of
from pipelines.config import setting
from pipelines.order.orders import parse_order
from pipelines.plan import Plan, Work, check_unchanged, make_splits, make_waves, remaining, spread
from pipelines.progress import published
from pipelines.request import Request
from pipelines.runs import parts_of
from pipelines.sample import check_sample
from pipelines.sample import notes as notes_on_sample
from pipelines.tasks import load_plan, plan_key, plans_after, tokenizer_objects


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
        twins: (name, name in the cache) of sources to be taken in whose content it has already.
        notes: what the user should know.
    """

    plan: Plan | None
    stored: bool
    waves_done: int
    splits_done: frozenset[int]
    tokens_waiting: int
    reused: int
    changed: tuple[str, ...]
    twins: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


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
    taken = taken_in(ledger)
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
            twins=work.twins,
            notes=(*notes, *_note_on_reopening(request, ledger, plan)),
        )
    anew = Planned(None, False, 0, frozenset(), 0, work.reused, work.changed, work.twins, notes)
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


def check_first_records(request: Request, planned: Planned) -> None:
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
        notes.append(note_on_twins(work.twins))
    if request.discovery.skipped:
        reasons = Counter(why for _, why in request.discovery.skipped)
        told = ", ".join(f"{count:,} x {why}" for why, count in sorted(reasons.items()))
        notes.append(f"left out below the inputs: {told}; plan names them")
    return tuple(notes)


def note_on_twins(twins: Sequence[tuple[str, str]]) -> str:
    """That the content of sources, (name, name in the cache) each, is taken in once more."""
    new, old = twins[0]
    return (
        f"the content of {counted(len(twins), 'source')} is in the cache already by another name "
        f"({new!r} is {old!r}) and is taken in, too. Names are paths relative to an input's root: "
        "give the inputs as before if these are the same files"
    )


def taken_in(ledger: Ledger) -> coverage.Coverage:
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


def roots_of(request: Request, plan: Plan) -> tuple[str, ...]:
    """Where each of a plan's roots lies now, found by the names of its sources."""
    present = {source.name: source for source in request.discovery.sources}
    roots = [""] * (1 + max(source.root for source in plan.sources))
    for source in plan.sources:
        if source.name in present:
            roots[source.root] = request.discovery.roots[present[source.name].root]
    return tuple(roots)


def store(request: Request, storage: Storage, plan: Plan) -> None:
    """Store a plan and the tokenizer that it names."""
    for key, data in tokenizer_objects(request.files).items():
        storage.put_if_absent(key, data)
    try:
        storage.put_json(plan_key(plan.name), plan.to_json())
    except CorruptData as error:
        raise CorruptData(f"{error}. Delete it and build again: it will be made anew") from error
