"""Long documents are cut, and their ids are those of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.tokenization import engines
from pipelines.tokenization.arrow import as_texts
from pipelines.tokenization.engines import HuggingFace
from pipelines.tokenization.long_text import pieces
from tests.tokenization.tokenizers_at_hand import CORPUS, NAMES, expected, files

WORDS = [
    *"\n".join(CORPUS[:5]).split(),
    "a",
    "the",
    "fox",
    "  ",
    "\n",
    "\r\n",
    "。天",
    "，いろ",
    " x y",
]
DOCUMENTS = st.lists(st.sampled_from(WORDS), min_size=30, max_size=400).map(" ".join)
TEXT = " ".join(CORPUS) * 3


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(texts=st.lists(DOCUMENTS, max_size=3))
def test_ids_do_not_depend_on_cuts(name: str, texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in {"BATCH": 200, "PIECE": 150, "WINDOW": 100}.items():
            patch.setattr(engines, f"{constant}_BYTES", value)
        ids = HuggingFace({**files(name).spec, "truncation": None}).encode(as_texts(texts))
    assert [row.tolist() for row in ids] == [expected(name, text) for text in texts]


def _one_id_a_character(texts: list[str]) -> list[list[int]]:
    return [[ord(character) for character in text] for text in texts]


def test_pieces_are_small_where_text_can_be_cut() -> None:
    text = memoryview(TEXT.encode())
    found = list(pieces(text, _one_id_a_character, 400, 50))
    assert "".join(found) == TEXT
    assert max(len(piece.encode()) for piece in found) <= 400


@pytest.mark.parametrize("text", ["x", "x" * 5000, "漢" * 3000, "A B " * 1000])
def test_text_without_places_stays_whole(text: str) -> None:
    assert list(pieces(memoryview(text.encode()), _one_id_a_character, 400, 50)) == [text]


def test_text_is_not_cut_where_ids_would_change() -> None:
    def by_length(texts: list[str]) -> list[list[int]]:
        return [[len(text)] for text in texts]

    assert list(pieces(memoryview(TEXT.encode()), by_length, 400, 50)) == [TEXT]
