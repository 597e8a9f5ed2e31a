"""The engine is chosen by comparison, and who the tokenizer is stays checkable."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from tokenizers import pre_tokenizers as pre

from cachelib.errors import IncompatibleCache
from pipelines.tokenization import (
    CodePointSet,
    Policy,
    Prepared,
    TokenizerError,
    TokenizerFiles,
    check_same,
    differences,
    open_encoder,
    prepare,
)
from pipelines.tokenization.arrow import as_texts
from pipelines.tokenization.engines import Gigatoken
from tests.tokenization.faulty import Faulty
from tests.tokenization.tokenizers_at_hand import NAMES, expected, files, tokenizer_json

MODULE = "pipelines.tokenization.preparation"


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_through_json(name: str) -> None:
    found = prepare(files(name), Policy(eos="[SEP]" if name == "wordpiece" else "</s>"))
    given_back = json.loads(json.dumps(found.to_json()))
    assert given_back == found.to_json()
    assert Prepared.from_json(given_back) == found
    assert hash(found) == hash(prepare(files(name), Policy(eos=found.identity.edges.eos)))


@pytest.mark.parametrize(
    ("text", "name"), [("lorem ipsum", "probe text"), ("a document", "document of the source")]
)
def test_a_faulty_engine_is_caught(monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> None:
    def faulty(spec: dict) -> Faulty:
        return Faulty(Gigatoken(spec), lambda given: text in given)

    monkeypatch.setattr(f"{MODULE}.fast_engine", faulty)
    monkeypatch.setattr(f"{MODULE}._source_digest", lambda: f"faulty on the {name}")
    samples = ["first", "then a document"]
    found = prepare(files("gpt2"), sample_texts=samples)
    assert found.engine == "hf"
    assert f"the engines differ on the {name}" in found.notes[0]
    assert "at token 0 gigatoken has" in found.notes[0]
    with pytest.raises(TokenizerError, match=rf"'gigatoken' cannot be used .* {name}"):
        prepare(files("gpt2"), engine="gigatoken", sample_texts=samples)


def test_what_needs_no_source_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(files("gpt2"), sample_texts=["a"])
    examined = []

    def examine(*arguments: object) -> Prepared:
        examined.append(arguments[1:])
        return first

    monkeypatch.setattr(f"{MODULE}._examined", examine)
    assert prepare(files("gpt2"), sample_texts=["another"]) == first
    assert examined == []
    # Tokens that no other test asks for, since all of them remember in one folder.
    prepare(files("gpt2"), Policy(eos="as yet unknown"))
    prepare(files("gpt2"), Policy(bos="as yet unknown"), engine="hf")
    monkeypatch.setattr(f"{MODULE}.versions", lambda: {"gigatoken": "1", "tokenizers": "2"})
    prepare(files("gpt2"))
    monkeypatch.setattr(f"{MODULE}._source_digest", lambda: "other code")
    prepare(files("gpt2"))
    assert len(examined) == 4


def test_an_engine_that_cannot_load_is_an_error_only_where_it_was_insisted_on() -> None:
    with pytest.raises(TokenizerError, match="gigatoken does not support it"):
        prepare(files("wordpiece"), engine="gigatoken")
    with pytest.raises(ValueError, match="engine must be one of auto, gigatoken, hf, got 'fast'"):
        prepare(files("wordpiece"), engine="fast")


@pytest.mark.parametrize(("largest", "dtype"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_token_dtype_counts_added_tokens(largest: int, dtype: type) -> None:
    alphabet = sorted(pre.ByteLevel.alphabet())
    names = alphabet + [f"t{i}" for i in range(largest - len(alphabet))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|end|>"])
    made = TokenizerFiles.from_files({"tokenizer.json": tokenizer.to_str().encode()})
    identity = prepare(made, Policy(eos="<|end|>"), engine="hf").identity
    assert identity.edges.eos_id == identity.largest_id == largest
    assert identity.vocabulary == largest + 1
    assert identity.dtype == dtype


def test_dropout_is_switched_off() -> None:
    spec = json.loads(tokenizer_json("gpt2"))
    spec["model"]["dropout"] = 0.5
    made = TokenizerFiles.from_files({"tokenizer.json": json.dumps(spec).encode()})
    found = prepare(made, engine="hf")
    assert "dropout is switched off" in found.notes[0]
    text = "the quick brown fox " * 20
    ids = open_encoder(made, found).encode(as_texts([text]))
    assert ids[0].tolist() == expected("gpt2", text)


def test_appending_with_the_same_tokenizer_is_allowed_whatever_the_engine() -> None:
    config = {"tokenizer_config.json": b'{"eos_token": "</s>"}'}
    fast = prepare(files("gpt2"), Policy(eos="</s>"))
    slow = prepare(files("gpt2", **config), Policy(eos="auto"), engine="hf")
    assert differences(fast.identity, slow.identity) == []
    check_same(fast.identity, slow.identity, "cache")


def test_appending_with_another_tokenizer_is_refused_by_name() -> None:
    ours = prepare(files("gpt2"), engine="hf").identity
    for other, message in [
        (prepare(files("gpt2"), Policy(eos="</s>"), "hf").identity, r"eos is '</s>' \(id 1\), the"),
        (prepare(files("wordpiece"), engine="hf").identity, r"the vocabulary has [\d,]+ tokens"),
        (prepare(files("cl100k"), engine="hf").identity, "content of tokenizer.json is"),
        (dataclasses.replace(ours, behaviour="0"), "same tokenizer.json gives other ids"),
    ]:
        with pytest.raises(IncompatibleCache, match=message):
            check_same(ours, other, "file:///cache")


def test_behaviours_of_different_probes_are_not_compared() -> None:
    ours = prepare(files("gpt2"), engine="hf").identity
    assert differences(ours, dataclasses.replace(ours, behaviour="0", probes=0)) == []


def test_opening_other_files_than_prepared_is_refused() -> None:
    with pytest.raises(IncompatibleCache, match="prepare it again"):
        open_encoder(files("cl100k"), prepare(files("gpt2"), engine="hf"))


def test_other_engine_versions_are_measured_again() -> None:
    found = prepare(files("gpt2"))
    elsewhere = dataclasses.replace(
        found,
        versions=(("gigatoken", "0.1"), ("tokenizers", "0.1")),
        exact_code_points=CodePointSet.of([0x80]),
    )
    encoder = open_encoder(files("gpt2"), elsewhere)
    assert encoder.exact_code_points == found.exact_code_points
    changed = dataclasses.replace(found.identity, behaviour="0")
    with pytest.raises(IncompatibleCache, match="library has changed"):
        open_encoder(files("gpt2"), dataclasses.replace(elsewhere, identity=changed))
