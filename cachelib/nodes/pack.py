"""Whole documents packed into rows."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from cachelib import segments
from cachelib.nodes import plans
from cachelib.nodes.base import Columns, Origin, Stream, Version, chain, traced
from cachelib.order.packing import Order, Plan, Progress, Rule, plan
from cachelib.ragged import offsets_of, ranges

HELD_POOLS = 4
"""Pools of which it is held where their pieces are: 24 bytes a piece and no tokens."""

READ_ROWS = 1 << 18
"""Rows whose lengths are read at once while a plan is made."""

T = TypeVar("T")


class Held(Generic[T]):
    """What was made last, at most ``limit`` things by key. Thread-safe; pickled, it is empty."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._things: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, (self._limit,)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The thing of a key; ``make`` makes it if it is not held, one at a time."""
        with self._lock:
            if key not in self._things:
                self._things[key] = make()
                while len(self._things) > self._limit:
                    self._things.popitem(last=False)
            self._things.move_to_end(key)
            return self._things[key]


@dataclass(frozen=True, eq=False)
class Pool:
    """Where the pieces of a pool lie in storage, those of a pack side by side.

    Attributes:
        rows: int64 (pieces,), the document of each.
        starts: int64 (pieces, fields), the first value of each among all of the field.
        sizes: int64 (pieces, fields).
        packs: int64 (packs + 1,), the first piece of each.
    """

    rows: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    packs: np.ndarray

    def take(self, packs: np.ndarray) -> Pool:
        """The pieces of some of the packs, int64 (n,), in that order."""
        first, counts = self.packs[packs], np.diff(self.packs)[packs]
        pieces = ranges(first, counts)
        return Pool(self.rows[pieces], self.starts[pieces], self.sizes[pieces], offsets_of(counts))


