"""Rows, windows or packs of a followed cache: those of one sealed era after another.

Each era is a finite node of its own, made of nodes that know nothing of eras.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from cachelib.format.canonical import digest_of
from cachelib.nodes import plans
from cachelib.nodes.base import Columns, Node, Origin, Rows, Stream, grouped
from cachelib.nodes.left import Left, Thinned, stored
from cachelib.nodes.pack import Held, Pack, pack
from cachelib.nodes.selected import Selected
from cachelib.nodes.shuffle import Shuffle
from cachelib.nodes.slices import Slice
from cachelib.nodes.stored import Stored
from cachelib.nodes.windows import windows
from cachelib.order import seeds
from cachelib.order.eras import EraTable, Sealed, windows_before
from cachelib.order.indices import LARGEST, outside
from cachelib.order.packing import Plan, Rule
from cachelib.order.windows import WindowGrid
from cachelib.segments import Targets

HELD_ERAS = 4
"""Eras of which the nodes are held."""


@runtime_checkable
class Following(Rows, Thinned, Protocol):
    """Rows of a cache that grows; a `cachelib.following.Followed` is one."""

    @property
    def sealed(self) -> Sealed: ...
    def look(self) -> None: ...
    def until(
        self,
        enough: Callable[[], bool],
        wanted: str,
        through: str,
        given_up: Callable[[], bool],
    ) -> None: ...


@dataclass(frozen=True)
class Run:
    """Rows [start, stop) of ``total``, as a selection of them."""

    start: int
    stop: int
    total: int

    @property
    def count(self) -> int:
        return self.stop - self.start

    def rows(self, ranks: np.ndarray) -> np.ndarray:
        return ranks + np.int64(self.start)

    def ranks(self, rows: np.ndarray) -> np.ndarray:
        return np.clip(rows - np.int64(self.start), 0, self.count)

    def contains(self, rows: np.ndarray) -> np.ndarray:
        return (rows >= self.start) & (rows < self.stop)


class Cut(Protocol):
    """What eras are cut into. An era of None is one of no rows, which has the columns of all."""

    def ends(self, rows: Stored | Left, sealed: Sealed) -> np.ndarray:
        """How many there are up to the end of each era, int64 (eras,)."""

    def node(self, rows: Stored | Left, sealed: Sealed, era: int | None, seed: int | None) -> Node:
        """Those of an era, in stored order, or in that of a seed."""

    def facts(self) -> dict[str, Any] | None:
        """What they depend on besides the rows, as `Node.describe` has it; None for nothing."""

    def recipe(self) -> dict[str, Any] | None:
        """What makes them again, as JSON."""


@dataclass(frozen=True)
class ByRow:
    """Rows as they are."""

    def ends(self, rows: Stored | Left, sealed: Sealed) -> np.ndarray:
        return sealed.rows

    def node(self, rows: Stored | Left, sealed: Sealed, era: int | None, seed: int | None) -> Node:
        span = range(0) if era is None else EraTable(sealed.rows).span(era)
        return _ordered(Slice(rows, span.start, span.stop), era, seed)

    def facts(self) -> None:
        return None

    def recipe(self) -> None:
        return None


@dataclass(frozen=True)
class ByWindow:
    """Windows over a field; one belongs to the era of its last element.

    What comes after the end of an era is nothing to its windows: a label that would be there is no
    target, also where it is known by now.
    """

    field: str
    length: int
    stride: int
    documents: bool
    targets: Targets | None

    def ends(self, rows: Stored | Left, sealed: Sealed) -> np.ndarray:
        return windows_before(sealed.elements[self.field], self.length, self.stride)

    def node(self, rows: Stored | Left, sealed: Sealed, era: int | None, seed: int | None) -> Node:
        elements = 0 if era is None else int(sealed.elements[self.field][era])
        span = range(0) if era is None else EraTable(self.ends(rows, sealed)).span(era)
        grid = WindowGrid(elements, self.length, self.stride)
        cut = windows(rows, self.field, grid, self.documents, self.targets)
        return _ordered(Slice(cut, span.start, span.stop), era, seed)

    def facts(self) -> dict[str, Any]:
        return {
            "kind": "windows",
            "field": self.field,
            "length": self.length,
            "stride": self.stride,
        }

    def recipe(self) -> dict[str, Any]:
        return {**self.facts(), "documents": self.documents, "targets": self.targets}


class Plans:
    """The plans of packs, by era. Thread-safe; pickled, they go along."""

    def __init__(self, made: tuple[Plan, ...] = ()) -> None:
        self._made = list(made)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Plans, (tuple(self._made),)

    def up_to(self, eras: int, make: Callable[[int], Plan]) -> list[Plan]:
        """Those of the first eras; ``make`` makes the one of an era."""
        with self._lock:
            for era in range(len(self._made), eras):
                self._made.append(make(era))
            return self._made[:eras]


@dataclass(frozen=True)
class ByPack:
    """Packs of the documents of each era, planned when it is first needed to know their number.

    Attributes:
        rule, seed, pads, targets: as of `cachelib.nodes.pack.pack`.
        kept: the path or URL of a folder that keeps the plan of each era, None for none.
        plans: those made so far.
    """

    rule: Rule
    seed: int
    pads: tuple[tuple[str, int], ...]
    targets: Targets | None
    kept: str | None = None
    plans: Plans = field(default_factory=Plans, compare=False, repr=False)

    def ends(self, rows: Stored | Left, sealed: Sealed) -> np.ndarray:
        made = self._plans(rows, sealed, len(sealed.rows))
        return np.cumsum([plan.size for plan in made], dtype=np.int64)

    def node(self, rows: Stored | Left, sealed: Sealed, era: int | None, seed: int | None) -> Node:
        if era is None:
            return self._packed(rows, sealed, None)
        plan = self._plans(rows, sealed, era + 1)[era]
        return Pack(_documents(rows, sealed, era), plan, self.pads, self.targets)

    def _plans(self, rows: Stored | Left, sealed: Sealed, eras: int) -> list[Plan]:
        def made(era: int) -> Plan:
            if self.kept is None:
                return self._packed(rows, sealed, era).plan
            place, seed = f"{self.kept.rstrip('/')}/{era:06d}.json", seeds.of_era(self.seed, era)
            of = {"kind": "era", "number": era, "content": sealed.digests[era]}
            return plans.kept(
                place,
                {**self.facts(), "of": {**of, "rows": EraTable(sealed.rows).span(era).start}},
                self.rule,
                seed,
                lambda: self._packed(rows, sealed, era).plan,
            )

        return self.plans.up_to(eras, made)

    def _packed(self, rows: Stored | Left, sealed: Sealed, era: int | None) -> Pack:
        documents, seed = _documents(rows, sealed, era), seeds.of_era(self.seed, era or 0)
        return pack(documents, self.rule, seed, dict(self.pads), self.targets)

    def facts(self) -> dict[str, Any]:
        return {
            "kind": "pack",
            "seed": self.seed,
            **{f"length[{name}]": length for name, length in self.rule.limits},
            "overlong": self.rule.overlong,
            "max_segments": self.rule.max_segments,
        }

    def recipe(self) -> dict[str, Any]:
        return {
            "kind": "pack",
            "limits": [list(limit) for limit in self.rule.limits],
            "overlong": self.rule.overlong,
            "max_segments": self.rule.max_segments,
            "seed": self.seed,
            "pads": dict(self.pads),
            "targets": self.targets,
        }


def cut_of(recipe: dict[str, Any] | None) -> Cut:
    """The cut that a recipe tells of."""
    if recipe is None:
        return ByRow()
    values = {name: value for name, value in recipe.items() if name != "kind"}
    if recipe["kind"] == "windows":
        return ByWindow(**values)
    limits = tuple((name, length) for name, length in values["limits"])
    rule = Rule(limits, values["overlong"], values["max_segments"])
    return ByPack(rule, values["seed"], tuple(values["pads"].items()), values["targets"])


@dataclass(frozen=True)
class Eras:
    """What a followed cache is cut into, era by era.

    The order of an era is a function of the seed and the era's number, and eras follow one another:
    what stands at a position depends on the eras up to it alone.

    Attributes:
        stored: the rows of the cache, which are `Following`.
        cut: what they are cut into.
        seed: of the order inside eras; None for stored order, and for packs.
        epoch: number of the pass.
    """

    stored: Stored
    cut: Cut = ByRow()
    seed: int | None = None
    epoch: int = 0
    held: Held[Node] = field(default_factory=lambda: Held(HELD_ERAS), compare=False, repr=False)

    @property
    def grows(self) -> bool:
        return True

    @property
    def size(self) -> int | None:
        """Known once the cache is complete."""
        sealed = self._rows.sealed
        return self._table(sealed).size if sealed.finished else None

    @property
    def there(self) -> int:
        """Rows of sealed eras seen so far."""
        return self._table(self._rows.sealed).size

    @property
    def version(self) -> None:
        """None: it does not matter which one was seen, since sealed eras never change."""
        return None

    def ready(self, stop: int) -> bool:
        if self._enough(stop):
            return True
        self._rows.look()
        return self._enough(stop)

    def wait(self, stop: int, through: str, given_up: Callable[[], bool]) -> None:
        wanted = "its end" if stop == LARGEST else f"sample {stop - 1:,}"
        self._rows.until(lambda: self._enough(stop), wanted, through, given_up)

    def _enough(self, stop: int) -> bool:
        sealed = self._rows.sealed
        return sealed.finished or self._table(sealed).size >= stop

    def take(self, indices: np.ndarray) -> Columns:
        if not len(indices):
            return self.cut.node(self._all, self._rows.sealed, None, self.seed).take(indices)
        eras, places = self._located(indices)
        return grouped(eras, places, lambda era, at: self._node(era).take(at))

    def origins(self, index: int) -> list[Origin]:
        (era,), (place,) = self._located(np.array([index], np.int64))
        return self._node(int(era)).origins(int(place))

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        if not len(indices):
            node = self.cut.node(self._all, self._rows.sealed, None, self.seed)
            return node.trace(indices, epoch)
        eras, places = self._located(indices)

        def of(era: int, at: np.ndarray) -> Columns:
            found = self._node(era).trace(at, epoch)
            if isinstance(self.cut, ByPack):  # counted anew in each era
                begin = self._table(self._rows.sealed).span(era).start
                found["row"] = found["row"] + np.int64(begin)
            return found

        return grouped(eras, places, of)

    def in_epoch(self, epoch: int) -> Eras:
        return replace(self, epoch=epoch)

    def describe(self) -> dict[str, Any]:
        return self.describe_until(None)

    def describe_until(self, position: int | None) -> dict[str, Any]:
        """None tells no eras: how many there are changes nothing about rows served so far."""
        told: dict[str, Any] = {"kind": "eras", "schema": self._rows.identity().get("schema")}
        sealed = self._rows.sealed
        if position is not None:
            self.wait(position, "", lambda: False)
            sealed = self._rows.sealed
            table = self._table(sealed)
            entered = table.entered(min(position, table.size))
            if entered:
                told |= {
                    "entered": entered,
                    "rows": int(sealed.rows[entered - 1]),
                    "content": sealed.digests[entered - 1],
                    "limits": digest_of(sealed.rows[:entered].tolist()),
                }
        facts = self.cut.facts()
        if facts is not None:
            told = {**facts, "of": told}
        return told if self.seed is None else {"kind": "shuffle", "seed": self.seed, "of": told}

    def recipe(self) -> dict[str, Any]:
        fields = self.stored.fields
        return {
            "kind": "eras",
            "url": self._rows.url,
            "fields": None if fields is None else list(fields),
            "cut": self.cut.recipe(),
            "seed": self.seed,
        }

    @property
    def _all(self) -> Stored | Left:
        """The rows of the cache as far as it was seen, without deleted ones."""
        return stored(self.stored.rows, self.stored.fields)

    @property
    def _rows(self) -> Following:
        return cast(Following, self.stored.rows)

    def _table(self, sealed: Sealed) -> EraTable:
        return EraTable(self.cut.ends(self._all, sealed))

    def _located(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        last = int(indices.max())
        self.wait(last + 1, "", lambda: False)
        table = self._table(self._rows.sealed)
        if last >= table.size:
            raise outside(last, table.size)
        return table.locate(indices)

    def _node(self, era: int) -> Node:
        def made() -> Node:
            node = self.cut.node(self._all, self._rows.sealed, era, self.seed)
            return node.in_epoch(self.epoch)

        return self.held.get((self.epoch, era), made)


def _ordered(node: Node, era: int | None, seed: int | None) -> Node:
    return node if seed is None else Shuffle(node, seeds.of_era(seed, era or 0))


def _documents(rows: Stored | Left, sealed: Sealed, era: int | None) -> Stream:
    """The rows of an era as a stream."""
    span = range(0) if era is None else EraTable(sealed.rows).span(era)
    total = int(sealed.rows[-1]) if len(sealed.rows) else 0
    return Selected(rows, Run(span.start, span.stop, total), {"kind": "era", "number": era})


def as_folder(plan: str | os.PathLike[str] | None) -> str | None:
    """The folder of plans that is named; TypeError for what is no path."""
    if plan is not None and not isinstance(plan, str | os.PathLike):
        raise TypeError(f"plan must be the path or URL of a folder, got {plan!r}")
    return None if plan is None else os.fspath(plan)
