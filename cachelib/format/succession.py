"""Succession: the commit that comes after a snapshot. It is not put yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cachelib.errors import (
    IncompatibleCache,
)
from cachelib.format.commit import Commit
from cachelib.format.digest import EMPTY, Digest, fold
from cachelib.format.entries import Entries, Replacement
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Schema
from cachelib.format.shard import Manifest, has_offsets
from cachelib.format.snapshot import Snapshot

CHECKPOINT_EVERY = 64
"""Commits from one checkpoint to the next."""


RETIREMENTS = 64
"""Objects that name retired attempts, at most, before they become one."""


def follow(
    ledger: Ledger,
    parent: Snapshot | None,
    *,
    operation: str,
    task: Mapping[str, Any],
    schema: Schema,
    identity: Mapping[str, Any],
    manifests: Sequence[Manifest] = (),
    coverage: Any = None,
    seals: bool = False,
    finished: bool = False,
) -> Commit:
    """The commit that adds manifests, in the order given, after a parent; it is not put yet.

    Raises:
        IncompatibleCache: the schema is not the parent's: shards of both could not be read alike.
    """
    if parent is not None and parent.commit.schema != schema:
        raise IncompatibleCache(
            f"{ledger.storage.url} has the schema {parent.commit.schema.to_json()}, "
            f"not {schema.to_json()}"
        )
    fields = [f.name for f in schema.fields if has_offsets(f)]
    entries = Entries.of(manifests, fields)
    before = EMPTY if parent is None else parent.digest
    span = 0 if parent is None else parent.rows
    old: dict[str, Any] = (
        {"rows": 0, "elements": dict.fromkeys(fields, 0), "shards": 0}
        if parent is None
        else parent.commit.totals
    )
    added = int(entries.rows.sum())
    totals = {
        "rows": old["rows"] + added,
        "elements": {f: old["elements"][f] + int(entries.elements[f].sum()) for f in fields},
        "digest": str(fold([before, *(Digest.parse(m.digest) for m in manifests)])),
        "shards": old["shards"] + len(entries),
    }
    return Commit(
        version=0 if parent is None else parent.version + 1,
        parent="" if parent is None else parent.commit.digest,
        operation=operation,
        task=dict(task),
        schema=schema,
        identity=dict(identity),
        row_base=span,
        entries=entries,
        coverage=None if coverage is None else ledger.put_object(coverage),
        records=sum(m.records for m in manifests),
        rejects=add_counts(m.rejects for m in manifests),
        counts=add_counts(m.counts for m in manifests),
        totals=_with_span(totals, span + added),
        seals=seals,
        finished=finished,
        base=_base_after(ledger, parent),
        collected=None if parent is None else parent.commit.collected,
    )


def replace_shards(
    ledger: Ledger,
    parent: Snapshot,
    *,
    operation: str,
    task: Mapping[str, Any],
    groups: Sequence[Replacement],
    coverage: Any = None,
) -> Commit:
    """The commit that puts shards in the place of others after a parent; it is not put yet.

    Row indices and eras stay. A cache that was marked complete stays so.

    Args:
        groups: what is replaced, in row order; at least one.
        coverage: what is taken in besides, or None.

    Raises:
        CorruptData: what is to be replaced is not there, or takes up other indices.
    """
    schema = parent.commit.schema
    entries = parent.entries.replaced(groups)
    totals = {
        "rows": entries.rows_left,
        "elements": {f: entries.elements_left(f) for f in parent.element_bases},
        "digest": str(fold(map(Digest.parse, entries.digests))),
        "shards": len(entries),
    }
    return Commit(
        version=parent.version + 1,
        parent=parent.commit.digest,
        operation=operation,
        task=dict(task),
        schema=schema,
        identity=parent.commit.identity,
        row_base=parent.rows,
        entries=Entries.concatenate([group.added for group in groups]),
        coverage=None if coverage is None else ledger.put_object(coverage),
        records=0,
        rejects={},
        counts={},
        totals=_with_span(totals, parent.rows),
        seals=False,
        finished=parent.commit.finished,
        base=_base_after(ledger, parent),
        removed=tuple(shard for group in groups for shard in group.removed),
        groups=tuple((len(group.removed), len(group.added)) for group in groups),
        collected=parent.commit.collected,
    )


def retire(
    ledger: Ledger,
    parent: Snapshot,
    *,
    task: Mapping[str, Any],
    attempts: Sequence[tuple[str, str]],
    expired: Sequence[tuple[int, int, int]],
) -> Commit:
    """The commit that gives up attempts after a parent; it is not put yet. It changes no row.

    Args:
        attempts: (shard, attempt) of those that no version which can be read needs; may be none.
        expired: as of `Commit.collected`, of all retire commits together.
    """
    before = parent.commit.collected
    names = [] if before is None else list(before["attempts"])
    if len(names) >= RETIREMENTS:
        together = sorted(ledger.retired_attempts(before))
        names = [ledger.put_object({"attempts": [list(each) for each in together]})]
    retired = None
    if attempts:
        retired = ledger.put_object({"attempts": [list(each) for each in sorted(attempts)]})
        names.append(retired)
    commit = follow(
        ledger,
        parent,
        operation="retire",
        task=task,
        schema=parent.commit.schema,
        identity=parent.commit.identity,
        finished=parent.commit.finished,
    )
    collected = {"expired": [list(each) for each in expired], "attempts": names}
    return replace(commit, retired=retired, collected=collected)


def _with_span(totals: dict[str, Any], span: int) -> dict[str, Any]:
    """Totals that tell how many row indices there are, where these are not the rows."""
    return totals if span == totals["rows"] else {**totals, "span": span}


def _base_after(ledger: Ledger, parent: Snapshot | None) -> dict[str, Any] | None:
    """The checkpoint of the commit after a parent: now and then a new one."""
    if parent is None:
        return None
    if (parent.version + 1) % CHECKPOINT_EVERY == 0:
        return ledger.checkpoint(parent)
    return parent.commit.base


def add_counts(counts: Any) -> dict[str, int]:
    """The sums of several {name: count}, by sorted name."""
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