@dataclass(frozen=True)
class Pack:
    """Packs of whole documents.

    A pool of documents is packed when the first of its packs is asked for, which takes their
    lengths alone; tokens are read for the packs that are asked for.

    Attributes:
        child: the documents, in stored order.
        plan: which documents are in which pool, and how many packs each fills.
        pads: what fills the rest of a pack, by column; 0 where a column is not named.
        targets: how the column ``labels`` of the first field is made, None for none.
        epoch: number of the pass.
    """

    child: Stream
    plan: Plan
    pads: tuple[tuple[str, int], ...]
    targets: segments.Targets | None = None
    epoch: int = 0
    pools: Held[Pool] = field(default_factory=lambda: Held(HELD_POOLS), compare=False, repr=False)
    orders: Held[Order] = field(default_factory=lambda: Held(2), compare=False, repr=False)

    @property
    def size(self) -> int:
        return self.plan.size

    @property
    def version(self) -> Version:
        return self.child.version

    def take(self, indices: np.ndarray) -> Columns:
        pieces = self._pieces(indices)
        counts = np.diff(pieces.packs)
        numbers = ranges(np.ones_like(counts), counts)
        columns: Columns = {}
        for at, (name, length) in enumerate(self.plan.rule.limits):
            starts, sizes = pieces.starts[:, at], pieces.sizes[:, at]
            used = np.diff(offsets_of(sizes)[pieces.packs])
            inside = np.arange(length) < used[:, None]
            for column in self.child.alike(name):
                values = self.child.read_spans(column, starts, sizes)
                columns[column] = _padded(values, inside, dict(self.pads).get(column, 0))
            ids, positions = told(self.plan.rule, name)
            columns[ids] = _padded(np.repeat(numbers, sizes).astype(np.int32), inside, 0)
            places = ranges(np.zeros_like(sizes), sizes)
            columns[positions] = _padded(places.astype(np.int32), inside, 0)
        if self.targets is not None:
            first = self.plan.rule.fields[0]
            ids, _ = told(self.plan.rule, first)
            columns["labels"] = segments.labels(columns[first], columns[ids], self.targets)
        return columns

    def origins(self, index: int) -> list[Origin]:
        rows = self._pieces(np.array([index], np.int64)).rows
        return [origin for row in rows.tolist() for origin in self.child.origins(row)]

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        pools, packs = self._order.locate(indices)
        return traced(offsets_of(self.plan.packs)[pools] + packs, epoch)

    def in_epoch(self, epoch: int) -> Pack:
        # What is held is shared: pools have the same documents and packs in every pass.
        return replace(self, epoch=epoch)

    def describe(self) -> dict[str, Any]:
        return {**_facts(self.child, self.plan.rule, self.plan.seed), "packs": self.size}

    @property
    def _order(self) -> Order:
        return self.orders.get(self.epoch, lambda: self.plan.order(self.epoch))

    def _pieces(self, indices: np.ndarray) -> Pool:
        """The pieces of the packs at indices, pack by pack in that order."""
        pools, packs = self._order.locate(indices)
        numbers = np.unique(pools).tolist()
        chosen = [np.flatnonzero(pools == number) for number in numbers]
        parts = [
            self._pool(number).take(packs[c]) for number, c in zip(numbers, chosen, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return _joined(parts, len(self.plan.rule.limits)).take(np.argsort(_concatenated(chosen)))

    def _pool(self, number: int) -> Pool:
        return self.pools.get(number, lambda: self._packed(number))

    def _packed(self, number: int) -> Pool:
        rows = self.plan.documents(number)
        spans = [self.child.spans(name, rows) for name in self.plan.rule.fields]
        pieces = self.plan.rule.pieces(np.stack([sizes for _, sizes in spans], axis=1))
        bases = np.stack([starts for starts, _ in spans], axis=1)[pieces.documents]
        packs, count = self.plan.rule.pack(pieces.sizes)
        # Within a pack pieces stand as in the pool, in the order of the seed and not by size.
        by_pack = np.argsort(packs, kind="stable")
        return Pool(
            rows[pieces.documents[by_pack]],
            (bases + pieces.starts)[by_pack],
            pieces.sizes[by_pack],
            offsets_of(np.bincount(packs, minlength=count)),
        )


def pack(
    child: Stream,
    rule: Rule,
    seed: int,
    pads: Mapping[str, int],
    targets: segments.Targets | None = None,
    kept: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Pack:
    """Packs of documents, planned by their lengths, which are all read here unless a plan is kept.

    Args:
        child: the documents, a finite number.
        rule: what a pack holds.
        seed: of the membership of pools, and of the order.
        pads: what fills the rest of a pack, by column.
        targets: how the first field is labelled, None for not at all.
        kept: the path or URL of the plan: where to read it, or else to keep it.
        progress: is told how many documents are done, and of how many; each counts twice, as its
            length is read and as it is packed.

    Raises:
        ValueError: a field or pad that cannot be, a first field that holds no token ids to be
            labelled, or a document that ``rule`` refuses.
        StateMismatch, CorruptData: what is kept does not fit, or is damaged.
    """
    _check(child, rule, pads, targets)
    make = partial(_planned, child, rule, seed, progress)
    found = (
        make() if kept is None else plans.kept(kept, _facts(child, rule, seed), rule, seed, make)
    )
    return Pack(child, found, tuple(pads.items()), targets)


def _planned(child: Stream, rule: Rule, seed: int, progress: Progress | None) -> Plan:
    """The plan of packs of documents, whose lengths are all read."""
    count = child.size
    assert count is not None
    sizes = np.empty((count, len(rule.fields)), np.uint32)
    accounts = rule.account(np.empty((0, len(rule.fields)), np.int64))
    for start in range(0, count, READ_ROWS):
        rows = np.arange(start, min(start + READ_ROWS, count))
        block = np.stack([child.spans(name, rows)[1] for name in rule.fields], axis=1)
        accounts += rule.account(block, start)
        sizes[rows] = block
        if progress is not None:
            progress(int(rows[-1]) + 1, 2 * count)

    def packed(done: int, _: int) -> None:
        if progress is not None:
            progress(count + done, 2 * count)

    return plan(sizes, accounts, rule, seed, packed)


def _facts(child: Stream, rule: Rule, seed: int) -> dict[str, Any]:
    """What the packs of documents and their order depend on, as JSON."""
    return {
        "kind": "pack",
        "seed": seed,
        **{f"length[{name}]": length for name, length in rule.limits},
        "overlong": rule.overlong,
        "max_segments": rule.max_segments,
        "of": child.describe(),
    }


def told(rule: Rule, name: str) -> tuple[str, str]:
    """The names of the columns of segments and of positions of a field."""
    prefix = "" if name == rule.fields[0] else f"{name}_"
    return f"{prefix}segment_ids", f"{prefix}positions"


def holds_packs(node: Any) -> bool:
    """Whether a node stands on packs."""
    return any(isinstance(each, Pack) for each in chain(node))


def _padded(values: np.ndarray, inside: np.ndarray, pad: int) -> np.ndarray:
    """Values back to back put to where ``inside`` is true, bool (rows, length); elsewhere a pad."""
    rows = np.full((*inside.shape, *values.shape[1:]), pad, values.dtype)
    rows[inside] = values
    return rows


def _joined(pools: Sequence[Pool], fields: int) -> Pool:
    """All pieces of several pools, one after another."""
    none = np.empty((0, fields), np.int64)
    return Pool(
        _concatenated([pool.rows for pool in pools]),
        np.concatenate([none, *(pool.starts for pool in pools)]),
        np.concatenate([none, *(pool.sizes for pool in pools)]),
        offsets_of(_concatenated([np.diff(pool.packs) for pool in pools])),
    )


def _concatenated(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _check(
    child: Stream, rule: Rule, pads: Mapping[str, int], targets: segments.Targets | None
) -> None:
    filled: list[str] = []
    added: list[str] = []
    for name in rule.fields:
        filled += child.alike(name)
        added += told(rule, name)
    if targets is not None:
        added.append("labels")
    names = filled + added
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"there would be two columns {twice}: give a length for one of the fields that share "
            "their lengths, and no field the name of a column that packing adds"
        )
    none = np.empty(0, np.int64)
    for name, value in pads.items():
        if name not in filled:
            raise ValueError(f"there is no column {name!r} to pad: there are {filled}")
        dtype = child.read_spans(name, none, none).dtype
        if dtype.kind in "iu" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            raise ValueError(f"pad_id {value} does not fit column {name!r} of {dtype}")
    if targets is not None:
        first = rule.fields[0]
        segments.check_ids(first, child.read_spans(first, none, none), targets)
