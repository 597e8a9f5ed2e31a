"""All rows of a node in a two-level order that reads blocks of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cachelib.nodes.base import Columns, Node, Origin, Version, woven
from cachelib.order import seeds
from cachelib.order.blocks import HELD, BlockOrder, Blocks, Group, block_order
from cachelib.ragged import Ragged


class HeldGroups:
    """The groups read last, at most `HELD`, each read once whoever asks. Thread-safe.

    Pickled, it is empty.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[int, int], Future[tuple[Group, Columns]]] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldGroups, ()

    def get(
        self, key: tuple[int, int], read: Callable[[], tuple[Group, Columns]]
    ) -> tuple[Group, Columns]:
        """What ``read`` gave for a key, or gives now; a read that fails is not kept."""
        with self._lock:
            there = self._groups.get(key)
            if there is None:
                mine: Future[tuple[Group, Columns]] = Future()
                self._groups[key] = mine
                # The one read first goes, not the one used last: threads may ask out of order.
                while len(self._groups) > HELD:
                    self._groups.popitem(last=False)
        if there is not None:
            return there.result()
        try:
            with self._reading:  # One at a time, which bounds the memory.
                mine.set_result(read())
        except BaseException as error:
            with self._lock:
                if self._groups.get(key) is mine:
                    del self._groups[key]
            mine.set_exception(error)
            raise
        return mine.result()


@dataclass(frozen=True)
class BlockShuffle:
    """All rows of a node: random blocks, then random rows within a window of blocks.

    A group of blocks is read as a whole when the first of its rows is asked for, and held while
    it is being delivered.
    """

    child: Node
    blocks: Blocks
    seed: int
    held: HeldGroups = field(default_factory=HeldGroups, compare=False, repr=False)

    @property
    def size(self) -> int:
        return self.blocks.rows

    @property
    def version(self) -> Version:
        return self.child.version

    def order(self, indices: np.ndarray) -> np.ndarray:
        """Which rows of the child stand at int64 indices in [0, size); int64."""
        return self._order.apply(indices)

    def take(self, indices: np.ndarray) -> Columns:
        groups, places = self._order.locate(indices)
        parts, where = [], []
        for number in np.unique(groups):
            chosen = np.flatnonzero(groups == number)
            group, columns = self._group(int(number))
            rows = group.order.apply(places[chosen])
            parts.append({name: _pick(column, rows) for name, column in columns.items()})
            where.append(chosen)
        return woven(parts, where) if parts else self.child.take(indices)

    def origins(self, index: int) -> list[Origin]:
        return self.child.origins(int(self.order(np.array([index], np.int64))[0]))

    def trace(self, indices: np.ndarray, epoch: int) -> Columns:
        return self.child.trace(self.order(indices), epoch)

    def in_epoch(self, epoch: int) -> BlockShuffle:
        # ``held`` is shared, so that passes together hold no more than one does.
        seed = seeds.of_epoch(self.seed, epoch)
        return replace(self, child=self.child.in_epoch(epoch), seed=seed)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "blocks",
            "seed": self.seed,
            "rows": self.size,
            "block": self.blocks.block,
            "window": self.blocks.window,
            "of": self.child.describe(),
        }

    @property
    def _order(self) -> BlockOrder:
        return block_order(self.blocks, self.seed)

    def _group(self, number: int) -> tuple[Group, Columns]:
        def read() -> tuple[Group, Columns]:
            group = self._order.group(number)
            rows = group.rows(np.arange(group.order.size, dtype=np.int64))
            return group, self.child.take(rows)

        return self.held.get((self.seed, number), read)


def _pick(column: Any, rows: np.ndarray) -> Any:
    """Rows of a column, copied: what is held stays as it is, whatever becomes of a batch."""
    return column.take(rows) if isinstance(column, Ragged) else np.take(column, rows, axis=0)
