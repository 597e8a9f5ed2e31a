"""Commit: one wave of a plan becomes one commit of the ledger, whoever carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachelib.errors import BuildFailed, LedgerConflict
from cachelib.format import coverage
from cachelib.format.commit import Commit
from cachelib.format.ledger import Ledger
from cachelib.format.shard import Manifest, read_rejects
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import add_counts, follow
from cachelib.words import counted, example
from pipelines.plan import Plan

REJECTS_JUDGED_FROM = 10_000
"""Records of a plan from which on its rate of rejects is looked at before its end."""

REDONE_PARTS = 3
"""Parts that an audit may find tokenized wrongly before the build is stopped."""


def commits_of(ledger: Ledger, plan: Plan, name: str) -> tuple[Snapshot | None, list[Commit]]:
    """The newest snapshot, and the commits that carry out a plan, by wave.

    Raises:
        LedgerConflict: the ledger went on from the plan's parent by another plan.
    """
    head = ledger.head()
    if head is None or head < plan.parent_version:
        if plan.parent:
            raise LedgerConflict(
                f"{ledger.storage.url}: plan {name} follows commit {plan.parent_version}, "
                f"but the newest is {head}"
            )
        return None, []
    if plan.parent and ledger.commit(plan.parent_version).digest != plan.parent:
        raise LedgerConflict(
            f"{ledger.storage.url}: commit {plan.parent_version} is not the one plan {name} follows"
        )
    own = []
    for commit in ledger.commits(plan.parent_version + 1, head + 1):
        if commit.task.get("plan") == name:
            own.append(commit)
        elif commit.operation in ("create", "append"):
            raise LedgerConflict(
                f"{ledger.storage.url}: commit {commit.version} was made by another build (plan "
                f"{commit.task.get('plan')}) after plan {name} was made. Nothing is damaged; build "
                "again to add what is still missing"
            )
    return ledger.snapshot(head), own


def commit_wave(
    storage: Storage,
    plan: Plan,
    name: str,
    wave: int,
    manifests: Sequence[Manifest],
    max_reject_rate: float,
    may_be_empty: bool = False,
) -> Commit:
    """Commit a wave's manifests, in order; does nothing where that is done already.

    Args:
        plan, name: the plan and its digest.
        wave: number of the wave.
        manifests: as `in_order` gives them.
        max_reject_rate: share of the plan's records that may be rejected.
        may_be_empty: whether the cache may have no row at all in the end.

    Raises:
        BuildFailed: too many rejects, no row at all, or too many parts failed their audit.
        LedgerConflict: another plan took the ledger further, or this plan did differently.
    """
    ledger = Ledger(storage)
    versions = {source.name: source.version for source in plan.sources}
    covers = [cover for manifest in manifests for cover in manifest.covers]
    delta = coverage.delta(covers, versions)
    while True:
        parent, own = commits_of(ledger, plan, name)
        if len(own) > wave:
            return own[wave]
        if len(own) < wave:
            raise LedgerConflict(f"wave {wave} of plan {name} comes after only {len(own)} waves")
        if parent is not None and parent.commit.finished and _ended_since(ledger, plan, parent):
            left = counted(plan.wave_count - wave, "wave")
            raise LedgerConflict(
                f"{storage.url} was marked complete at version {parent.version}, while plan "
                f"{name} had {left} to go; reopen: true (--reopen) adds what is missing"
            )
        last = wave == plan.wave_count - 1
        check_rejects(storage, own, manifests, last, max_reject_rate)
        check_audits(own, manifests)
        rows = sum(manifest.rows for manifest in manifests)
        if last and rows + (0 if parent is None else parent.rows) == 0 and not may_be_empty:
            raise BuildFailed(_no_rows(storage, plan, manifests))
        commit = follow(
            ledger,
            parent,
            operation="create" if parent is None else "append",
            task={"plan": name, "wave": wave, "waves": plan.wave_count},
            schema=plan.schema,
            identity=plan.identity,
            manifests=manifests,
            coverage=delta,
            seals=plan.seals(wave),
        )
        there = ledger.append(commit)
        if there.digest == commit.digest:
            return there


def _ended_since(ledger: Ledger, plan: Plan, parent: Snapshot) -> bool:
    """Whether a cache was marked complete after a plan was made."""
    since = ledger.commits(plan.parent_version + 1, parent.version + 1)
    return any(commit.operation == "finish" for commit in since)


def finish(storage: Storage) -> Commit:
    """Mark a cache complete; does nothing where it is."""
    return _close(storage, finished=True)


def seal(storage: Storage) -> Commit:
    """End an era with the rows that there are; does nothing where no row is new since the last."""
    return _close(storage, finished=False)


def _close(storage: Storage, finished: bool) -> Commit:
    ledger = Ledger(storage)
    while True:
        parent = ledger.snapshot()
        if parent.commit.finished or (not finished and unsealed_rows(parent) == 0):
            return parent.commit
        commit = follow(
            ledger,
            parent,
            operation="finish" if finished else "seal",
            task={},
            schema=parent.commit.schema,
            identity=parent.commit.identity,
            seals=True,
            finished=finished,
        )
        if ledger.append(commit).digest == commit.digest:
            return commit


def unsealed_rows(snapshot: Snapshot) -> int:
    """Rows that belong to no era yet."""
    return snapshot.rows - (int(snapshot.eras[-1]) if len(snapshot.eras) else 0)


def check_rejects(
    storage: Storage,
    before: Sequence[Commit],
    manifests: Sequence[Manifest],
    last: bool,
    max_reject_rate: float,
) -> None:
    """Stop a build whose share of rejects, over the whole plan so far, is too large.

    Args:
        before: the plan's earlier commits.
        last: whether this is the plan's last wave.

    Raises:
        BuildFailed: with the most frequent reasons and an example of each.
    """
    records = sum(c.records for c in before) + sum(m.records for m in manifests)
    reasons = add_counts([*(c.rejects for c in before), *(m.rejects for m in manifests)])
    rejects = sum(reasons.values())
    if records == 0 or not (last or records >= REJECTS_JUDGED_FROM):
        return
    if rejects > max_reject_rate * records:
        raise BuildFailed(
            f"{rejects} of {records} records were rejected ({rejects / records:.2%}), more than "
            f"max_reject_rate {max_reject_rate:.2%}. Nothing more was committed. "
            f"Most frequent:\n{_examples(storage, manifests, reasons)}\n"
            "Mend the sources or the options, or allow more with max_reject_rate "
            "(--max-reject-rate)"
        )


def _examples(storage: Storage, manifests: Sequence[Manifest], reasons: Mapping[str, int]) -> str:
    lines = []
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:5]:
        line = f"  {count} x {reason}"
        having = next((m for m in manifests if reason in m.rejects), None)
        if having is not None:
            for reject in read_rejects(storage, having.shard, having.attempt):
                if reject["reason"] == reason:
                    line += f", first at {example(reject)}"
                    break
        lines.append(line)
    return "\n".join(lines)


def check_audits(before: Sequence[Commit], manifests: Sequence[Manifest]) -> None:
    """Stop a build whose fast tokenizer engine was found wrong too often.

    Raises:
        BuildFailed: naming how many parts were written again.
    """
    counts = [*(commit.counts for commit in before), *(m.counts for m in manifests)]
    redone = sum(count.get("redone", 0) for count in counts)
    if redone >= REDONE_PARTS:
        raise BuildFailed(
            f"the fast tokenizer engine differed from the exact one in {redone} parts, which were "
            "written again with the exact engine. Build with engine: hf (--engine hf), and please "
            "report it"
        )


def _no_rows(storage: Storage, plan: Plan, manifests: Sequence[Manifest]) -> str:
    sources = sorted({cover.source for manifest in manifests for cover in manifest.covers})
    rejects = add_counts(manifest.rejects for manifest in manifests)
    shown = ", ".join(sources[:3]) + (", ..." if sources[3:] else "")
    found = f"{counted(len(sources), 'source')} ({shown})"
    told = f"\n{_examples(storage, manifests, rejects)}\n" if rejects else " none. "
    none = f"{found} gave no row at all; rejects:{told}Nothing was committed"
    side = plan.reading.holdout
    if side is None:
        return none
    return f"{none}. Of all records {side.share:g} are wanted here: change holdout (--holdout)"
