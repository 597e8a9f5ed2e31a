"""Small tokenizers of every family, trained on the spot."""

from __future__ import annotations

import functools
import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre

from pipelines.tokenization import TokenizerFiles

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UNKNOWN_REGEX = r"\w+|\s+|[^\w\s]"
# The code points that tests measure, see conftest, and use.
MEASURED = (range(0x2100), range(0x3000, 0x3100), range(0xFB00, 0xFC00), range(0x1FA00, 0x1FB00))
SPECIALS = ["<s>", "</s>", "<pad>"]
CORPUS = (
    "the quick brown fox jumps over the lazy dog and it's gone; we'll see what they've done",
    "def encode(self, texts):\n    return [self.one(text) for text in texts]\n",
    "Съешь ещё этих мягких французских булок, да выпей чаю",
    "いろはにほへと ちりぬるを 天地玄黃 宇宙洪荒",
    "numbers 1 22 333 4444 and $5.00 — “quotes” and naïve façades 😀 👩‍👩‍👧",
) * 8


def _byte_level(use_regex: bool = True) -> pre.PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _split(regex: str) -> pre.PreTokenizer:
    return pre.Sequence([pre.Split(Regex(regex), "isolated"), _byte_level(False)])


def _byte_level_bpe(pre_tokenizer: pre.PreTokenizer, **parts: object) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=SPECIALS,
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _metaspace_bpe() -> Tokenizer:
    """Like SentencePiece: byte fallback, whose tokens are no special tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<unk>", *SPECIALS, *fallback], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] not in fallback]
    return Tokenizer.from_str(json.dumps(spec))


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre.BertPreTokenizer()
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=600, special_tokens=specials, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=["<unk>", *SPECIALS],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _adds_bos() -> Tokenizer:
    tokenizer = _byte_level_bpe(_byte_level())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def _truncates_and_pads() -> Tokenizer:
    tokenizer = _byte_level_bpe(_byte_level())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8, pad_id=2, pad_token="<pad>")
    return tokenizer


def _added_vocabulary() -> Tokenizer:
    tokenizer = _byte_level_bpe(_byte_level())
    tokenizer.add_special_tokens(["<|call|>", "<|end|>"])
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


MAKERS = {
    "gpt2": lambda: _byte_level_bpe(_byte_level()),
    "gpt2-prefix-space": lambda: _byte_level_bpe(pre.ByteLevel(add_prefix_space=True)),
    "cl100k": lambda: _byte_level_bpe(_split(CL100K)),
    "unknown-regex": lambda: _byte_level_bpe(_split(UNKNOWN_REGEX)),
    "no-regex": lambda: _byte_level_bpe(_byte_level(use_regex=False)),
    "nfc": lambda: _byte_level_bpe(_byte_level(), normalizer=normalizers.NFC()),
    "lowercase": lambda: _byte_level_bpe(_byte_level(), normalizer=normalizers.Lowercase()),
    "metaspace": _metaspace_bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "adds-bos": _adds_bos,
    "truncates-and-pads": _truncates_and_pads,
    "added-vocabulary": _added_vocabulary,
}
NAMES = tuple(MAKERS)
# Those for which gigatoken was seen to give the ids of `tokenizers`.
FAST = ("gpt2", "gpt2-prefix-space", "cl100k", "adds-bos", "truncates-and-pads", "added-vocabulary")


@functools.cache
def tokenizer_json(name: str) -> bytes:
    return MAKERS[name]().to_str().encode()


def files(name: str, **companions: bytes) -> TokenizerFiles:
    return TokenizerFiles.from_files({"tokenizer.json": tokenizer_json(name), **companions}, name)


@functools.cache
def reference(name: str) -> Tokenizer:
    """The tokenizer as a user of `tokenizers` would set it up to encode a document."""
    tokenizer = Tokenizer.from_buffer(tokenizer_json(name))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def expected(name: str, text: str) -> list[int]:
    return reference(name).encode(text, add_special_tokens=False).ids
