"""What a source file is, how its records become text, and what reading it gives."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.choice import chosen

FORMATS = ("jsonl", "json", "text", "text-lines", "parquet", "arrow", "csv", "tsv")
COMPRESSIONS = ("gz", "zst", "bz2", "xz")
KEEP_TYPES: Mapping[str, pa.DataType] = {
    "str": pa.large_string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}
UNICODE_POLICIES = ("reject", "replace")
EXCERPT = 200
"""The greatest length of a reject's excerpt, in characters."""


@dataclass(frozen=True)
class Source:
    """One file, as the planner sees it.

    Attributes:
        root: index into the roots of the request.
        name: unique in the request: ``[NAME/]path``, with ``/`` between parts.
        path: path relative to the root.
        size: bytes as stored.
        version: content version; equal for a copied or moved file.
        format: one of `FORMATS`.
        compression: one of `COMPRESSIONS`, or None.
        extent: number of positions: bytes (uncompressed jsonl and text-lines), rows (parquet,
            arrow), 1 (text); None where only reading tells.
        splits_at: positions at which row groups or record batches begin, without 0; files of
            formats that have none may be cut at any byte, where ``extent`` counts bytes.
    """

    root: int
    name: str
    path: str
    size: int
    version: str
    format: str
    compression: str | None
    extent: int | None
    splits_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")
        if self.compression is not None and self.compression not in COMPRESSIONS:
            raise ValueError(
                f"compression must be None or one of {', '.join(COMPRESSIONS)}, "
                f"got {self.compression!r}"
            )
        if self.size < 0:
            raise ValueError(f"size must not be negative, got {self.size}")

    def to_json(self) -> str:
        """One line of JSON, the same for equal sources."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Source:
        """The source that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(line)
        return cls(**{**fields, "splits_at": tuple(fields["splits_at"])})


@dataclass(frozen=True)
class Holdout:
    """Which records are held out, a function of their source's name and their position.

    Attributes:
        fraction: the share that is held out, above 0 and below 1.
        seed: from 0 to 2**64 - 1.
        held: whether these records are read, or the rest.
    """

    fraction: float
    seed: int = 0
    held: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction must be above 0 and below 1, got {self.fraction}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1, got {self.seed}")

    @property
    def share(self) -> float:
        """The share of records that are read."""
        return self.fraction if self.held else 1 - self.fraction

    def reads(self, source_name: str, positions: np.ndarray) -> np.ndarray:
        """Which records, at int64 (n,) positions of a source, are read: bool (n,)."""
        held = chosen("forebay.holdout", self.seed, source_name, positions, self.fraction)
        return held == self.held

    def of(self, source_name: str, records: Records) -> Records:
        """The records and rejects among those of a run that are read."""
        reads = self.reads(source_name, records.positions)
        rejected = np.array([reject.position for reject in records.rejects], np.int64)
        rows = pa.array(reads)
        return replace(
            records,
            text=records.text.filter(rows),
            keep={name: column.filter(rows) for name, column in records.keep.items()},
            positions=records.positions[reads],
            rejects=tuple(itertools.compress(records.rejects, self.reads(source_name, rejected))),
        )


@dataclass(frozen=True)
class Mapped:
    """A function that changes records.

    Attributes:
        function: where it is, as MODULE:FUNCTION.
        by: what tells it from earlier ones of that name: "source" or "version".
        told: the digest of its source, or its version.
    """

    function: str
    by: str
    told: str


