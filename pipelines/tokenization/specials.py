"""Special tokens stay out of text: what a text says is never a control token.

A tokenizer.json lists added tokens. Those marked ``special`` (BOS, EOS, padding ...) are ids that
only the pipeline may write; the same characters in a text are text. Added tokens that are not
special are ordinary vocabulary, as in the `tokenizers` library.
"""

from __future__ import annotations

import hashlib
from typing import Any

Spec = dict[str, Any]


def special_tokens(spec: Spec) -> tuple[str, ...]:
    """The special added tokens of a parsed tokenizer.json, in its order."""
    return tuple(token["content"] for token in spec.get("added_tokens") or () if token["special"])


def vocabulary_tokens(spec: Spec) -> tuple[str, ...]:
    """The added tokens that text may become, in the file's order."""
    return tuple(
        token["content"] for token in spec.get("added_tokens") or () if not token["special"]
    )


def reachable_tokens(spec: Spec) -> frozenset[str]:
    """Special tokens that text must be able to become, whatever they are marked as.

    They stand for what the vocabulary lacks (the unknown token, ``<0x00>`` to ``<0xFF>`` with byte
    fallback), or are what other tokens are made of: single characters and products of merges.
    """
    model = spec["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    fallback = {f"<0x{byte:02X}>" for byte in range(256)} if model.get("byte_fallback") else set()
    merges = model.get("merges") or ()
    products = {
        merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge) for merge in merges
    }
    return frozenset(
        token
        for token in special_tokens(spec)
        if token == unknown or len(token) == 1 or token in fallback or token in products
    )


def for_text(spec: Spec) -> Spec:
    """The tokenizer without what would make ids depend on more than the text.

    Truncation and padding are switched off, and so is dropout, which draws random merges.
    """
    spec = {**spec, "truncation": None, "padding": None}
    if spec["model"].get("dropout"):
        spec["model"] = {**spec["model"], "dropout": None}
    return spec


def without_specials(spec: Spec) -> Spec:
    """The tokenizer with only the added tokens that text may become."""
    added = [token for token in spec.get("added_tokens") or () if not token["special"]]
    return {**spec, "added_tokens": added}


def hide_specials(spec: Spec) -> Spec:
    """The same ids, but special tokens under names that no text holds.

    For models whose own vocabulary reaches special tokens from text (Unigram and word-level
    models do): there the library's ``encode_special_tokens`` is not enough.
    """
    reachable = reachable_tokens(spec)
    hidden = {token: _hidden(token) for token in special_tokens(spec) if token not in reachable}

    def rename(token: Any) -> Any:
        return hidden.get(token, token) if isinstance(token, str) else token

    model = dict(spec["model"])
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {rename(token): index for token, index in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[rename(token), score] for token, score in vocabulary]
    added = [
        {**token, "content": rename(token["content"])} for token in spec.get("added_tokens") or ()
    ]
    # The post-processor names special tokens; it is never run on text.
    return {**spec, "model": model, "added_tokens": added, "post_processor": None}


def _hidden(token: str) -> str:
    """A name of noncharacters and a digest: no text holds it except on purpose."""
    digest = hashlib.blake2b(token.encode(), digest_size=16).hexdigest()
    return f"\U0010ffff{digest}\U0010fffe"
