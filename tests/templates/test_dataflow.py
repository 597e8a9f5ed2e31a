"""The Flex templates of Dataflow: parameters, image and entry point, all without a cloud."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import cachelib
from pipelines.config import BuildConfig, ConfigError, GrowthConfig, build_config, growing_config
from pipelines.flex import IMAGE, NAMES, OF_THE_ENGINE, fields_of, main, metadata, values_of
from pipelines.launcher import build
from tests.packaging.test_definition import pins
from tests.pipelines.conftest import corpus, tokenizer

__all__ = ["corpus", "tokenizer"]

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "templates"
MODELS = {**BuildConfig.model_fields, **GrowthConfig.model_fields}

kinds = pytest.mark.parametrize("kind", sorted(NAMES))


def stored(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TEMPLATES / kind / "metadata.json").read_text("utf-8"))
    return found


@kinds
def test_metadata_is_what_the_options_say(kind: str) -> None:
    assert stored(kind) == metadata(kind), "write it anew with: python -m pipelines.flex templates"


@kinds
def test_every_parameter_is_an_option_and_every_option_of_a_cache_a_parameter(kind: str) -> None:
    parameters = {each["name"]: each for each in stored(kind)["parameters"]}
    assert len(parameters) == len(stored(kind)["parameters"])
    for name, parameter in parameters.items():
        assert parameter["isOptional"] == (not MODELS[name].is_required())
    if kind == "batch":
        assert set(parameters) == set(BuildConfig.model_fields) - set(OF_THE_ENGINE)
    else:
        assert set(GrowthConfig.model_fields) < set(parameters)


def examples(kind: str) -> dict[str, str]:
    return {name: field.examples[0] for name, field in fields_of(kind).items()}  # type: ignore[index]


@kinds
def test_examples_match_their_regexes_and_are_taken(kind: str, tmp_path: Path) -> None:
    for parameter in stored(kind)["parameters"]:
        example = examples(kind)[parameter["name"]]
        assert parameter["helpText"].endswith(f"Example: {example}")
        for regex in parameter.get("regexes", []):
            assert re.fullmatch(regex, example)
            assert not re.fullmatch(regex, f"{example}!")
    make = build_config if kind == "batch" else growing_config
    for name, example in examples(kind).items():
        needed = {k: v for k, v in examples(kind).items() if MODELS[k].is_required()}
        arguments = [f"--{key}={value}" for key, value in {**needed, name: example}.items()]
        values, rest = values_of(kind, [*arguments, "--runner=DataflowRunner"])
        assert not rest
        assert make(values)


@kinds
def test_no_parameter_has_the_name_of_an_option_of_beam(kind: str) -> None:
    beam = PipelineOptions([]).get_all_options(add_extra_args_fn=None)
    assert not set(fields_of(kind)) & set(beam)


def test_strings_become_values_and_the_rest_is_for_beam() -> None:
    values, rest = values_of(
        "batch",
        ["--inputs=gs://b/x/*.jsonl, name=gs://b/y", "--keep=id:str,score:float32", "--finish=TRUE",
         "--spread=false", "--project=p", "--runner=DataflowRunner", "--job_name=j"],
    )  # fmt: skip
    assert values == {
        "inputs": ["gs://b/x/*.jsonl", "name=gs://b/y"],
        "keep": ["id:str", "score:float32"],
        "finish": True,
        "spread": False,
        "runner": "DataflowRunner",
    }
    assert rest == ["--project=p", "--job_name=j"]


def test_what_is_neither_true_nor_false_is_named() -> None:
    with pytest.raises(ConfigError, match="finish is 'yes', expected true or false"):
        values_of("batch", ["--finish=yes"])


def test_errors_are_words_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("batch", ["--inputs=/nowhere/x", "--to=/tmp/c", "--tokenizer=t.json"]) == 1
    assert "there is no such file" in capsys.readouterr().err
    assert main("streaming", ["--inputs=/nowhere/x"]) == 1
    assert "parameters: to" in capsys.readouterr().err


def dockerfile() -> str:
    return (TEMPLATES / "Dockerfile").read_text("utf-8")


def test_the_image_copies_what_is_there_and_has_the_beam_of_the_pins() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile(), re.M)
    names = [name for line in copied for name in line.split()]
    assert {"setup.py", "requirements.txt", "cachelib", "pipelines"} < set(names)
    for kind in NAMES:
        for name in names:
            assert (ROOT / name.replace("${TEMPLATE}", kind)).exists(), name
    (beam,) = re.findall(r"^ARG BEAM=(\S+)$", dockerfile(), re.M)
    assert beam == pins()["apache-beam"]
    assert dockerfile().count(beam) == 1
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", dockerfile(), re.M)
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert python == tool["mypy"]["python_version"]
    guide = (ROOT / "docs" / "dataflow.md").read_text("utf-8")
    assert f"launcher image of Flex templates for Python {python}" in guide
    for argument in re.findall(r"^ARG (\w+)$", dockerfile(), re.M):
        assert f"--build-arg {argument}=${argument}" in guide
    assert f"{IMAGE}=${{IMAGE}}" in dockerfile()


@kinds
def test_the_entry_point_is_three_lines(kind: str) -> None:
    lines = [line for line in (TEMPLATES / kind / "main.py").read_text().splitlines() if line]
    assert len(lines) <= 3
    assert f'main("{kind}")' in lines[-1]
    assert "FLEX_TEMPLATE_PYTHON_PY_FILE=/template/main.py" in dockerfile()


def launched(
    python: str, kind: str, parameters: dict[str, str], folder: Path, *flags: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """The entry point as Dataflow's launcher runs it: elsewhere, with little of an environment."""
    folder.mkdir()
    arguments = [*(f"--{name}={value}" for name, value in parameters.items()), *flags]
    return subprocess.run(
        [python, str(TEMPLATES / kind / "main.py"), *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_build_runs_as_the_launcher_runs_it(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    parameters = {"inputs": str(corpus), "tokenizer": tokenizer, "keep": "id:str",
                  "split_bytes": "16K", "finish": "true", "holdout": "0.2:1"}  # fmt: skip
    done = launched(
        sys.executable,
        "batch",
        {**parameters, "to": str(tmp_path / "cache"), "runner": "FnApiRunner"},
        tmp_path / "elsewhere",
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["plans"]) == 2
    build(inputs=[str(corpus)], tokenizer=tokenizer, keep=["id:str"], split_bytes="16K",
          finish=True, holdout="0.2:1", to=str(tmp_path / "local"))  # fmt: skip
    for end in ("", "-holdout"):
        made, expected = (cachelib.open(f"{tmp_path / n}{end}") for n in ("cache", "local"))
        assert made.snapshot.digest == expected.snapshot.digest
        assert made.snapshot.commit.finished


def test_a_stream_that_would_end_with_its_launcher_is_refused(
    corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    parameters = {"inputs": str(corpus), "tokenizer": tokenizer, "to": str(tmp_path / "cache")}
    done = launched(
        sys.executable,
        "streaming",
        {**parameters, "runner": "PrismRunner"},
        tmp_path / "elsewhere",
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 1
    assert "would end with this command" in done.stderr


@pytest.mark.slow
def test_a_build_runs_from_a_wheel(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    """Whatever the templates need is in what is installed; its dependencies are those at hand."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)],
        check=True,
    )
    (wheel,) = tmp_path.glob("forebay-*.whl")
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=True)
    python = str(clean / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
    (packages,) = (clean / "lib").glob("python*/site-packages")
    (there,) = {p for p in map(Path, sys.path) if (p / "apache_beam").is_dir()}
    (packages / "others.pth").write_text(f"{there}\n")
    done = launched(
        python,
        "batch",
        {"inputs": str(corpus), "tokenizer": tokenizer, "to": str(tmp_path / "cache"),
         "runner": "FnApiRunner"},
        tmp_path / "elsewhere",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(cachelib.open(tmp_path / "cache")) == 500
    where = subprocess.run(
        [python, "-c", "import pipelines; print(pipelines.__file__)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(packages))