@dataclass(frozen=True)
class Reading:
    """How records become text; part of a cache's identity.

    Attributes:
        text_field: the field (jsonl, json) or column (parquet, arrow, csv, tsv) with the text.
        keep: (field, type) pairs to keep as typed columns; types are those of `KEEP_TYPES`.
        invalid_unicode: "reject", or "replace" by U+FFFD, for bytes that are not UTF-8 and lone
            surrogate escapes in the text and in kept strings.
        holdout: which records are read; None for all.
        map: the function that changes what is read; None for none.
    """

    text_field: str = "text"
    keep: tuple[tuple[str, str], ...] = ()
    invalid_unicode: str = "reject"
    holdout: Holdout | None = None
    map: Mapped | None = None

    def __post_init__(self) -> None:
        if not self.text_field:
            raise ValueError("text_field must not be empty")
        if self.invalid_unicode not in UNICODE_POLICIES:
            raise ValueError(
                f"invalid_unicode must be 'reject' or 'replace', got {self.invalid_unicode!r}"
            )
        names = [name for name, _ in self.keep]
        for name, kind in self.keep:
            if kind not in KEEP_TYPES:
                raise ValueError(
                    f"keep {name!r}: type must be one of {', '.join(KEEP_TYPES)}, got {kind!r}"
                )
            if name == self.text_field:
                raise ValueError(f"keep {name!r}: this is the text field")
            if names.count(name) > 1:
                raise ValueError(f"keep {name!r}: named more than once")

    def to_json(self) -> dict[str, Any]:
        """A JSON object, the same as ever where nothing is held out or mapped."""
        value = asdict(self)
        for name in ("holdout", "map"):
            if value[name] is None:
                del value[name]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reading:
        """The inverse of ``to_json``."""
        holdout, mapped = value.get("holdout"), value.get("map")
        return cls(
            **{
                **value,
                "keep": tuple(map(tuple, value["keep"])),
                "holdout": None if holdout is None else Holdout(**holdout),
                "map": None if mapped is None else Mapped(**mapped),
            }
        )


@dataclass(frozen=True)
class Reject:
    """One record that could not be used.

    Attributes:
        position: where the record begins: byte offset in the decompressed source, or row number.
        reason: short, stable, of few kinds: rejects are counted by it.
        detail: what was found in this one.
        excerpt: the beginning of the record, at most `EXCERPT` characters.
    """

    position: int
    reason: str
    detail: str
    excerpt: str


@dataclass(frozen=True, eq=False)
class Records:
    """A run of records of one source, in source order.

    Attributes:
        text: pa.LargeStringArray of shape (n,): valid UTF-8, no nulls.
        keep: arrays of shape (n,) of the declared types, no nulls.
        positions: int64 of shape (n,), strictly increasing: byte offset in the decompressed
            source, or row number.
        rejects: the records of this run that could not be used.
        replaced: number of records in which invalid Unicode was replaced, those of the other side
            of a hold-out among them.
        start, stop: the positions covered; successive runs are contiguous.
        omitted: int64 of shape (m,), strictly increasing: where the records begin that a function
            left out.
    """

    text: pa.LargeStringArray
    keep: dict[str, pa.Array]
    positions: np.ndarray
    rejects: tuple[Reject, ...]
    replaced: int
    start: int
    stop: int
    omitted: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def empty(cls, reading: Reading, start: int, stop: int) -> Records:
        """No records in the positions [start, stop)."""
        return cls(
            text=pa.array([], pa.large_string()),
            keep={name: pa.array([], KEEP_TYPES[kind]) for name, kind in reading.keep},
            positions=np.empty(0, np.int64),
            rejects=(),
            replaced=0,
            start=start,
            stop=stop,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Records]) -> Records:
        """One run of contiguous runs; at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            text=pa.concat_arrays([part.text for part in parts]),
            keep={
                name: pa.concat_arrays([part.keep[name] for part in parts])
                for name in parts[0].keep
            },
            positions=np.concatenate([part.positions for part in parts]),
            rejects=tuple(reject for part in parts for reject in part.rejects),
            replaced=sum(part.replaced for part in parts),
            start=parts[0].start,
            stop=parts[-1].stop,
            omitted=np.concatenate([part.omitted for part in parts]),
        )


def excerpt(record: bytes | str) -> str:
    """The beginning of a record, to be shown: at most `EXCERPT` characters of valid Unicode."""
    if isinstance(record, bytes):
        record = record[: 4 * EXCERPT].decode("utf-8", "replace")
    head = record[:EXCERPT] if len(record) <= EXCERPT else record[: EXCERPT - 1] + "…"
    return head.encode("utf-8", "replace").decode("utf-8")
