"""A twin of a byte-level tokenizer whose ids show where text is split.

Two engines that split a text at different places still give the same ids where the vocabulary
happens to have no token across those places. Then a few contexts for each code point prove
little: another neighbour brings the difference out. The twin keeps how text is normalized and
split, but has another vocabulary: all bytes, and a token for every pair of bytes that can meet
where two characters do, unless both are ASCII. So every split beside a character shows.
"""

from __future__ import annotations

from pipelines.tokenization.specials import Spec

_ASCII = range(0x80)
_CONTINUATION = range(0x80, 0xC0)
_LEAD = range(0xC2, 0xF5)


def twin(spec: Spec) -> Spec | None:
    """The twin of a parsed tokenizer.json; None for models that are not byte-level BPE."""
    model = spec["model"]
    letters = _letters()
    vocabulary = model.get("vocab")
    if model.get("byte_fallback") or not isinstance(vocabulary, dict) or "merges" not in model:
        return None
    if any(letter not in vocabulary for letter in letters):
        return None
    # A merge listed earlier wins: what precedes a character is joined to it first.
    merges = [(a, b) for a in _ASCII for b in _LEAD]
    merges += [(a, b) for a in _CONTINUATION for b in (*_LEAD, *_ASCII)]
    pairs = [[letters[a], letters[b]] for a, b in merges]
    tokens = [*letters, *(left + right for left, right in pairs)]
    return {
        **spec,
        "added_tokens": [],
        "post_processor": None,
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": pairs,
        },
    }


def _letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies, as GPT-2 chose them."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]
