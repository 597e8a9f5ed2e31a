"""Rows of several nodes, shared out by weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cachelib.nodes.base import (
    Columns,
    Node,
    Origin,
    Version,
    described,
    grouped,
    grows,
    ready,
    wait,
)
from cachelib.order import seeds
from cachelib.order.mixture import Mixture, Stage


@dataclass(frozen=True)
class Mix:
    """Rows of several nodes, shared out by weight; each node is read from its row 0 on.

    Attributes:
        names: of the components, sorted: the order in which ties between weights are decided.
        children: the components, in that order, with the same columns.
        mixture: which component stands where.
        epoch: number of the pass. An endless component goes on where the pass before left it.
    """

    names: tuple[str, ...]
    children: tuple[Node, ...]
    mixture: Mixture
    epoch: int = 0

    @property
    def size(self) -> int | None:
        return self.mixture.size

    @property
    def version(self) -> Version:
        return {name: child.version for name, child in zip(self.names, self.children, strict=True)}

    @property
    def grows(self) -> bool:
        return any(grows(child) for child in self.children)

    def ready(self, stop: int) -> bool:
        return all(ready(self.children[c], rows) for c, rows in self._needed(stop))

    def wait(self, stop: int, through: str, given_up: Callable[[], bool]) -> None:
        for c, rows in self._needed(stop):
            name = f"{through}/{self.names[c]}" if through else self.names[c]
            wait(self.children[c], rows, name, given_up)

    def _needed(self, stop: int) -> list[tuple[int, int]]:
        """The components that may get more rows, and how many each gives before a position."""
        counts = self.mixture.counts(self.mixture.reach(stop))
        return [(c, counts[c]) for c, child in enumerate(self.children) if grows(child)]

    def take(self, indices: np.ndarray) -> Columns:
        if self.grows and len(indices):
            wait(self, int(indices.max()) + 1)
        return self._by_component(indices, lambda c, rows: self.children[c].take(rows))

    def origins(self, index: int) -> list[Origin]:
        components, rows = self.mixture.locate(np.array([index], np.int64))
        component = int(components[0])
        found = self.children[component].origins(int(rows[0]) + self._first(component))
        return [replace(o, through=(self.names[component], *o.through)) for o in found]

    def in_epoch(self, epoch: int) -> Mix:
        seed = seeds.of_epoch(self.mixture.seed, epoch)
        return replace(
            self,
            children=tuple(child.in_epoch(epoch) for child in self.children),
            mixture=replace(self.mixture, seed=seed),
            epoch=epoch,
        )

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        def of(component: int, rows: np.ndarray) -> Columns:
            found = self.children[component].trace(rows, epoch)
            return {**found, "component": np.full(len(rows), component, np.int32)}

        return self._by_component(indices, of)

    @property
    def components(self) -> tuple[str, ...]:
        return self.names

    def counts(self, position: int) -> dict[str, int]:
        """Rows of each component among the first ``position``, 0 to size."""
        return dict(zip(self.names, self.mixture.counts(position), strict=True))

    def describe(self) -> dict[str, Any]:
        return self.describe_until(None)

    def describe_until(self, position: int | None) -> dict[str, Any]:
        stages: Sequence[Stage] = self.mixture.stages
        facts: dict[str, Any] = {"seed": self.mixture.seed, "block": self.mixture.block}
        counts: Sequence[int | None] = [None] * len(self.children)
        end = self.size
        if position is not None:
            reach = self.mixture.reach(position)
            stages = [stage for stage in stages if stage.start < reach]
            counts = stages[-1].counts(reach) if stages else counts
            # A last block that is shorter has another order than it would have in a longer mixture.
            end = reach if reach % self.mixture.block else None
        if end is not None:
            facts["rows"] = end
        entered = {c for stage in stages for c, weight in enumerate(stage.weights) if weight}
        return {
            "kind": "mix",
            **facts,
            "stages": [
                [stage.start, {self.names[c]: w for c, w in enumerate(stage.weights) if w}]
                for stage in stages
            ],
            "parts": {self.names[c]: described(self.children[c], counts[c]) for c in entered},
        }

    def _by_component(
        self, indices: np.ndarray, of: Callable[[int, np.ndarray], Columns]
    ) -> Columns:
        """What ``of`` gives for each component and its rows, in the order of indices."""
        components, rows = self.mixture.locate(indices)
        return grouped(components, rows, lambda c, at: of(c, at + self._first(c)))

    def _first(self, component: int) -> int:
        """The row of an endless component at which this pass begins."""
        if self.epoch == 0 or self.children[component].size is not None:
            return 0
        assert self.size is not None
        return self.epoch * self.mixture.counts(self.size)[component]
