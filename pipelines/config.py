"""Config: what a build can be told, described once for YAML, the command line and the docs."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from cachelib.errors import ForebayError
from cachelib.schema import Field as SchemaField
from pipelines.columns import TOKENS
from pipelines.plan import SPLIT_BYTES
from pipelines.sources.records import FORMATS, KEEP_TYPES


class BuildConfig(BaseModel):
    """One build: sources, what becomes of them, and where it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: tuple[str, ...] = Field(
        min_length=1,
        description="Files, folders, globs or fsspec URLs; NAME=PATTERN names a group of sources.",
    )
    to: str = Field(description="Where the cache is: a path, file://, gs:// or s3:// URL.")
    tokenizer: str = Field(
        description="A tokenizer.json, a folder that holds one, or the id of a model on a hub."
    )
    bos: str | None = Field(
        None, description="Token put before every document; 'auto' is the tokenizer's own."
    )
    eos: str | None = Field(
        None, description="Token put after every document; 'auto' is the tokenizer's own."
    )
    text_field: str = Field("text", description="Field or column that holds the text.")
    keep: dict[str, str] = Field(
        {},
        description="Further fields kept as typed columns: NAME: TYPE, one of "
        f"{', '.join(KEEP_TYPES)}.",
    )
    format: str | None = Field(
        None, description=f"Format of all sources, one of {', '.join(FORMATS)}; else found out."
    )
    invalid_unicode: Literal["reject", "replace"] = Field(
        "reject", description="What becomes of a record with invalid Unicode."
    )
    max_reject_rate: float = Field(
        0.01, ge=0, le=1, description="Share of records that may be rejected before it fails."
    )
    changed: Literal["error", "skip"] = Field(
        "error", description="What to do about sources that changed since they were taken in."
    )
    split_bytes: int = Field(
        SPLIT_BYTES, ge=1 << 10, description="Bytes of text in a split and a part, as in 64MB."
    )
    engine: Literal["auto", "gigatoken", "hf"] = Field(
        "auto", description="Tokenizer engine; auto is gigatoken where it is exact."
    )
    finish: bool = Field(False, description="Mark the cache complete afterwards.")
    reopen: bool = Field(False, description="Allow adding to a cache that was marked complete.")
    runner: str = Field(
        "embedded", description="embedded, dask, bundles, or the name of a Beam runner."
    )
    workers: int = Field(
        0, ge=0, description="Workers of the embedded runner; 0 is one for two cores, at most 8."
    )
    processes: bool = Field(
        False, description="Run the embedded runner's workers as processes, not threads."
    )

    @field_validator("inputs", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return tuple(f"{name}={pattern}" for name, pattern in value.items())
        if isinstance(value, str | os.PathLike):
            return (os.fspath(value),)
        return tuple(map(_as_text, value)) if isinstance(value, list | tuple) else value

    @field_validator("to", "tokenizer", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        return _as_text(value)

    @field_validator("split_bytes", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        return parse_size(value) if isinstance(value, str) else value

    @field_validator("keep", mode="before")
    @classmethod
    def _names_alone(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        return dict.fromkeys(names, "str") if isinstance(names, list) else value

    @field_validator("keep")
    @classmethod
    def _keep_types(cls, value: dict[str, str]) -> dict[str, str]:
        for name, kind in value.items():
            if name == TOKENS:
                raise ValueError(f"{name}: this is the name of the token ids")
            SchemaField(name, "uint8")
            if kind not in KEEP_TYPES:
                raise ValueError(f"{name}: {kind!r} is none of {', '.join(KEEP_TYPES)}")
        return value

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str | None) -> str | None:
        if value is not None and value not in FORMATS:
            raise ValueError(f"{value!r} is none of {', '.join(FORMATS)}")
        return value

    @model_validator(mode="after")
    def _keep_no_text(self) -> BuildConfig:
        if self.text_field in self.keep:
            raise ValueError(f"keep names {self.text_field!r}, which is the text field")
        return self


def _as_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


class ConfigError(ForebayError, ValueError):
    """A configuration that cannot be meant."""


def parse_size(text: str) -> int:
    """Bytes given as a number with an optional K, M, G or KB, MiB ... (all powers of 1,024).

    Raises:
        ValueError: it is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no size; write it like 64MB")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def build_config(values: Mapping[str, Any], where: str = "build") -> BuildConfig:
    """A checked configuration.

    Args:
        where: what the values come from, for messages.

    Raises:
        ConfigError: naming each key that is unknown, missing or has a value that cannot be.
    """
    try:
        return BuildConfig(**values)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(f"{where}: {_sentence(problem)}" for problem in error.errors())
        ) from None


def _sentence(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if not name:
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, BuildConfig.model_fields, 1)
        return f"unknown key {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
    if problem["type"] == "missing":
        return f"{name} is missing: {BuildConfig.model_fields[name].description}"
    return f"{name} is {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a YAML configuration.

    Raises:
        ConfigError: it cannot be read or is no mapping.
    """
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(values).__name__}")
    return {str(key): value for key, value in values.items()}
