"""Config: what a build can be told, described once for YAML, the command line and the docs."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cachelib.errors import ForebayError
from cachelib.format.schema import Field as SchemaField
from cachelib.format.storage import canonical_url, file_names_are_utf8, not_utf8
from pipelines.columns import TOKENS, text_schema
from pipelines.order.orders import parse_order
from pipelines.plan import SPLIT_BYTES
from pipelines.sources.records import FORMATS, KEEP_TYPES

OWN_RUNNERS = ("embedded", "dask", "bundles")

BEAM_RUNNERS = (
    "DataflowRunner", "BundleBasedDirectRunner", "DirectRunner", "SwitchingDirectRunner",
    "InteractiveRunner", "FlinkRunner", "FnApiRunner", "KafkaStreamsRunner", "PortableRunner",
    "PrismRunner", "SparkRunner", "TestDirectRunner", "TestDataflowRunner",
)  # fmt: skip
"""What Beam knows by name, in any case and also without "Runner"; told here without importing it,
which takes seconds."""


def _column_name(name: str) -> str:
    if name == TOKENS:
        raise ValueError("this is the name of the token ids")
    return SchemaField(name, "uint8").name


def _column_type(kind: str) -> str:
    if kind not in KEEP_TYPES:
        raise ValueError(f"expected one of {', '.join(KEEP_TYPES)}")
    return kind


def _a_number(value: Any) -> Any:
    """A value that is no number but would be taken for one is refused."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    try:
        finite = math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return value  # pydantic says what is wrong with it
    if not finite:
        raise ValueError("expected a finite number")
    return value


_Count = Annotated[int, BeforeValidator(_a_number)]
_Number = Annotated[float, BeforeValidator(_a_number)]


