"""Chain: whether each commit is the next one after those before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cachelib.errors import CorruptData
from cachelib.format.commit import Commit
from cachelib.format.digest import EMPTY, Digest, fold
from cachelib.format.entries import Entries
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Schema
from cachelib.words import counted


@dataclass
class Chain:
    """What the commits so far add up to."""

    version: int = -1
    digest: str = ""
    schema: Schema | None = None
    identity: dict[str, Any] | None = None
    rows: int = 0
    span: int = 0
    elements: dict[str, int] = field(default_factory=dict)
    content: Digest = EMPTY
    shards: int = 0
    base: dict[str, Any] | None = None
    parts: list[Entries] = field(default_factory=list)
    coverage: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    collected: dict[str, Any] | None = None
    retired: frozenset[tuple[str, str]] = frozenset()
    follows: bool = True  # whether the commit before was read
    complete: bool = True  # whether all were

    def check(self, commit: Commit) -> Iterator[str]:
        """What is wrong with a commit as the next one."""
        entries = commit.entries
        if len(lengths := sizes(entries)) > 1:
            yield f"has columns of {sorted(lengths)} shards"
        if not self.follows:
            return
        wanted = self._after(commit)
        if isinstance(wanted, str):
            yield wanted
            return
        expected: dict[str, tuple[Any, Any]] = {
            "version": (commit.version, self.version + 1),
            "parent": (commit.parent, self.digest),
            "first row": (commit.row_base, self.span),
            "rows": (commit.totals["rows"], wanted["rows"]),
            "row indices": (commit.span, wanted["span"]),
            "shards": (commit.totals["shards"], wanted["shards"]),
            "elements": (commit.totals["elements"], wanted["elements"]),
            "content digest": (commit.totals["digest"], wanted["digest"]),
        }
        if commit.operation != "retire":
            expected["collected"] = (commit.collected, self.collected)
        if self.schema is not None:
            expected["schema"] = (commit.schema.digest, self.schema.digest)
        for name, (found, wanted) in expected.items():
            if found != wanted:
                yield f"says {name} {found}, expected {wanted}"
        if (commit.operation == "create") != (commit.version == 0):
            yield f"has operation {commit.operation!r} as commit {commit.version}"
        names = self.names.difference(commit.removed)
        again = [name for name, count in Counter(entries.shard).items()
                 if count > 1 or name in names]  # fmt: skip
        if again:
            shards = counted(len(again), "shard")
            yield f"holds {shards} that the cache has already, first {again[0]}"
        named = self.retired.intersection(zip(entries.shard, entries.attempt, strict=True))
        if named:
            yield f"names attempts that were given up before, as {min(named)}"
        if commit.retired is not None and commit.retired not in (commit.collected or {}).get(
            "attempts", ()
        ):
            yield f"retires {commit.retired}, which it does not count as collected"

    def _after(self, commit: Commit) -> dict[str, Any] | str:
        """The totals after a commit, or why there are none."""
        entries = commit.entries
        if commit.removed:
            try:
                whole = Entries.concatenate(self.parts).replaced(commit.replacements)
            except CorruptData as error:
                return str(error)
            return {
                "rows": whole.rows_left,
                "span": int(whole.row_spans.sum()),
                "shards": len(whole),
                "elements": {name: whole.elements_left(name) for name in self.elements},
                "digest": str(fold(map(Digest.parse, whole.digests))),
            }
        return {
            "rows": self.rows + entries.rows_left,
            "span": self.span + int(entries.row_spans.sum()),
            "shards": self.shards + len(entries),
            "elements": {
                name: self.elements.get(name, 0) + entries.elements_left(name)
                for name in (entries.elements if len(entries) else self.elements)
            },
            "digest": str(fold([self.content, *map(Digest.parse, entries.digests)])),
        }

    def add(self, commit: Commit, ledger: Ledger) -> int:
        """Take in a commit; returns the rows in the arrays that it put others in the place of."""
        self.follows = True
        self.version, self.digest = commit.version, commit.digest
        self.schema, self.identity = commit.schema, commit.identity
        self.rows, self.elements = commit.totals["rows"], commit.totals["elements"]
        self.content = Digest.parse(commit.totals["digest"])
        self.shards, self.base = commit.totals["shards"], commit.base
        self.span, self.collected = commit.span, commit.collected
        with suppress(CorruptData):  # whoever needs it will say so
            self.retired = ledger.retired_attempts(commit.collected)
        replaced_rows = 0
        if commit.removed:
            with suppress(CorruptData):  # `check` has said so
                before = Entries.concatenate(self.parts)
                self.parts = [before.replaced(commit.replacements)]
                after = int(self.parts[0].rows.sum()) - int(commit.entries.rows.sum())
                replaced_rows = int(before.rows.sum()) - after
        else:
            self.parts.append(commit.entries)
        self.names.difference_update(commit.removed)
        self.names.update(commit.entries.shard)
        if commit.coverage is not None:
            self.coverage.append(commit.coverage)
        return replaced_rows


def sizes(entries: Entries) -> set[int]:
    """The lengths of the columns of entries; sound ones have but one."""
    columns = (entries.shard, entries.attempt, entries.rows, entries.digests)
    return {len(column) for column in (*columns, *entries.elements.values())}
