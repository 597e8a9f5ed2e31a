"""Caches as builds make them: sound, and shown by the commands as they were made."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import cachelib
from cachelib.commands.cli import main
from cachelib.commands.stats import statistics
from cachelib.format.storage import Storage
from cachelib.verification import difference, verify
from pipelines.launcher import build

TEXTS = [f"row {i} \x1b[1m " + "für das Rad 水力\n" * (i % 9) for i in range(400)]


def lines(texts: list[str], first: int) -> bytes:
    records = [{"text": text, "id": f"r{first + i}", "score": i} for i, text in enumerate(texts)]
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of files, "one" and "two", with a bad record, and a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("one/web", "two/web"):
        (folder / name).mkdir(parents=True)
    (folder / "one/web/a.jsonl").write_bytes(lines(TEXTS[:250], 0) + b"{bad\n\n")
    (folder / "one/b.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS[250:300], 250)))
    (folder / "two/web/c.jsonl").write_bytes(lines(TEXTS[300:], 300))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.save(str(folder / "tokenizer.json"))
    return folder


def made(inputs: Path, to: Path, split_bytes: int) -> Path:
    """A finished cache of both rounds, the second one appended."""
    for round_ in ("one", "two"):
        build(
            inputs=[str(inputs / round_)],
            to=str(to),
            tokenizer=str(inputs / "tokenizer.json"),
            keep={"id": "str", "score": "int32"},
            split_bytes=split_bytes,
            finish=round_ == "two",
        )
    return to


@pytest.fixture(scope="module")
def cache(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(inputs, tmp_path_factory.mktemp("built") / "cache", split_bytes=4096)


def test_a_build_is_sound_in_every_version(cache: Path) -> None:
    snapshot = cachelib.open(cache).snapshot
    assert snapshot.version > 3
    assert len(snapshot.entries) > 5
    assert [str(problem) for problem in verify(Storage.at(cache))] == []
    assert [str(problem) for problem in verify(Storage.at(cache), 1)] == []


def test_builds_with_other_splits_hold_the_same_rows(
    inputs: Path, cache: Path, tmp_path: Path
) -> None:
    other = made(inputs, tmp_path / "cache", split_bytes=1 << 20)
    assert difference(cachelib.open(cache), cachelib.open(other)) is None


def test_what_was_built_is_shown(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(cache)]) == 0
    out = capsys.readouterr().out
    assert "finished" in out
    assert "400 rows" in out
    assert "256 tokens up to id 255, no bos, no eos" in out
    order = [*range(250, 300), *range(250), *range(300, 400)]  # sources by name: b before web/a
    assert main(["head", str(cache), "--row", "57", "-n", "1", "--full"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("row 57  web/a.jsonl:")
    assert f"row {order[57]} \\x1b[1m " in out
    assert out.count("für das Rad 水力") == order[57] % 9
    assert f"r{order[57]}\n" in out


def test_what_was_built_is_counted(cache: Path) -> None:
    found = statistics(Storage.at(cache))
    assert (found.rows, found.records) == (400, 401)
    assert found.tokens == sum(len(text.encode()) for text in TEXTS)
    assert [(reject.reason, reject.count) for reject in found.rejects] == [("not JSON", 1)]
    example = found.rejects[0].example
    assert example is not None
    assert (example["source"], example["excerpt"]) == ("web/a.jsonl", "{bad")
    assert found.sources is not None
    rows = {row["name"]: row["rows"] for row in found.sources.to_json()}
    assert rows == {"b.jsonl.gz": 50, "web/a.jsonl": 250, "web/c.jsonl": 100}
    lengths = np.array([len(text.encode()) for text in TEXTS])
    assert found.lengths is not None
    assert found.lengths.quantile(0.9) == np.quantile(lengths, 0.9, method="inverted_cdf")
