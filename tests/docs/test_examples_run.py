"""Each script of examples/ runs as its docstring says, on a small cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pipelines
from tests.pipelines.conftest import sentences, write_jsonl

ROOT = Path(__file__).parents[2]
RUNS = {
    "pretraining.py": (1, ["step 20: (8, 64) tokens", "waited"]),
    "packed.py": (1, ["% filled", "step 5: "]),
    "mixture.py": (3, ["step 15: {'books': 0, 'code': 288, 'web': 672}", "row 0 of step 0"]),
    "resume.py": (1, [f"resumed on {world} ranks: the same" for world in (1, 2, 3)]),
}


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("examples")
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(alphabet))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("web", "code", "books"):
        write_jsonl(folder / f"{name}.jsonl", sentences(300, len(name)))
        pipelines.build(
            inputs=[str(folder / f"{name}.jsonl")],
            tokenizer=str(folder / "tokenizer.json"),
            to=str(folder / name),
        )
    return [str(folder / name) for name in ("web", "code", "books")]


def test_all_examples_are_run() -> None:
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")}
    # `make quickstart`, which takes a minute, and tests/jax, where grain is.
    assert scripts == set(RUNS) | {"quickstart.py", "training_by_grain.py"}


@pytest.mark.parametrize("script", RUNS)
def test_runs(script: str, caches: list[str]) -> None:
    count, expected = RUNS[script]
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *caches[:count], "--length", "64"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    for line in expected:
        assert line in result.stdout
