"""What the engines do beyond encoding: they keep memory bounded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.tokenization import engines
from pipelines.tokenization.arrow import as_texts
from pipelines.tokenization.engines import Gigatoken, batches
from tests.tokenization.tokenizers_at_hand import expected, files


def test_gigatoken_is_renewed_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = iter(range(0, 10**12, 100 << 20))
    monkeypatch.setattr(engines, "_resident_bytes", lambda: next(resident))
    engine = Gigatoken(files("gpt2").spec)
    loaded = []
    for i in range(7):
        assert engine.encode(as_texts([f"text {i}"]))[0].tolist() == expected("gpt2", f"text {i}")
        loaded.append(engine._tokenizer)
    renewed = [a is not b for a, b in pairwise(loaded)]
    assert renewed == [False, True, False, False, True, False]


def test_gigatoken_is_kept_while_memory_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = iter([0, 200 << 20, 200 << 20, 0] * 10)
    monkeypatch.setattr(engines, "_resident_bytes", lambda: next(resident))
    engine = Gigatoken(files("gpt2").spec)
    first = engine._tokenizer
    for _ in range(20):
        engine.encode(as_texts(["text"]))
    assert engine._tokenizer is first


@given(lengths=st.lists(st.integers(0, 30), max_size=20), limit=st.integers(1, 40))
def test_batches_cover_all_rows_and_keep_the_limit(lengths: list[int], limit: int) -> None:
    offsets = 7 + np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    found = list(batches(offsets, limit))
    assert [row for start, stop in found for row in range(start, stop)] == [*range(len(lengths))]
    for start, stop in found:
        assert sum(lengths[start:stop]) <= limit or stop == start + 1
