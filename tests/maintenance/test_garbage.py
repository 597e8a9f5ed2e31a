"""What is garbage and which versions expire: pure planning, against sets of all versions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachelib.format.commit import Commit
from cachelib.format.digest import EMPTY
from cachelib.format.entries import Replacement
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import Manifest
from cachelib.format.snapshot import Snapshot
from cachelib.format.storage import Storage
from cachelib.format.succession import follow, replace_shards, retire
from pipelines.maintenance.garbage import (
    Attempt,
    History,
    attributed,
    garbage,
    in_progress,
    joined,
)

SCHEMA = Schema((Field("label", "int64"),))
LEDGER = Ledger(Storage.at("memory://garbage"))


@dataclass
class Model:
    """A ledger that is not stored, and the attempts that each of its versions needs."""

    history: History = field(default_factory=History)
    snapshot: Snapshot | None = None
    needed: list[set[Attempt]] = field(default_factory=list)
    rows: dict[Attempt, int] = field(default_factory=dict)
    named: int = 0

    def manifest(self, rows: int) -> Manifest:
        self.named += 1
        return Manifest(f"s{self.named}", "a", rows, {}, f"{rows}:0", (), rows, {}, {}, {})

    def append(self, *rows: int) -> None:
        operation = "create" if self.snapshot is None else "append"
        self._add(
            follow(
                LEDGER,
                self.snapshot,
                operation=operation,
                task={"plan": f"{len(self.needed):06d}-x"},
                schema=SCHEMA,
                identity={},
                manifests=[self.manifest(count) for count in rows],
            ),
        )

    def replace(self, operation: str, start: int, stop: int) -> None:
        assert self.snapshot is not None
        group = self.snapshot.entries.slice(start, stop)
        added = group.packed(f"p{len(self.needed)}", "a", str(EMPTY))
        if operation == "delete":
            kept = np.arange(int(group.rows[0])) > 0
            added = group.slice(0, 1).thinned(kept, {}, str(EMPTY))
        groups = [Replacement(group.shard[: stop - start], added)]
        self._add(
            replace_shards(LEDGER, self.snapshot, operation=operation, task={}, groups=groups)
        )

    def retire(self) -> None:
        assert self.snapshot is not None
        self._add(retire(LEDGER, self.snapshot, task={}, attempts=[], expired=[]))

    def _add(self, commit: Commit) -> None:
        entries = commit.entries
        if self.snapshot is not None:
            before = self.snapshot.entries
            if commit.removed:
                entries = before.replaced(commit.replacements)
            else:
                entries = before.concatenate([before, entries])
        self.history.add(commit)
        self.snapshot = Snapshot.of(commit, entries)
        attempts = list(zip(entries.shard, entries.attempt, strict=True))
        self.rows.update(zip(attempts, entries.rows.tolist(), strict=True))
        self.needed.append(set(attempts))


@st.composite
def models(draw: st.DrawFn) -> Model:
    model = Model()
    model.append(*draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 8))):
        assert model.snapshot is not None
        shards = len(model.snapshot.entries)
        kind = draw(st.sampled_from(["append", "compact", "delete", "retire"]))
        if kind == "append":
            model.append(*draw(st.lists(st.integers(0, 3), max_size=2)))
        elif kind == "retire":
            model.retire()
        elif shards:
            start = draw(st.integers(0, shards - 1))
            one = kind == "delete"
            stop = start + 1 if one else draw(st.integers(start + 1, shards))
            model.replace(kind, start, stop)
    return model


@given(models(), st.integers(1, 5), st.sets(st.integers(0, 8)), st.data())
def test_garbage_is_what_no_version_needs_that_is_kept(
    model: Model, keep: int, pins: set[int], data: st.DataObject
) -> None:
    versions = len(model.needed)
    pins = {pin for pin in pins if pin < versions}
    first = model.history.newest(keep)
    busy = [v for v in range(first, versions) if v not in model.history.retires]
    assert len(busy) == keep or first == 0
    kept = {*range(first, versions), *pins}
    needed = set().union(*(model.needed[version] for version in kept))
    found = garbage(model.history, first, pins, (), (), {("zombie", "z")})
    assert found.attempts == (model.rows.keys() - needed) | {("zombie", "z")}
    expired = {v for start, stop in found.expired for v in range(start, stop)}
    assert expired == {
        version
        for version in range(versions)
        if any(model.rows[each] for each in model.needed[version] & found.attempts)
    }
    assert not expired & kept
    # What was given up stays so, whatever is kept later; but for pins, of what is there still.
    retired = found.attempts
    again = garbage(model.history, 0, pins, retired, (), ())
    assert again.attempts == retired - {("zombie", "z")}
    assert again.expired == found.expired
    gone = data.draw(st.sets(st.sampled_from(sorted(model.rows))))
    broken = garbage(model.history, first, pins, retired | gone, gone, ())
    for pin in pins:
        whole = not any(model.rows[each] for each in model.needed[pin] & gone)
        covered = any(start <= pin < stop for start, stop in broken.expired)
        assert covered != whole


RANGES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=5).map(
    lambda pairs: joined((start, start + size) for start, size in pairs)
)


@given(RANGES, RANGES)
def test_versions_expire_by_the_commit_that_said_so_first(
    before: list[tuple[int, int]], more: list[tuple[int, int]]
) -> None:
    old = attributed(before, [], 30)
    assert [(start, stop) for start, stop, _ in old] == before
    found = attributed(joined([*before, *more]), old, 40)
    by = {v: each for start, stop, each in found for v in range(start, stop)}
    earlier = {v for start, stop in before for v in range(start, stop)}
    later = {v for start, stop in more for v in range(start, stop)}
    assert by == {v: 30 if v in earlier else 40 for v in earlier | later}
    assert attributed(before, found, 50) == old


def test_a_plan_is_in_progress_while_nobody_else_appends() -> None:
    plans = {"000000-a": 2, "000001-b": 1, "000002-c": 3}
    assert in_progress(plans, []) == set(plans)
    assert in_progress(plans, [(0, "000000-a")]) == set(plans)
    assert in_progress(plans, [(0, "000000-a"), (1, "000000-a")]) == {"000002-c"}
    assert in_progress(plans, [(0, "000000-a"), (1, "000001-b")]) == {"000002-c"}
    assert in_progress(plans, [(5, None)]) == set()
    assert in_progress({"strange": 1}, []) == {"strange"}
