"""A small tokenizer and small corpora that builds in these tests read."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = (
    "the", "stream", "of", "water", "turns", "a", "wheel", "and", "fills", "das", "Rad", "für",
    "naïve", "Übung", "水力", "発電", "😀", "x_1", "42",
)  # fmt: skip
EOS = "<|end|>"


def sentences(count: int, seed: int) -> list[str]:
    """Texts of very different lengths, the same for the same seed."""
    draw = random.Random(seed)
    return [
        " ".join(draw.choices(WORDS, k=int(draw.lognormvariate(2.5, 1.2)))) for _ in range(count)
    ]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a byte-level BPE tokenizer with an end token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(sentences(300, 0), trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    bpe.save(str(path))
    return str(path)


@pytest.fixture
def encode(tokenizer: str) -> Callable[[str], list[int]]:
    """Ids of a text as Hugging Face tokenizers gives them, special tokens in it being text."""
    bpe = Tokenizer.from_file(tokenizer)
    bpe.encode_special_tokens = True
    return lambda text: bpe.encode(text, add_special_tokens=False).ids


def write_jsonl(path: Path, texts: list[str], first: int = 0) -> None:
    lines = [
        json.dumps({"id": f"r{first + i}", "text": text, "score": i / 2}, ensure_ascii=i % 2 == 0)
        for i, text in enumerate(texts)
    ]
    path.write_bytes(("\n".join(lines) + "\n").encode())


def write_csv(path: Path, texts: list[str], first: int = 0) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "text"])
        table.writerows((f"r{first + i}", text) for i, text in enumerate(texts))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of jsonl, gzip and parquet files: 500 rows in the order of their names."""
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    texts = sentences(500, 1)
    write_jsonl(folder / "a.jsonl", texts[:200])
    plain = folder / "b.tmp"
    write_jsonl(plain, texts[200:300], 200)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
    table = pa.table(
        {
            "id": [f"r{i}" for i in range(300, 450)],
            "text": texts[300:450],
            "score": [i / 2 for i in range(150)],
        }
    )
    pq.write_table(table, folder / "c.parquet", row_group_size=40)
    write_jsonl(folder / "deep" / "d.jsonl", texts[450:], 450)
    return folder
