"""docs/configuration.md: its examples are configurations, and its options are the command's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pipelines import cli
from pipelines.config import BuildConfig, build_config
from tests.docs.options import DOCUMENT
from tests.docs.test_examples import blocks

# That the table of keys is that of the model is tested in test_examples.py.


def test_the_yaml_is_a_configuration() -> None:
    (example,) = (yaml.safe_load(block) for _, block in blocks("docs/configuration.md", "yaml"))
    config = build_config(example)
    assert config.inputs == ("web=data/**/*.jsonl.zst", "books=books/")
    assert config.split_bytes == 64 << 20
    assert config.keep == {"id": "str", "score": "float32"}


def test_the_command_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = (block for _, block in blocks("docs/configuration.md", "yaml"))
    (command,) = (block for _, block in blocks("docs/configuration.md", "sh"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.yaml").write_text(example)
    arguments = command.split()[2:]
    config = cli._config(cli._parser("build").parse_args(arguments))
    assert (config.to, config.finish, config.split_bytes) == ("other", False, 16 << 20)


def test_the_options_that_are_no_keys_are_told() -> None:
    told = re.findall(r"^\| `--([a-z-]+)` \|", DOCUMENT.read_text("utf-8"), re.M)
    parser = cli._parser("build")
    options = {option.removeprefix("--") for a in parser._actions for option in a.option_strings}
    keys = {name.replace("_", "-") for name in BuildConfig.model_fields}
    extra = options - keys - {f"no-{key}" for key in keys} - {"help", "-h"}
    assert set(told) == extra
