"""Whatever the engine, the ids are those of Hugging Face `tokenizers`."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelib.ragged import Ragged
from pipelines.tokenization import Encoder, Policy, Prepared, decode, open_encoder, prepare
from pipelines.tokenization.arrow import as_texts
from pipelines.tokenization.encoder import replace_rows, with_edges
from tests.tokenization.tokenizers_at_hand import FAST, MEASURED, NAMES, expected, files

HARD = [
    "",
    " ",
    "a",
    "x\u1ae6y \ufbcb. 1\u1ae62",
    "new emoji \U0001fae9 and \U0001fac6",
    "<s> a</s>b <pad><s>",
    "The quick  brown\tfox\r\n\r\n jumps.\n\n",
    "nul \x00 sep \u2028 \u2029 \x85 \ufeff",
    "e\u0301 é \u1100\u1161\u11a8 か\u3099",
    "x" * 5000,
    " " * 3000,
]
CHARACTERS = st.one_of(*(st.sampled_from([*map(chr, block)]) for block in MEASURED))


@functools.cache
def prepared(name: str) -> Prepared:
    return prepare(files(name))


def encoder(name: str) -> Encoder:
    return open_encoder(files(name), prepared(name))


def rows(ids: Ragged) -> list[list[int]]:
    return [row.tolist() for row in ids]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_hugging_face(name: str) -> None:
    texts = [text for text in HARD if name != "unigram" or "<s>" not in text]
    ids = encoder(name).encode(as_texts(texts))
    assert rows(ids) == [expected(name, text) for text in texts]
    assert ids.values.dtype == np.uint32
    assert ids.offsets.dtype == np.int64


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(CHARACTERS, max_size=40), max_size=6))
def test_ids_are_those_of_hugging_face_for_any_text(name: str, texts: list[str]) -> None:
    assert rows(encoder(name).encode(as_texts(texts))) == [expected(name, t) for t in texts]


@pytest.mark.parametrize("name", FAST)
def test_fast_engine_is_used_where_it_is_exact(name: str) -> None:
    assert prepared(name).engine == "gigatoken"
    assert prepared(name).notes == ()
    assert encoder(name).fast is not None


@pytest.mark.parametrize("name", ["unknown-regex", "no-regex", "lowercase", "wordpiece", "unigram"])
def test_other_tokenizers_run_on_hugging_face_and_say_so(name: str) -> None:
    assert prepared(name).engine == "hf"
    assert "Hugging Face tokenizers, is used" in prepared(name).notes[-1]


@pytest.mark.parametrize("name", ["gpt2", "wordpiece"])
def test_slices_and_empty_arrays(name: str) -> None:
    texts = as_texts(HARD)
    assert rows(encoder(name).encode(texts.slice(3, 4))) == [expected(name, t) for t in HARD[3:7]]
    assert rows(encoder(name).encode(texts.slice(2, 0))) == []
    assert rows(encoder(name).encode(pa.array([], pa.large_string()))) == []


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_in_text_are_text(name: str) -> None:
    spec = files(name).spec
    special = {t["content"]: t["id"] for t in spec["added_tokens"] if t["special"]}
    unknown = {"<unk>", "[UNK]"}
    for token, index in special.items():
        if token not in unknown:
            texts = as_texts([token, f"a{token}b", f" {token} {token}"])
            assert index not in encoder(name).encode(texts).values


def test_added_tokens_that_are_not_special_are_vocabulary() -> None:
    (ids,) = rows(encoder("added-vocabulary").encode(as_texts(["a<think>b<|call|>"])))
    tokens = {t["content"]: t["id"] for t in files("added-vocabulary").spec["added_tokens"]}
    assert tokens["<think>"] in ids
    assert tokens["<|call|>"] not in ids


@pytest.mark.parametrize("name", ["gpt2", "wordpiece", "unigram", "metaspace"])
@pytest.mark.parametrize(
    ("bos", "eos"), [(True, False), (False, True), (True, True), (False, False)]
)
def test_edges_are_at_document_edges(name: str, bos: bool, eos: bool) -> None:
    first, last = ("[CLS]", "[SEP]") if name == "wordpiece" else ("<s>", "</s>")
    policy = Policy(first if bos else None, last if eos else None)
    found = prepare(files(name), policy)
    edges = found.identity.edges
    texts = [text for text in HARD if "<s>" not in text]
    before = [edges.bos_id] if bos else []
    after = [edges.eos_id] if eos else []
    assert rows(open_encoder(files(name), found).encode(as_texts(texts))) == [
        before + expected(name, text) + after for text in texts
    ]


def test_exact_engine_on_demand() -> None:
    assert rows(encoder("cl100k").encode(as_texts(HARD), exact=True)) == [
        expected("cl100k", text) for text in HARD
    ]


def test_encoder_is_shared_and_threads_agree() -> None:
    again = Prepared.from_json(prepared("cl100k").to_json())
    with ThreadPoolExecutor(8) as threads:
        encoders = list(threads.map(lambda _: open_encoder(files("cl100k"), again), range(8)))
        assert len({id(one) for one in encoders}) == 1
        texts = as_texts(HARD * 20)
        results = list(threads.map(lambda one: rows(one.encode(texts)), encoders))
    assert results == [[expected("cl100k", text) for text in HARD * 20]] * 8


def test_decode_gives_the_text_back() -> None:
    text = "The quick <s> brown\n"
    ids = encoder("cl100k").encode(as_texts([text]))[0]
    assert decode(files("cl100k"), ids) == text


@given(
    lengths=st.lists(st.integers(0, 5), max_size=8),
    bos=st.none() | st.integers(100, 101),
    eos=st.none() | st.integers(200, 201),
)
def test_with_edges_equals_lists(lengths: list[int], bos: int | None, eos: int | None) -> None:
    ids = Ragged.from_lengths(np.arange(sum(lengths), dtype=np.uint32), np.array(lengths, int))
    assert rows(with_edges(ids, bos, eos)) == [
        [bos] * (bos is not None) + row + [eos] * (eos is not None) for row in rows(ids)
    ]


@given(data=st.data())
def test_replace_rows_equals_lists(data: st.DataObject) -> None:
    row = st.lists(st.integers(0, 9), max_size=4)
    old = data.draw(st.lists(row, max_size=8))
    changed = {i: data.draw(row) for i in range(len(old)) if data.draw(st.booleans())}
    replaced = replace_rows(
        Ragged.from_rows([np.array(r, np.uint32) for r in old], np.uint32),
        np.array(sorted(changed), np.int64),
        Ragged.from_rows([np.array(changed[i], np.uint32) for i in sorted(changed)], np.uint32),
    )
    assert rows(replaced) == [changed.get(i, r) for i, r in enumerate(old)]
