"""What docs/reading.md says about JAX and grain runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest
from absl import flags

from tests.reader.stored import write_commit

pytestmark = pytest.mark.jax


@pytest.mark.parametrize("title", ["JAX", "grain"])
def test_the_examples_run(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags.FLAGS.mark_as_parsed()
    write_commit(tmp_path / "cache", [[600] * 30])
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "reading.md").read_text("utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    names: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```$", section, re.M | re.S):
        exec(compile(block, "docs/reading.md", "exec"), names)
    batch = names["batch"]
    assert batch["tokens"].shape == (8, 512)
    if title == "JAX":
        assert isinstance(batch["tokens"], jax.Array)
        assert {shard.data.shape for shard in batch["tokens"].addressable_shards} == {(4, 128)}
        assert names["state"]["samples"] == 8
