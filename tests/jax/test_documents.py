"""What docs/reading.md says about JAX and grain runs, and so does the example of grain."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from absl import flags

from tests.reader.stored import write_commit

pytestmark = pytest.mark.jax

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("title", ["JAX", "grain"])
def test_the_examples_run(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags.FLAGS.mark_as_parsed()
    write_commit(tmp_path / "cache", [[600] * 30])
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "reading.md").read_text("utf-8")
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


def test_training_by_grain_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    write_commit(tmp_path / "cache", [[100] * 50, [30] * 40])

    def trained(save: str, steps: int) -> list[str]:
        sizes = {"length": 16, "batch": 4, "workers": 1, "vocabulary": 6200, "width": 8}
        options = {**sizes, "save": save, "steps": steps}
        script = [sys.executable, str(ROOT / "examples" / "training_by_grain.py"), "cache"]
        done = subprocess.run(
            [*script, *(f"--{name}={value}" for name, value in options.items())],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    whole = trained("whole.npz", 10)
    assert [line.partition(", loss")[0] for line in whole] == [
        "step 5: tokens (4, 16)",
        "step 10: tokens (4, 16)",
    ]
    trained("parts.npz", 3)
    assert trained("parts.npz", 10) == ["going on after step 3", *whole]
