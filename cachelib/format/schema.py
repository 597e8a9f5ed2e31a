"""Schema: the fields of a row, their types and how they are chunked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelib.format.canonical import digest_of

CHUNK_BYTES = 16 << 10
"""Uncompressed bytes of an inner chunk unless a field says otherwise: the read granularity."""

CHUNK_MOST = 64 << 20
"""Uncompressed bytes of an inner chunk of several values, at most: to read one, all are decoded."""

CHUNKS_PER_OBJECT = 1024
"""Inner chunks in an outer chunk, which is one stored object (16 MiB before compression)."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")
_OBJECTS = frozenset({"zarr.json", "details.json", "rejects.jsonl"})
_DTYPES = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
) | {"float16", "float32", "float64", "bool"}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """One column of a cache.

    Attributes:
        name: letters, digits, "_", "-" and "."; nested names use "/".
        dtype: a NumPy dtype name.
        shape: fixed dimensions of one value, without the ragged one.
        ragged: rows hold a varying number of values; stored with offsets.
        like: a ragged field whose offsets this one shares (a mask beside tokens).
        text: a ragged uint8 field that holds UTF-8 text.
        chunk: values in an inner chunk, 1 or at most `CHUNK_MOST` worth; 0 means `CHUNK_BYTES`
            worth.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False
    like: str | None = None
    text: bool = False
    chunk: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"field name {self.name!r}: use letters, digits, '_', '-' and '.', nested by '/', "
                "beginning with a letter or digit"
            )
        if not _OBJECTS.isdisjoint(self.name.split("/")):
            raise ValueError(
                f"field name {self.name!r}: {sorted(_OBJECTS)} are taken by the format"
            )
        if self.dtype not in _DTYPES:
            raise ValueError(f"field {self.name!r}: dtype {self.dtype!r} is not stored")
        if any(size < 1 for size in self.shape):
            raise ValueError(f"field {self.name!r}: shape {self.shape} has a size below 1")
        if self.like is not None and not self.ragged:
            raise ValueError(f"field {self.name!r}: like={self.like!r} needs a ragged field")
        if self.text and not (self.ragged and self.dtype == "uint8" and not self.shape):
            raise ValueError(f"field {self.name!r}: text is stored as ragged uint8")
        if self.chunk < 0:
            raise ValueError(f"field {self.name!r}: chunk {self.chunk} is below 0")
        size = np.dtype(self.dtype).itemsize * math.prod(self.shape)
        most = max(1, CHUNK_MOST // size)
        if self.chunk > most:
            raise ValueError(
                f"field {self.name!r}: chunk {self.chunk} is above {most}: values of {size} bytes "
                f"that fit in {CHUNK_MOST} bytes, or one"
            )
        if self.chunk == 0:
            object.__setattr__(self, "chunk", max(1, CHUNK_BYTES // size))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "ragged": self.ragged,
            "like": self.like,
            "text": self.text,
            "chunk": self.chunk,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Field:
        return cls(**{**value, "shape": tuple(value["shape"])})


@dataclass(frozen=True)
class Schema:
    """The fields of a cache, besides the provenance that every row has."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names:
            raise ValueError("a schema needs at least one field")
        if len(set(names)) < len(names):
            raise ValueError(f"field names repeat: {names}")
        for field in self.fields:
            for array in ("data", "offsets"):
                inside = [name for name in names if f"{name}/".startswith(f"{field.name}/{array}/")]
                if inside:
                    raise ValueError(
                        f"field {inside[0]!r} would lie inside field {field.name!r}, whose values "
                        f"are stored as {field.name}/{array}"
                    )
            if field.like is not None:
                other = next((f for f in self.fields if f.name == field.like), None)
                if other is None or not other.ragged or other.like is not None:
                    raise ValueError(
                        f"field {field.name!r} is like {field.like!r}, "
                        "which is no ragged field with offsets of its own"
                    )

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"no field {name!r}; there are {[field.name for field in self.fields]}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def stored(self) -> tuple[Field, ...]:
        """The fields and the provenance of every row, as a shard holds them."""
        return self.fields + PROVENANCE

    @property
    def digest(self) -> str:
        return digest_of(self.to_json())

    @property
    def meaning(self) -> str:
        """Digest of all that a reader of rows sees: everything but how fields are chunked."""
        fields = [field.to_json() for field in self.fields]
        return digest_of([{k: v for k, v in f.items() if k != "chunk"} for f in fields])

    def to_json(self) -> dict[str, Any]:
        return {"fields": [field.to_json() for field in self.fields]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Schema:
        return cls(tuple(Field.from_json(field) for field in value["fields"]))


def as_names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Names of fields as callers give them; TypeError for a single name, or what is none."""
    if isinstance(names, Iterable) and not isinstance(names, str):
        found = tuple(names)
        if all(isinstance(name, str) for name in found):
            return found
    advice = f": say [{names!r}]" if isinstance(names, str) else ""
    raise TypeError(f"{what} must be a sequence of names, got {names!r}{advice}")


def _provenance(name: str, dtype: str) -> Field:
    """A field whose name begins with "_", which no user's field can."""
    field = Field(name.lstrip("_"), dtype)
    object.__setattr__(field, "name", name)
    return field


SOURCE = _provenance("_source", "uint32")
"""Index of a row's source in its shard's list of sources."""

POSITION = _provenance("_position", "int64")
"""Where a row began: byte offset in the decompressed source, or row number."""

PROVENANCE = (SOURCE, POSITION)
