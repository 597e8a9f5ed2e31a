"""Tokenizers are found by reference and travel as bytes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from pipelines.tokenization import TokenizerError, TokenizerFiles, load_tokenizer, prepare
from tests.tokenization.tokenizers_at_hand import files, tokenizer_json

CONFIG = b'{"bos_token": "<s>", "eos_token": {"content": "</s>"}}'


def test_a_file_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "my tokenizer.json"
    path.write_bytes(tokenizer_json("gpt2"))
    (tmp_path / "tokenizer_config.json").write_bytes(CONFIG)
    found = load_tokenizer(path)
    assert found.to_files() == {"tokenizer.json": tokenizer_json("gpt2")}
    assert found == load_tokenizer(str(path))


@pytest.mark.parametrize("reference", ["", "tokenizer.json"])
def test_a_folder(tmp_path: Path, reference: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json("gpt2"))
    (tmp_path / "tokenizer_config.json").write_bytes(CONFIG)
    (tmp_path / "chat_template.jinja").write_bytes(b"{{ messages }}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    found = load_tokenizer(tmp_path / reference)
    assert set(found.to_files()) == {
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert TokenizerFiles.from_files(found.to_files()) == found


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of a folder of a model in memory, with weights that nobody reads."""
    store, folder = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    store.pipe(
        {
            f"{folder}/tokenizer.json": tokenizer_json("gpt2"),
            f"{folder}/other.json": tokenizer_json("gpt2"),
            f"{folder}/tokenizer_config.json": CONFIG,
            f"{folder}/additional_chat_templates/tools.jinja": b"{{ tools }}",
            f"{folder}/model.safetensors": b"weights",
        }
    )
    yield f"memory://{folder}"
    store.rm(folder, recursive=True)


@pytest.mark.parametrize("reference", ["", "/", "/tokenizer.json"])
def test_a_url(memory: str, reference: str) -> None:
    found = load_tokenizer(memory + reference)
    assert found.to_files() == {
        "additional_chat_templates/tools.jinja": b"{{ tools }}",
        "tokenizer.json": tokenizer_json("gpt2"),
        "tokenizer_config.json": CONFIG,
    }


def test_a_url_of_a_file_under_any_name(memory: str) -> None:
    found = load_tokenizer(f"{memory}/other.json")
    assert found.to_files() == {"tokenizer.json": tokenizer_json("gpt2")}


def test_a_url_of_nothing(memory: str) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer at .*nowhere"):
        load_tokenizer(f"{memory}/nowhere")


def test_a_folder_that_only_transformers_can_load(tmp_path: Path) -> None:
    spec = json.loads(tokenizer_json("gpt2"))
    (tmp_path / "vocab.json").write_text(json.dumps(spec["model"]["vocab"]))
    merges = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in spec["model"]["merges"]
    ]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "GPT2Tokenizer",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "</s>",
            }
        )
    )
    found = load_tokenizer(tmp_path)
    assert found.companion("tokenizer_config.json")["eos_token"] == "</s>"
    assert found.spec["model"]["vocab"] == spec["model"]["vocab"]
    assert prepare(found).engine == "gigatoken"


def test_digest_is_of_what_decides_ids() -> None:
    spec = json.loads(tokenizer_json("gpt2"))
    same = {**spec, "truncation": {"max_length": 3}, "padding": None}
    same["model"] = dict(reversed(spec["model"].items()))
    same["model"]["merges"] = [" ".join(merge) for merge in spec["model"]["merges"]]
    other = {**spec, "normalizer": {"type": "NFC"}}

    def digest(spec: dict) -> str:
        content = json.dumps(spec, indent=2).encode()
        return TokenizerFiles.from_files({"tokenizer.json": content}).digest

    assert digest(same) == digest(spec) == files("gpt2").digest
    assert digest(other) != digest(spec)
    assert files("gpt2", **{"tokenizer_config.json": CONFIG}).digest == digest(spec)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.json", None, "no tokenizer at"),
        ("cut.json", b'{"model": {', "not JSON"),
        ("list.json", b"[]", "expected the tokenizer.json"),
        ("config.json", b'{"model_type": "llama"}', "expected the tokenizer.json"),
        ("spiece.model", b"\x0a", "give its folder"),
    ],
)
def test_what_is_no_tokenizer(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path / name)


def test_an_unusable_folder(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json and transformers cannot"):
        load_tokenizer(tmp_path)


def test_a_model_that_does_not_load() -> None:
    broken = TokenizerFiles.from_files({"tokenizer.json": b'{"model": {"type": "Magic"}}'})
    with pytest.raises(TokenizerError, match="cannot load"):
        prepare(broken)


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(TokenizerError, match=r"no route to host\)\. Give the path of a tokenizer"):
        load_tokenizer("someone/some-model")
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        load_tokenizer("some/folder/not/there")
