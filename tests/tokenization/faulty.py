"""Engines that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from cachelib.ragged import Ragged
from pipelines.tokenization.engines import Engine


@dataclass(frozen=True)
class Faulty:
    """Adds one to the first id of each text that is wrong by ``wrong``."""

    engine: Engine
    wrong: Callable[[str], bool]

    def encode(self, texts: pa.LargeStringArray) -> Ragged:
        ids = self.engine.encode(texts)
        values = ids.values.copy()
        for row, text in enumerate(texts.to_pylist()):
            if self.wrong(text) and ids.lengths[row]:
                values[ids.offsets[row]] += 1
        return Ragged(values, ids.offsets)
