"""One node after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cachelib.nodes.base import (
    Columns,
    Node,
    Origin,
    Version,
    components,
    described,
    grouped,
    layout,
)


@dataclass(frozen=True)
class Then:
    """One node after another; each is read from its row 0 on.

    Attributes:
        children: the stages; no two that follow each other need have the same columns.
        samples: rows of each stage; None for a last one that never ends.
        epoch: number of the pass. An endless stage goes on where the pass before left it.
    """

    children: tuple[Node, ...]
    samples: tuple[int | None, ...]
    epoch: int = 0

    @property
    def size(self) -> int | None:
        last = self.samples[-1]
        return None if last is None else self._starts[-1] + last

    @property
    def version(self) -> Version:
        return [child.version for child in self.children]

    @cached_property
    def borders(self) -> tuple[int, ...]:
        """Positions at which columns change: rows to both sides cannot be taken together."""
        layouts = [layout(child) for child in self.children]
        changes = zip(self._starts[1:], layouts[:-1], layouts[1:], strict=True)
        return tuple(start for start, before, after in changes if before != after)

    def take(self, indices: np.ndarray) -> Columns:
        found = np.unique(self._stages(indices)).tolist()
        for border in self.borders:
            crossed = [stage for stage in found if self._starts[stage] >= border]
            if crossed and len(crossed) < len(found):
                raise ValueError(
                    f"rows to both sides of sample {border} were asked for at once, where one "
                    "stage of then() follows another with other columns"
                )
        return self._by_stage(indices, lambda stage, rows: self.children[stage].take(rows))

    def origins(self, index: int) -> list[Origin]:
        stage = int(self._stages(np.array([index], np.int64))[0])
        found = self.children[stage].origins(index - self._starts[stage] + self._first(stage))
        return [replace(o, through=(f"stage {stage}", *o.through)) for o in found]

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        def of(stage: int, rows: np.ndarray) -> Columns:
            child = self.children[stage]
            found = child.trace(rows, epoch)
            numbers = [self.components.index(name) for name in components(child)]
            return {**found, "component": np.array([*numbers, -1], np.int32)[found["component"]]}

        return self._by_stage(indices, of)

    @cached_property
    def components(self) -> tuple[str, ...]:
        """Those of all stages, sorted."""
        return tuple(sorted({name for child in self.children for name in components(child)}))

    def in_epoch(self, epoch: int) -> Then:
        children = tuple(child.in_epoch(epoch) for child in self.children)
        return replace(self, children=children, epoch=epoch)

    def describe(self) -> dict[str, Any]:
        return self.describe_until(None)

    def describe_until(self, position: int | None) -> dict[str, Any]:
        # How many rows the last stage has changes nothing about those before a position in it.
        starts, parts = [], {}
        for stage, (start, samples) in enumerate(zip(self._starts, self.samples, strict=True)):
            inside = samples if position is None else position - start
            if inside is not None and inside <= 0:
                break
            starts.append(start)
            ends = [end for end in (inside, samples) if end is not None]
            parts[str(stage)] = described(self.children[stage], min(ends, default=None))
        return {"kind": "then", "starts": starts, "parts": parts}

    def _stages(self, indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(np.array(self._starts), indices, side="right") - 1

    def _by_stage(self, indices: np.ndarray, of: Callable[[int, np.ndarray], Columns]) -> Columns:
        """What ``of`` gives for each stage and its rows, in the order of indices."""
        return grouped(
            self._stages(indices),
            indices,
            lambda stage, at: of(stage, at - self._starts[stage] + self._first(stage)),
        )

    def _first(self, stage: int) -> int:
        """The row of an endless stage at which this pass begins."""
        samples = self.samples[stage]
        endless = self.children[stage].size is None
        return self.epoch * samples if endless and samples is not None else 0

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        starts = [0]
        for samples in self.samples[:-1]:
            assert samples is not None
            starts.append(starts[-1] + samples)
        return tuple(starts)
