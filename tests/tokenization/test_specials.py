"""Special tokens are kept out of text, and nothing else is."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, models, trainers
from tokenizers import pre_tokenizers as pre

from pipelines.tokenization import TokenizerFiles, open_encoder, prepare
from pipelines.tokenization.arrow import as_texts
from tests.tokenization.tokenizers_at_hand import CORPUS, files, tokenizer_json


def test_ordinary_tokens_marked_special_can_still_be_written() -> None:
    """Some vocabularies mark "!" as padding; its text must not be lost."""
    tokenizer = Tokenizer.from_buffer(tokenizer_json("gpt2"))
    assert "the" in tokenizer.get_vocab()
    tokenizer.add_special_tokens(["!", "the"])
    made = TokenizerFiles.from_files({"tokenizer.json": tokenizer.to_str().encode()})
    found = prepare(made, engine="hf")
    tokenizer.encode_special_tokens = True
    text = "the end! then!!"
    ids = open_encoder(made, found).encode(as_texts([text]))[0].tolist()
    assert not found.hidden
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_word_level_models_do_not_make_special_tokens() -> None:
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre.WhitespaceSplit()
    specials = ["[UNK]", "<s>", "</s>"]
    trainer = trainers.WordLevelTrainer(special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    made = TokenizerFiles.from_files({"tokenizer.json": tokenizer.to_str().encode()})
    found = prepare(made)
    assert "makes special tokens out of text (<s>, </s>)" in found.notes[0]
    ids = open_encoder(made, found).encode(as_texts(["the <s> fox </s> [UNK]"]))
    the, fox = tokenizer.token_to_id("the"), tokenizer.token_to_id("fox")
    assert ids[0].tolist() == [the, 0, fox, 0, 0]


def test_hiding_changes_nothing_else() -> None:
    found = prepare(files("unigram"))
    assert found.hidden
    plain = Tokenizer.from_str(json.dumps(files("unigram").spec))
    for text in CORPUS[:5]:
        ids = open_encoder(files("unigram"), found).encode(as_texts([text]))
        assert ids[0].tolist() == plain.encode(text, add_special_tokens=False).ids
