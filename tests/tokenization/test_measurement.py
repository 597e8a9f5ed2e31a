"""Differences between engines are found by measurement, and remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.tokenization import CodePointSet, Edges, Encoder
from pipelines.tokenization import measurement as patched
from pipelines.tokenization.arrow import as_texts
from pipelines.tokenization.engines import Gigatoken, HuggingFace
from pipelines.tokenization.measurement import UnexplainedDifference, measure, measured
from pipelines.tokenization.twin import twin
from tests.tokenization.faulty import Faulty
from tests.tokenization.tokenizers_at_hand import expected, files

SPEC = files("cl100k").spec
EXACT = HuggingFace(SPEC)


def test_all_of_unicode() -> None:
    spec = twin(SPEC)
    assert spec is not None
    code_points = measure(Gigatoken(spec), HuggingFace(spec))
    assert 0x32D69 in code_points  # an ideograph of Unicode 17
    assert len(code_points) < 10_000
    encoder = Encoder(lambda: EXACT, Edges(), Gigatoken(SPEC), code_points)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.text(max_size=30), max_size=20))
    def agree(texts: list[str]) -> None:
        ids = encoder.encode(as_texts(texts))
        assert [row.tolist() for row in ids] == [expected("cl100k", text) for text in texts]

    agree()


def test_splits_show_whatever_the_vocabulary_joins() -> None:
    """U+32D69 is a letter for one engine only; few neighbours have tokens that would show it."""
    spec = files("gpt2").spec
    shows_splits = twin(spec)
    assert shows_splits is not None
    near = range(0x32D00, 0x32E00)
    assert measure(Gigatoken(spec), HuggingFace(spec), near) == CodePointSet()
    found = measure(Gigatoken(shows_splits), HuggingFace(shows_splits), near)
    assert found == CodePointSet.of(near)


@pytest.mark.parametrize("name", ["metaspace", "wordpiece", "unigram"])
def test_only_byte_level_models_have_a_twin(name: str) -> None:
    assert twin(files(name).spec) is None


def test_recent_characters() -> None:
    """gigatoken 0.10 and `tokenizers` 0.23 know different editions of Unicode."""
    spec = files("nfc").spec
    recent = measure(Gigatoken(spec), HuggingFace(spec), range(0x1AC0, 0x1B00))
    assert 0x1AE6 in recent  # a combining mark of Unicode 17


def test_exactly_the_differing_code_points_are_found() -> None:
    wrong = {0x80, 0xE9, 0x1AE6, 0xFBCB, 0xFBCC, 0xFFFF, 0x1F600, 0x1FFFF, 0x20000, 0x10FFFF}
    fast = Faulty(EXACT, lambda text: any(ord(character) in wrong for character in text))
    near = sorted({p for w in wrong for p in range(max(w - 70, 0x80), min(w + 70, 0x10FFFF) + 1)})
    assert measure(fast, EXACT, near) == CodePointSet.of(wrong)


def test_a_difference_in_one_context_is_enough() -> None:
    fast = Faulty(EXACT, lambda text: "1\u1ae62" in text)
    assert measure(fast, EXACT, range(0x1A00, 0x1B00)) == CodePointSet.of([0x1AE6])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda text: "\u0451b" in text and "\u0452b" in text, "none of them alone"),
        (lambda text: "aqb" in text, "ASCII character U\\+0071"),
        (lambda text: True, "ASCII character U\\+0000"),
    ],
    ids=["pair", "ascii", "always"],
)
def test_other_differences_are_unexplained(wrong, message: str) -> None:
    with pytest.raises(UnexplainedDifference, match=message):
        measure(Faulty(EXACT, wrong), EXACT, range(0x480))


def test_too_many_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patched, "LIMIT", 50)
    with pytest.raises(UnexplainedDifference, match="more than 50 characters"):
        measure(
            Faulty(EXACT, lambda text: "a\u0400" <= text[:2] < "a\u0500"),
            EXACT,
            range(0x400, 0x500),
        )


def test_results_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [CodePointSet.of([0x1AE6]), CodePointSet.of([0xFBCB]), CodePointSet.of([0xE9])]
    monkeypatch.setattr(patched, "measure", lambda fast, exact: results.pop(0))
    folder = tmp_path / "not there yet"
    for _ in range(2):
        assert measured(lambda: (EXACT, EXACT), b"1.0", folder=folder) == CodePointSet.of([0x1AE6])
    assert measured(lambda: (EXACT, EXACT), b"1.1", folder=folder) == CodePointSet.of([0xFBCB])
    kept = sorted(folder.iterdir())
    assert len(kept) == 2
    for damaged in (b"", b"[[1,2]]\n", kept[0].read_bytes().replace(b"[", b"(")):
        for path in kept:
            path.write_bytes(damaged)
        results[:] = [CodePointSet.of([0xE9])]
        assert measured(lambda: (EXACT, EXACT), b"1.0", folder=folder) == CodePointSet.of([0xE9])
        assert results == []


def test_a_folder_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patched, "measure", lambda fast, exact: CodePointSet())
    (tmp_path / "file").write_text("no folder")
    assert measured(lambda: (EXACT, EXACT), b"", folder=tmp_path / "file") == CodePointSet()
