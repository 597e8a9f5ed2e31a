"""One node after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cachelib.nodes.base import Columns, Node, Origin, Version, described, layout, woven


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
        stages = np.searchsorted(np.array(self._starts), indices, side="right") - 1
        found = np.unique(stages).tolist()
        for border in self.borders:
            crossed = [stage for stage in found if self._starts[stage] >= border]
            if crossed and len(crossed) < len(found):
                raise ValueError(
                    f"rows to both sides of sample {border} were asked for at once, where one "
                    "stage of then() follows another with other columns"
                )
        parts, places = [], []
        for stage in found:
            place = np.flatnonzero(stages == stage)
            child, start = self.children[stage], self._starts[stage]
            parts.append(child.take(indices[place] - start + self._first(stage)))
            places.append(place)
        return woven(parts, places) if parts else self.children[0].take(indices)

    def origins(self, index: int) -> list[Origin]:
        stage = int(np.searchsorted(np.array(self._starts), index, side="right")) - 1
        found = self.children[stage].origins(index - self._starts[stage] + self._first(stage))
        return [replace(o, through=(f"stage {stage}", *o.through)) for o in found]

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
