"""BOS and EOS are what the policy says; what the tokenizer adds by itself is only recorded."""

from __future__ import annotations

import pytest

from pipelines.tokenization import Edges, Policy, TokenizerError, prepare
from tests.tokenization.tokenizers_at_hand import files

OWN = {"tokenizer_config.json": b'{"bos_token": null, "eos_token": {"content": "</s>"}}'}
MAP = {"special_tokens_map.json": b'{"bos_token": "<s>", "eos_token": "<pad>"}'}


def edges(name: str, policy: Policy, **companions: bytes) -> Edges:
    return prepare(files(name, **companions), policy, engine="hf").identity.edges


def test_none_is_the_default_even_where_the_tokenizer_adds_some() -> None:
    found = prepare(files("adds-bos"), engine="hf").identity
    assert found.edges == Edges()
    assert (found.added.before, found.added.after) == ((0,), ())
    added = prepare(files("wordpiece"), engine="hf").identity.added
    assert (added.before, added.after) == ((1,), (2,))


def test_tokens_by_name() -> None:
    assert edges("gpt2", Policy("<s>", "</s>")) == Edges("<s>", "</s>", 0, 1)


def test_auto_is_what_the_companions_name_or_the_tokenizer_adds() -> None:
    assert edges("gpt2", Policy(eos="auto"), **OWN) == Edges(eos="</s>", eos_id=1)
    assert edges("gpt2", Policy("auto", "auto"), **OWN, **MAP) == Edges("<s>", "</s>", 0, 1)
    assert edges("wordpiece", Policy("auto", "auto")) == Edges("[CLS]", "[SEP]", 1, 2)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"'<bos>' is not in the vocabulary.*'<s>', '</s>'"):
        edges("gpt2", Policy(bos="<bos>"))
    with pytest.raises(TokenizerError, match=r'bos="auto", but .* names no bos token'):
        edges("gpt2", Policy(bos="auto"), **OWN)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is not JSON"):
        edges("gpt2", Policy(bos="auto"), **{"tokenizer_config.json": b"{"})
    with pytest.raises(ValueError, match="bos must be a token"):
        Policy(bos="")
