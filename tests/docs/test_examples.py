"""The commands and the Python in README.md and docs/ are run, as they stand, on a small corpus."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import cachelib
from pipelines import cli, entry, growing
from pipelines.config import GrowthConfig, growing_config
from tests.docs import options
from tests.pipelines.conftest import sentences

ROOT = Path(__file__).parents[2]
EOS = "<|endoftext|>"


CLEANING = """
def strip(record):
    return record["text"].strip() or None
"""


def blocks(document: str, *languages: str) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a document, in order."""
    text = (ROOT / document).read_text("utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    return [(language, block) for language, block in found if language in languages]


def indented(document: str) -> list[str]:
    """The lines of the indented blocks of a document, without their comments."""
    text = (ROOT / document).read_text("utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    lines = re.findall(r"^    (\S.*)$", text, re.M)
    return [line.partition("#")[0].strip() for line in lines]


def write_records(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    records = ({"id": f"{path.stem}{i}", "text": text} for i, text in enumerate(texts))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the documents name."""
    texts = sentences(4000, 5)
    write_records(tmp_path / "data" / "a.jsonl", texts[:2000])
    write_records(tmp_path / "data" / "b.jsonl", texts[2000:3500])
    write_records(tmp_path / "new" / "b.jsonl", texts[3500:])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[:300], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_records(tmp_path / "raw" / "c.jsonl", texts[:500])
    (tmp_path / "cleaning.py").write_text(CLEANING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    # The command turns logging off for its process, which here is pytest's.
    monkeypatch.setattr("logging.disable", lambda level: None)
    return tmp_path


def run(block: str) -> None:
    for line in block.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "forebay"
        if arguments[0] == "build":
            arguments.append("--quiet")
        assert entry.main(arguments) == 0, line


class Torch:
    """Stands for PyTorch, of which the document uses one function."""

    @staticmethod
    def from_numpy(array: Any) -> Any:
        return array


def test_the_readme_does_what_it_says(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch)
    steps: list[tuple[int, ...]] = []

    def train_step(inputs: Any, targets: Any) -> None:
        aimed = targets[:, :-1] != -100
        assert aimed.mean() > 0.9
        assert (inputs[:, 1:] == targets[:, :-1])[aimed].all()
        steps.append(inputs.shape)

    weights: list[float] = []

    def measure(tokens: Any, weight: Any) -> None:
        assert tokens.shape == (8, 512)
        weights.extend(weight)

    names: dict[str, Any] = {"train_step": train_step, "measure": measure}
    for language, block in blocks("README.md", "sh", "yaml", "python"):
        if language == "yaml":
            (place / "build.yaml").write_text(block)
        elif language == "sh":
            run(block)
        else:
            exec(compile(block, "README.md", "exec"), names)
    said = capsys.readouterr().out
    assert "3500 rows," in said
    assert f"{place}/cache/ is up to date: version 0, 3,500 rows" in said
    assert "500 rows and" in said  # the second folder was appended
    assert "is sound: 4,000 rows" in said
    cache = cachelib.open("cache")
    assert len(cache) == 4000
    assert cache.snapshot.commit.finished
    assert cache.provenance([3500])[0].source == "more/b.jsonl"
    assert bytes(names["rows"]["id"][0]) == b"a5"
    assert set(names["batch"]) == {"tokens", "segment_ids", "positions", "labels"}
    assert names["loader"].samples == names["state"]["samples"] == 8
    assert len(names["saved"]) < 1024
    assert next(names["mine"])["tokens"].shape == (4, 2048)
    assert sum(weights) == len(names["held"].windows(512)) > 0
    assert steps
    assert set(steps) == {(8, 2048)}


def test_the_readers_examples_run(place: Path) -> None:
    first = next(block for _, block in blocks("README.md", "sh") if "forebay build" in block)
    run(first.splitlines()[-1])
    for name in ("web", "code", "books"):
        shutil.copytree(place / "cache", place / name)
    names: dict[str, Any] = {}
    loaders = []
    for _, block in blocks("docs/reading.md", "python"):
        exec(compile(block, "docs/reading.md", "exec"), names)
        if "start=state" in block:
            loaders.append(names["loader"])
            assert names["loader"].samples == 8
            assert next(names["loader"])["tokens"].shape == (16, 512)
        if "read_jsonl" in block:
            assert names["loader"].step == 2
            assert next(names["loader"])["tokens"].shape == (8, 512)
    assert loaders
    assert len(names["edges"]) == 8 * (64 + 1) + 1


def test_make_and_pip_know_what_the_readme_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made: SimpleNamespace = SimpleNamespace()
    monkeypatch.setattr("setuptools.setup", lambda **values: vars(made).update(values))
    monkeypatch.chdir(ROOT)
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {"__file__": "setup.py"})
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    seen = []
    for line in indented("README.md"):
        program, *arguments = shlex.split(line)
        if program == "make":
            assert set(arguments) <= targets, line
        else:
            assert [program, arguments[0]] == ["pip", "install"], line
            extras = re.findall(r"\w+", arguments[1].removeprefix("."))
            assert set(extras) <= set(made.extras_require), line
        seen.append(program)
    assert {"make", "pip"} <= set(seen)


def test_the_table_of_options_is_that_of_the_model() -> None:
    document = options.DOCUMENT.read_text("utf-8")
    assert options.renewed(document) == document, (
        "docs/configuration.md is stale; write it anew with: python -m tests.docs.options"
    )
    document = options.GROWTH.read_text("utf-8")
    assert options.renewed(document, GrowthConfig, options.GROWTH_MARKS) == document, (
        "docs/streaming.md is stale; write it anew with: python -m tests.docs.options"
    )


def test_the_commands_of_growing_caches_are_understood() -> None:
    for _, block in blocks("docs/streaming.md", "sh"):
        for line in block.splitlines():
            program, command, *rest = shlex.split(line)
            assert program == "forebay"
            known, others = cli.parser_of(command, growing.FIELDS).parse_known_args(rest)
            assert [other.partition("=")[0] for other in others] in ([], ["--prism_location"])
            growing_config(*cli.options_of(known, growing.FIELDS))


@pytest.mark.parametrize("path", ["README.md", *map("docs/{}".format, [
    "architecture.md", "configuration.md", "format.md", "reading.md", "sources.md", "tokenizers.md",
])])  # fmt: skip
def test_links_lead_somewhere(path: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / path).parent / target).exists(), target
