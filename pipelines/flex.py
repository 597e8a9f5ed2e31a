"""Flex: builds and streams as Flex templates of Dataflow: parameters are keys of a configuration.

python -m pipelines.flex templates    # writes templates/*/metadata.json anew
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from cachelib.errors import ForebayError
from pipelines.config import (
    NOT_GROWING,
    BuildConfig,
    ConfigError,
    GrowthConfig,
    build_config,
    growing_config,
)

IMAGE = "FOREBAY_IMAGE"
"""The environment variable by which an image tells its own name: workers are to run it as well."""

OF_THE_ENGINE = ("runner", "workers", "processes")
"""Keys of a configuration that are no parameters: Dataflow has options of its own for them."""

_NUMBER = r"\d+(\.\d+)?"
_SIZE = r"\d+(\.\d+)?\s*([KMGkmg]([iI]?[bB])?)?"
_SIZES = ("split_bytes", "seal_bytes")
_LISTS = ("inputs", "keep")

NAMES = {
    "batch": ("Forebay build", "Brings a training-data cache up to date with its sources."),
    "streaming": ("Forebay stream", "Takes files into a training-data cache as they come."),
}


def fields_of(kind: str) -> dict[str, FieldInfo]:
    """The keys of a configuration that are parameters of a template, "batch" or "streaming"."""
    fields = {k: v for k, v in BuildConfig.model_fields.items() if k not in OF_THE_ENGINE}
    if kind == "batch":
        return fields
    kept = {k: v for k, v in fields.items() if k not in (*NOT_GROWING, "holdout")}
    return {**kept, **GrowthConfig.model_fields}


def metadata(kind: str) -> dict[str, Any]:
    """What Dataflow shows and checks of a template, as its metadata.json has it."""
    name, description = NAMES[kind]
    return {
        "name": name,
        "description": description,
        "streaming": kind == "streaming",
        "parameters": [_parameter(*item) for item in fields_of(kind).items()],
    }


def _parameter(name: str, field: FieldInfo) -> dict[str, Any]:
    told = (field.description or "").rstrip(".")
    several = ". Several are separated by commas" if name in _LISTS else ""
    (example,) = field.examples or [""]
    parameter = {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "helpText": f"{told}{several}. Example: {example}",
        "isOptional": not field.is_required(),
        "paramType": "TEXT",
    }
    regex = _regex(name, field.annotation)
    return parameter if regex is None else {**parameter, "regexes": [f"^({regex})$"]}


def _regex(name: str, annotation: Any) -> str | None:
    if name in _SIZES:
        return _SIZE
    if annotation is bool:
        return "true|false"
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return _NUMBER if annotation in (int, float) else None


def values_of(kind: str, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of parameters, all of which are strings, and what is left for Beam.

    Raises:
        ConfigError: a parameter that is true or false is something else.
    """
    parser = argparse.ArgumentParser(f"forebay {kind} template", allow_abbrev=False)
    parser.add_argument("--runner", default="DataflowRunner")
    fields = fields_of(kind)
    for name in fields:
        parser.add_argument(f"--{name}")
    known, rest = parser.parse_known_args(arguments)
    given = {name: value for name, value in vars(known).items() if value is not None}
    return {name: _value(name, value, fields) for name, value in given.items()}, rest


def _value(name: str, value: str, fields: Mapping[str, FieldInfo]) -> Any:
    if name in _LISTS:
        return [part.strip() for part in value.split(",") if part.strip()]
    if name in fields and fields[name].annotation is bool:
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{name} is {value!r}, expected true or false")
        return value.lower() == "true"
    return value


def main(kind: str, arguments: Sequence[str] | None = None) -> int:
    """Submit the pipeline of a template; returns the exit status, without waiting for the job."""
    try:
        values, rest = values_of(kind, sys.argv[1:] if arguments is None else arguments)
        image = os.environ.get(IMAGE)
        if image and not any("sdk_container_image" in flag for flag in rest):
            rest.append(f"--sdk_container_image={image}")
        if kind == "batch":
            from pipelines.submission import submit

            submitted = submit(build_config(values, "parameters"), beam_arguments=rest)
            for note in submitted.notes:
                print(f"note: {note}")
            print(json.dumps({"plans": submitted.plans}))
        else:
            from pipelines.streams.launcher import begin

            begin(*growing_config(values, "parameters"), beam_arguments=rest)
    except ForebayError as error:
        print(f"forebay: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def write(folder: Path) -> None:
    """Write the metadata of all templates below a folder."""
    for kind in NAMES:
        text = json.dumps(metadata(kind), indent=2, ensure_ascii=False)
        (folder / kind / "metadata.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
