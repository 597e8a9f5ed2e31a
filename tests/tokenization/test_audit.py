"""A sample of rows is checked against the exact engine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.ragged import Ragged
from pipelines.tokenization import Edges, Encoder, audit_rows, differing
from pipelines.tokenization.arrow import as_texts
from pipelines.tokenization.engines import HuggingFace, differing_rows
from tests.tokenization.faulty import Faulty
from tests.tokenization.tokenizers_at_hand import files

EXACT = HuggingFace(files("gpt2").spec)


def test_the_rate_is_kept_and_rows_are_spread() -> None:
    positions = np.arange(100_000, dtype=np.int64) * 97
    for rate in (0.0, 0.001, 0.01, 0.5, 1.0):
        chosen = audit_rows("a/b.jsonl", positions, rate)
        assert chosen.dtype == bool
        assert abs(chosen.mean() - rate) <= 4 * np.sqrt(rate * (1 - rate) / len(positions))
        halves = chosen.reshape(2, -1).mean(axis=1)
        assert abs(halves[0] - halves[1]) <= 8 * np.sqrt(rate * (1 - rate) / len(positions))


def test_the_choice_depends_on_source_and_position_alone() -> None:
    positions = np.arange(10_000, dtype=np.int64)
    whole = audit_rows("a", positions, 0.1)
    parts = [audit_rows("a", part, 0.1) for part in np.array_split(positions, 7)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert np.array_equal(whole[::-1], audit_rows("a", positions[::-1], 0.1))
    assert (whole & audit_rows("b", positions, 0.1)).sum() < whole.sum() / 2
    assert (whole <= audit_rows("a", positions, 0.2)).all()
    # The sample is part of what two builds share; it must not move between releases.
    assert np.flatnonzero(whole)[:4].tolist() == [3, 8, 32, 45]


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_rates_are_checked(rate: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        audit_rows("a", np.arange(3), rate)


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