class HoldoutConfig(BaseModel):
    """What is held out of a build."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fraction: _Number = Field(gt=0, lt=1)
    seed: _Count = Field(0, ge=0, lt=1 << 64)


class BuildConfig(BaseModel):
    """One build: sources, what becomes of them, and where it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: tuple[str, ...] = Field(
        min_length=1,
        description="Files, folders, globs or fsspec URLs; NAME=PATTERN names a group of sources.",
        examples=["gs://bucket/raw/*.jsonl"],
    )
    to: str = Field(
        description="Where the cache is: a path, file://, gs:// or s3:// URL.",
        examples=["gs://bucket/cache"],
    )
    tokenizer: str = Field(
        description="A tokenizer.json or a folder that holds one, by path or fsspec URL, or the id "
        "of a model on a hub.",
        examples=["gs://bucket/tokenizer.json"],
    )
    bos: str | None = Field(
        None,
        description="Token put before every document; 'auto' is the tokenizer's own.",
        examples=["auto"],
    )
    eos: str | None = Field(
        None,
        description="Token put after every document; 'auto' is the tokenizer's own.",
        examples=["auto"],
    )
    text_field: str = Field(
        "text", description="Field or column that holds the text.", examples=["content"]
    )
    keep: dict[
        Annotated[str, AfterValidator(_column_name)], Annotated[str, AfterValidator(_column_type)]
    ] = Field(
        {},
        description="Further fields kept as typed columns: NAME: TYPE, one of "
        f"{', '.join(KEEP_TYPES)}.",
        examples=["id:str"],
    )
    format: str | None = Field(
        None,
        description=f"Format of all sources, one of {', '.join(FORMATS)}; else found out.",
        examples=["jsonl"],
    )
    invalid_unicode: Literal["reject", "replace"] = Field(
        "reject", description="What becomes of a record with invalid Unicode.", examples=["replace"]
    )
    map: str | None = Field(
        None,
        description="Function that changes each record, MODULE:FUNCTION: it takes a dict of the "
        "text and the kept fields, and gives the text, a dict of what changes, or None to leave "
        "the record out.",
        examples=["cleaning:normalize"],
    )
    map_version: str | None = Field(
        None,
        description="Tells the map function from earlier ones; else its source does.",
        examples=["2"],
    )
    order: str = Field(
        "source",
        description="Order of the rows of this build: source, shuffle(SEED) or by(FIELD), a kept "
        "field or tokens, the number of tokens.",
        examples=["shuffle(7)"],
    )
    holdout: HoldoutConfig | None = Field(
        None,
        description="Share of records that go to a cache of their own beside this one, "
        "named TO-holdout; or fraction and seed, as in 0.01:7.",
        examples=["0.01:7"],
    )
    max_reject_rate: _Number = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of records that may be rejected before it fails.",
        examples=["0.05"],
    )
    changed: Literal["error", "skip"] = Field(
        "error",
        description="What to do about sources that changed since they were taken in.",
        examples=["skip"],
    )
    split_bytes: _Count = Field(
        SPLIT_BYTES,
        ge=1 << 10,
        le=1 << 40,
        description="Bytes of text in a split and a part, as in 64MB.",
        examples=["256MB"],
    )
    spread: bool = Field(
        False,
        strict=True,
        description="Take splits in the order of a hash, so that an early era is a fair sample.",
        examples=["true"],
    )
    seal: bool = Field(
        True,
        strict=True,
        description="End an era with the last wave; else with a later build, by size or finish.",
        examples=["false"],
    )
    engine: Literal["auto", "gigatoken", "hf"] = Field(
        "auto",
        description="Tokenizer engine; auto is gigatoken where it is exact.",
        examples=["hf"],
    )
    finish: bool = Field(
        False, strict=True, description="Mark the cache complete afterwards.", examples=["true"]
    )
    reopen: bool = Field(
        False,
        strict=True,
        description="Allow adding to a cache that was marked complete.",
        examples=["true"],
    )
    runner: str = Field(
        "embedded", description="embedded, dask, bundles, or the name of a Beam runner."
    )
    workers: _Count = Field(
        0,
        ge=0,
        le=1024,
        description="Workers of the embedded runner; 0 is one for two cores, at most 8.",
    )
    processes: bool = Field(
        False,
        strict=True,
        description="Run the embedded runner's workers as processes, not threads.",
    )

    @field_validator("inputs", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for name, pattern in value.items():
                if not isinstance(pattern, str | os.PathLike):
                    raise ValueError(f"expected one pattern for {name!r}")
            return tuple(f"{name}={os.fspath(pattern)}" for name, pattern in value.items())
        if isinstance(value, str | os.PathLike):
            return (os.fspath(value),)
        return tuple(map(_as_text, value)) if isinstance(value, list | tuple) else value

    @field_validator("to", "tokenizer", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        return _as_text(value)

    @field_validator("inputs", "to", "tokenizer", "bos", "eos", "text_field")
    @classmethod
    def _something(cls, value: Any, info: ValidationInfo) -> Any:
        # Folders above the sources and the tokenizer may have any name that this process can use.
        anything = info.field_name in ("inputs", "tokenizer") and file_names_are_utf8()
        for text in value if isinstance(value, tuple) else (value,):
            if text is None:
                continue
            if text == "":
                what = cls.model_fields[info.field_name or ""].description
                raise ValueError(f"it is empty. Expected: {what}")
            if "\0" in text:
                raise ValueError("it holds a NUL")
            fault = not_utf8(text)
            if fault is not None and not anything:
                raise ValueError(f"it {fault}")
        return value

    @field_validator("to")
    @classmethod
    def _a_place(cls, value: str) -> str:
        canonical_url(value)
        return value

    @field_validator("split_bytes", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        return parse_size(value) if isinstance(value, str) else value

    @field_validator("holdout", mode="before")
    @classmethod
    def _share(cls, value: Any) -> Any:
        if isinstance(value, str):
            fraction, _, seed = value.partition(":")
            return {"fraction": fraction, **({"seed": seed} if seed else {})}
        return {"fraction": value} if isinstance(value, int | float) else value

    @field_validator("keep", mode="before")
    @classmethod
    def _one_by_one(cls, value: Any) -> Any:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            return value
        fields: dict[str, str] = {}
        for item in items:
            if not isinstance(item, str):
                raise ValueError("expected NAME or NAME:TYPE for each")
            before, _, after = item.rpartition(":")
            name, kind = (before, after) if before else (item, "str")
            if name in fields:
                raise ValueError(f"{name!r} is named twice")
            fields[name] = kind
        return fields

    @field_validator("keep")
    @classmethod
    def _names_apart(cls, value: dict[str, str]) -> dict[str, str]:
        text_schema("uint16", tuple(value.items()))
        return value

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str | None) -> str | None:
        if value is not None and value not in FORMATS:
            raise ValueError(f"expected one of {', '.join(FORMATS)}")
        return value

    @field_validator("order")
    @classmethod
    def _known_order(cls, value: str) -> str:
        return str(parse_order(value))

    @field_validator("runner")
    @classmethod
    def _known_runner(cls, value: str) -> str:
        names = {name.lower() for name in BEAM_RUNNERS}
        of_beam = value.lower() in names or f"{value.lower()}runner" in names
        a_class = re.fullmatch(r"\w+(\.\w+)+", value)
        if value in OWN_RUNNERS or of_beam or a_class:
            return value
        raise ValueError(
            f"expected {', '.join(OWN_RUNNERS)}, a runner that Beam knows "
            f"({', '.join(BEAM_RUNNERS)}) or the full name of a class (package.module.Class)"
        )

    @model_validator(mode="after")
    def _keep_no_text(self) -> BuildConfig:
        if self.text_field in self.keep:
            raise ValueError(
                f"{called('keep')} names {self.text_field!r}, which is the text field: "
                f"{called('text_field')}"
            )
        return self

    @model_validator(mode="after")
    def _spread_what_is_not_sorted(self) -> BuildConfig:
        if self.spread and parse_order(self.order).sorts:
            raise ValueError(
                f"{called('spread')} and {called('order')} are both given, but rows in an order of "
                "their own come in one era: leave spread out"
            )
        return self

    @model_validator(mode="after")
    def _order_by_what_is_kept(self) -> BuildConfig:
        try:
            parse_order(self.order).check(text_schema("uint16", tuple(self.keep.items())))
        except ValueError as error:
            raise ValueError(f"{called('order')} is {self.order!r}: {error}") from None
        return self


class GrowthConfig(BaseModel):
    """How a cache grows that takes in files as they come: keys of watch and stream besides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: _Number = Field(
        1.0,
        gt=0,
        le=86_400,
        description="Seconds from one look for new files to the next.",
        examples=["10"],
    )
    settle: _Number = Field(
        2.0,
        ge=0,
        le=86_400,
        description="Seconds for which a file must not have changed before it is taken in.",
        examples=["30"],
    )
    seal_after: _Number = Field(
        60.0,
        gt=0,
        description="Seconds after which new rows are sealed as an era, which is what readers "
        "that follow the cache are served.",
        examples=["300"],
    )
    seal_bytes: _Count = Field(
        64 << 20,
        ge=1,
        description="Bytes of new token ids at which an era is sealed before that.",
        examples=["256MB"],
    )

    @field_validator("seal_bytes", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        return parse_size(value) if isinstance(value, str) else value


NOT_GROWING = ("changed", "finish", "max_reject_rate", "order", "seal")
"""Keys of a build that make no sense where a cache grows: nothing ends it, nothing stops it."""


def called(key: str) -> str:
    """A key as messages name it, for users of files and Python and for those of the command."""
    return key if key == "inputs" else f"{key} (--{key.replace('_', '-')})"


def setting(key: str, value: Any) -> str:
    """A key with a value as messages advise it, for files and Python and for the command."""
    option = f"--{key.replace('_', '-')}"
    return f"{key}: true ({option})" if value is True else f"{key}: {value} ({option} {value})"


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
    return _checked(BuildConfig, values, where)


def growing_config(
    values: Mapping[str, Any], where: str = "watch"
) -> tuple[BuildConfig, GrowthConfig]:
    """The checked configuration of a cache that grows: keys of a build and those of growth.

    Files that changed are left out, and any share of records may be rejected: both are counted.

    Raises:
        ConfigError: as of `build_config`, or a key is none of a cache that grows.
    """
    unfit = [called(key) for key in NOT_GROWING if key in values]
    if unfit:
        raise ConfigError(f"{where}: {', '.join(unfit)} cannot be set where a cache grows")
    growth = {key: value for key, value in values.items() if key in GrowthConfig.model_fields}
    rest = {key: value for key, value in values.items() if key not in growth}
    fixed = {"changed": "skip", "max_reject_rate": 1, "seal": False}
    config = _checked(BuildConfig, {**rest, **fixed}, where)
    return config, _checked(GrowthConfig, growth, where)


_Model = TypeVar("_Model", bound=BaseModel)


def _checked(model: type[_Model], values: Mapping[str, Any], where: str) -> _Model:
    try:
        return model(**values)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(f"{where}: {_sentence(problem)}" for problem in error.errors())
        ) from None


def _sentence(problem: Any) -> str:
    key, *inside = problem["loc"] or ("",)
    said = problem["msg"].removeprefix("Value error, ")
    if not key:
        return str(said)
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, BuildConfig.model_fields, 1)
        return f"unknown key {key!r}" + (f"; did you mean {close[0]!r}?" if close else "")
    if problem["type"] == "missing":
        return f"{called(key)} is missing: {BuildConfig.model_fields[key].description}"
    match inside:
        case [name, "[key]"]:
            return f"{called(key)} names {name!r}: {said}"
        case [int(number)]:
            which = f": number {number + 1}"
        case [name]:
            which = f": {name!r}"
        case _:
            which = ""
    return f"{called(key)}{which} is {problem['input']!r}: {said}"


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a YAML configuration.

    Raises:
        ConfigError: it cannot be read, is no mapping, or has a key twice.
    """
    try:
        text = path.read_text("utf-8")
        repeated = [f"{path}:{line}: key {key!r} is there a second time"
                    for key, line in _repeated(yaml.compose(text, yaml.SafeLoader))]  # fmt: skip
        if repeated:
            raise ConfigError("\n".join(repeated))
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if values is None:
        raise ConfigError(f"{path}: is empty, expected keys and values, such as to and tokenizer")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(values).__name__}")
    return {str(key): value for key, value in values.items()}


def _repeated(root: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Keys that a mapping of a YAML tree has already, with their lines, from 1."""
    nodes, visited = [root], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in visited:  # an alias
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            nodes += [value for _, value in node.value]
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        yield key.value, key.start_mark.line + 1
                    seen.add(key.value)
