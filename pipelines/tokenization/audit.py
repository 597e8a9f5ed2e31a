"""A sample of rows is encoded twice: what was measured beforehand is checked on the data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cachelib.ragged import Ragged
from pipelines.tokenization.encoder import Encoder
from pipelines.tokenization.engines import differing_rows


def differing(encoder: Encoder, texts: pa.LargeStringArray, ids: Ragged) -> np.ndarray:
    """Indices, int64, of the texts to which the exact engine gives other ids than ``ids``.

    ``ids`` are as ``encoder.encode`` gave them, in any unsigned dtype.
    """
    return differing_rows(ids, encoder.encode(texts, exact=True))
