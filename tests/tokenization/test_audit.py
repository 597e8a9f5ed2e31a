"""A sample of rows is checked against the exact engine."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachelib.ragged import Ragged
from pipelines.tokenization import Edges, Encoder, differing
from pipelines.tokenization.arrow import as_texts
from pipelines.tokenization.engines import HuggingFace, differing_rows
from tests.tokenization.faulty import Faulty
from tests.tokenization.tokenizers_at_hand import files

EXACT = HuggingFace(files("gpt2").spec)


def test_a_faulty_engine_is_caught() -> None:
    fast = Faulty(EXACT, lambda text: "q" in text)
    encoder = Encoder(exact=lambda: EXACT, edges=Edges("<s>", None, 0, None), fast=fast)
    texts = as_texts(["a", "quick", "", "brown", "q"])
    ids = encoder.encode(texts)
    assert differing(encoder, texts, ids).tolist() == [1, 4]
    narrow = Ragged(ids.values.astype(np.uint16), ids.offsets)
    assert differing(encoder, texts, narrow).tolist() == [1, 4]
    assert differing(encoder, texts, encoder.encode(texts, exact=True)).tolist() == []


@given(data=st.data())
def test_differing_rows_equals_lists(data: st.DataObject) -> None:
    row = st.lists(st.integers(0, 2), max_size=3)
    left = data.draw(st.lists(row, max_size=8))
    right = [data.draw(st.sampled_from([r, [*r, 0]]) | row) for r in left]
    found = differing_rows(
        Ragged.from_rows([np.array(r, np.uint32) for r in left], np.uint32),
        Ragged.from_rows([np.array(r, np.uint32) for r in right], np.uint32),
    )
    assert found.tolist() == [i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
