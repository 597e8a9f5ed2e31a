"""What docs/reading.md says about PyTorch runs, and training goes on after a kill."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing import ProcessExitedException

from cachelib.torch import Batches
from cachelib.torch import open as open_together
from tests.reader.stored import write_commit
from tests.torch.sources import apart

pytestmark = pytest.mark.torch

LENGTH, BATCH, STEPS = 8, 4, 9


def blocks() -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "reading.md").read_text("utf-8")
    section = text.partition("\n## PyTorch\n")[2].partition("\n## ")[0]
    return re.findall(r"^```py\n(.*?)^```$", section, re.M | re.S)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_commit(tmp_path / "cache", [[600] * 30])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"rank": 1, "world": 2}
    exec(compile(blocks()[0], "docs/reading.md", "exec"), names)
    assert names["state"]["samples"] == 8
    assert next(names["batches"])["labels"].shape == (4, 512)
    assert names["batch"]["tokens"].shape == (8, 512)
    names["loader"].load_state_dict(names["state"])


def train(folder: str, seen: str, die_at: int | None) -> None:
    """Train a tiny model as the document has it; note the ids of each batch that it gets."""
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    class Noting(GPT2LMHeadModel):
        def forward(self, input_ids: torch.Tensor, **rest: Any) -> Any:
            with Path(seen).open("a") as file:
                file.write(json.dumps(input_ids.tolist()) + "\n")
            if die_at and len(Path(seen).read_text().splitlines()) == die_at:
                os._exit(9)
            return super().forward(input_ids=input_ids, **rest)

    names: dict[str, Any] = {}
    exec(compile(blocks()[1], "docs/reading.md", "exec"), names)
    cache = open_together(Path(folder, "cache"))
    rows = cache.windows(LENGTH, targets="aligned").shuffle(seed=0).repeat()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=1024, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=1)
    args = TrainingArguments(
        str(Path(folder, "out")),
        max_steps=STEPS,
        ignore_data_skip=True,
        save_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    names["train"](Noting(config), args, Batches(rows.loader(BATCH)))


def test_a_trainer_that_was_killed_gets_the_batches_that_come_next(tmp_path: Path) -> None:
    write_commit(tmp_path / "cache", [[10] * 20])
    seen = tmp_path / "seen"
    with pytest.raises(ProcessExitedException, match="exit code 9"):
        apart(train, str(tmp_path), str(seen), 6)  # in step 6; steps 1 to 4 are saved
    apart(train, str(tmp_path), str(seen), None)
    cache = open_together(tmp_path / "cache")
    loader = cache.windows(LENGTH).shuffle(seed=0).repeat().loader(BATCH)
    whole = [next(loader)["tokens"].tolist() for _ in range(STEPS)]
    assert [json.loads(line) for line in seen.read_text().splitlines()] == whole[:6] + whole[4:]
