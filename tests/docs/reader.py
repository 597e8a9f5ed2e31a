"""A reader of format version 1 made from docs/format.md alone.

It stands on zarr-python, NumPy and the standard library, reads local caches whole, and favours
plainness over speed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

Row = tuple[np.ndarray, ...]
"""One value a field: an array of shape (values, *shape) if ragged, else of the field's shape."""

OPERATIONS = {"create", "append", "seal", "compact", "delete", "retire", "finish"}
COMMIT_KEYS = {
    "format", "version", "parent", "operation", "task", "schema", "identity", "row_base", "entries",
    "coverage", "records", "rejects", "counts", "totals", "seals", "finished", "base",
}  # fmt: skip
OPTIONAL_KEYS = {"removed", "groups", "retired", "collected"}
FIELD_KEYS = {"name", "dtype", "shape", "ragged", "like", "text", "chunk"}
DTYPES = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64",
}  # fmt: skip


class FormatError(Exception):
    """Something is not as docs/format.md says."""


def check(holds: bool, what: object) -> None:
    if not holds:
        raise FormatError(str(what))


# JSON objects


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_object(path: Path) -> tuple[Any, str]:
    """The value of a JSON object and its digest."""
    check(path.is_file(), f"{path} is missing")
    line, _, rest = path.read_bytes().partition(b"\n")
    check(rest == digest(line).encode() + b"\n", f"{path} is cut short or damaged")
    return json.loads(line), digest(line)


# The content digest

P = 2**61 - 1


def base(label: str) -> int:
    drawn = hashlib.blake2b(f"forebay digest 1: {label}".encode("ascii"), digest_size=16).digest()
    return 2 + int.from_bytes(drawn, "little") % (P - 2)


R, S, Q = base("word"), base("length"), base("row")


def field_base(field: dict[str, Any]) -> int:
    shape = ", ".join(map(str, field["shape"]))
    return base(f"field {field['name']} {field['dtype']} [{shape}]")


def value_hash(value: np.ndarray) -> int:
    """The hash of one field in one row."""
    data = value.astype(value.dtype.newbyteorder("<")).tobytes()
    width = min(value.dtype.itemsize, 4)
    words = [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]
    power, total = 1, value.size * S
    for word in words:
        power = power * R % P
        total += word * power
    return total % P


def rows_digest(schema: Sequence[dict[str, Any]], rows: Iterable[Row]) -> tuple[int, int]:
    """The number of rows and D."""
    bases = [field_base(field) for field in schema]
    count = whole = 0
    for row in rows:
        hashed = sum(k * value_hash(value) for k, value in zip(bases, row, strict=True))
        whole = (whole * Q + hashed) % P
        count += 1
    return count, whole


def after(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    """The digest of rows followed by other rows."""
    return first[0] + second[0], (first[1] * pow(Q, second[0], P) + second[1]) % P


def as_text(rows: tuple[int, int]) -> str:
    return f"{rows[0]}:{rows[1]:016x}"


def from_text(text: str) -> tuple[int, int]:
    rows, _, value = text.partition(":")
    return int(rows), int(value, 16)


# The ledger


@dataclass(frozen=True)
class Entry:
    """A shard as the ledger names it.

    Attributes:
        span: row indices that it takes up.
        index: of each row in its arrays, counted from its first index; None where it is deleted.
    """

    shard: str
    attempt: str
    rows: int
    elements: dict[str, int]
    digest: str
    span: int
    index: tuple[int | None, ...]


@dataclass(frozen=True)
class Snapshot:
    """What a cache holds after a commit."""

    path: Path
    commit: dict[str, Any]
    entries: list[Entry]
    eras: list[int]

    @property
    def schema(self) -> list[dict[str, Any]]:
        return self.commit["schema"]["fields"]


def commit_path(cache: Path, version: int) -> Path:
    return cache / "_ledger" / f"{version:020d}.json"


def find_head(cache: Path) -> int:
    """The newest version."""

    def exists(version: int) -> bool:
        return commit_path(cache, version).is_file()

    hint_path = cache / "_ledger" / "head"
    hint = hint_path.read_bytes() if hint_path.is_file() else b""
    low = int(hint) if re.fullmatch(rb"[0-9]{1,20}", hint) else 0
    low = low if exists(low) else 0
    check(exists(0), f"{cache}: there is no cache")
    step = 1
    while exists(low + step):
        low, step = low + step, 2 * step
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low


def read_commit(cache: Path, version: int) -> tuple[dict[str, Any], str]:
    path = commit_path(cache, version)
    commit, own = read_object(path)
    check(commit.get("format") == 1, f"{path}: format {commit.get('format')}")
    keys = commit.keys() - OPTIONAL_KEYS
    check(keys == COMMIT_KEYS, f"{path}: keys {sorted(keys ^ COMMIT_KEYS)}")
    check(commit["version"] == version, f"{path}: version {commit['version']}")
    check(commit["operation"] in OPERATIONS, f"{path}: operation {commit['operation']}")
    for field in commit["schema"]["fields"]:
        check(field.keys() == FIELD_KEYS, f"{path}: keys {sorted(field)}")
        check(field["dtype"] in DTYPES, f"{path}: dtype {field['dtype']}")
    return commit, own


def read_entries(value: dict[str, Any]) -> list[Entry]:
    columns = [value[name] for name in ("shard", "attempt", "rows", "elements", "digest")]
    columns += [value.get("span", value["rows"]), read_indices(value)]
    names = list(columns[3])
    counts = zip(*columns[3].values(), strict=True)
    columns[3] = [dict(zip(names, each, strict=True)) for each in counts]
    if not names:
        columns[3] = [{}] * len(value["shard"])
    return [Entry(*row) for row in zip(*columns, strict=True)]


def read_indices(value: dict[str, Any]) -> list[tuple[int | None, ...]]:
    if "extents" not in value:
        return [tuple(range(rows)) for rows in value["rows"]]
    indices: list[list[int | None]] = [[None] * rows for rows in value["rows"]]
    extents = value["extents"]
    columns = (extents[name] for name in ("entry", "first", "stored", "rows"))
    for entry, first, stored, rows in zip(*columns, strict=True):
        indices[entry][stored : stored + rows] = range(first, first + rows)
    return [tuple(index) for index in indices]


def replaced(entries: list[Entry], commit: dict[str, Any]) -> list[Entry]:
    """The entries with some of them replaced by those of a commit."""
    removed, added = list(commit["removed"]), read_entries(commit["entries"])
    for old, new in commit["groups"]:
        place = [entry.shard for entry in entries].index(removed[0])
        gone, instead = entries[place : place + old], added[:new]
        check([entry.shard for entry in gone] == removed[:old], f"{removed[:old]} are not there")
        check(sum(e.span for e in gone) == sum(e.span for e in instead), "row indices")
        entries = [*entries[:place], *instead, *entries[place + old :]]
        removed, added = removed[old:], added[new:]
    return entries


def open_cache(cache: Path, version: int | None = None) -> Snapshot:
    newest = find_head(cache)
    version = newest if version is None else version
    collected = read_commit(cache, newest)[0].get("collected", {"expired": []})
    for start, stop, by in collected["expired"]:
        check(not start <= version < stop, f"version {version} has expired by commit {by}")
    commit, _ = read_commit(cache, version)
    first, entries, eras = 0, [], []
    if commit["base"] is not None:
        first = commit["base"]["version"] + 1
        eras += commit["base"].get("eras", [])
        for name in commit["base"]["segments"]:
            value, own = read_object(cache / "_ledger" / "checkpoint" / f"{name}.json")
            check(own == name, f"segment {name} has digest {own}")
            entries += read_entries(value)
    parent = "" if first == 0 else None
    for number in range(first, version + 1):
        each, own = read_commit(cache, number)
        check(parent in (None, each["parent"]), f"commit {number} does not follow {number - 1}")
        parent = own
        if "removed" in each:
            entries = replaced(entries, each)
        else:
            entries += read_entries(each["entries"])
        end = each["totals"].get("span", each["totals"]["rows"])
        if each["seals"] and end > max(eras, default=0):
            eras.append(end)
    check_totals(commit["totals"], entries)
    return Snapshot(cache, commit, entries, eras)


def check_totals(totals: dict[str, Any], entries: Sequence[Entry]) -> None:
    whole = (0, 0)
    for entry in entries:
        whole = after(whole, from_text(entry.digest))
    check(totals["shards"] == len(entries), "shards")
    left = [sum(row is not None for row in entry.index) for entry in entries]
    check(totals["rows"] == sum(left), "rows")
    check(totals.get("span", totals["rows"]) == sum(entry.span for entry in entries), "span")
    if all(rows == entry.rows for rows, entry in zip(left, entries, strict=True)):
        for name, count in totals["elements"].items():
            check(count == sum(entry.elements[name] for entry in entries), f"elements of {name}")
    check(totals["digest"] == as_text(whole), "content digest")


# Shards


def read_array(folder: Path, dtype: str, shape: Sequence[int], chunk: int) -> np.ndarray:
    """A whole array, after a check of its zarr.json and of what is stored."""
    length, trailing = shape[0], list(shape[1:])
    inner = min(1024, max(1, math.ceil(length / chunk)))
    little: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
    one_byte = dtype in ("bool", "int8", "uint8")
    zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
    fill: Any = False if dtype == "bool" else 0.0 if dtype.startswith("float") else 0
    sharding = {
        "chunk_shape": [chunk, *trailing],
        "codecs": [{"name": "bytes"} if one_byte else little, zstd, {"name": "crc32c"}],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    regular = {"chunk_shape": [chunk * inner, *trailing]}
    expected = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": regular},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }
    found = json.loads((folder / "zarr.json").read_bytes())
    check(found == expected, f"{folder}/zarr.json says {found}, expected {expected}")
    check(type(found["fill_value"]) is type(fill), f"{folder}/zarr.json: fill value")
    for outer in range(math.ceil(length / (chunk * inner))):
        place = folder / "c" / "/".join([str(outer), *("0" for _ in trailing)])
        check(place.is_file(), f"{place} is missing")
        data = place.read_bytes()[-16 * inner - 4 : -4]
        index = list(struct.iter_unpack("<QQ", data))
        for number, (offset, size) in enumerate(index):
            absent = (offset, size) == (2**64 - 1, 2**64 - 1)
            beyond = (outer * inner + number) * chunk >= length
            check(absent == beyond, f"{place}: inner chunk {number}")
    array = zarr.open_array(str(folder), mode="r", zarr_format=3)
    return np.asarray(array[:])


@dataclass(frozen=True)
class Shard:
    """All that a shard holds: rows, and (source, position) of each."""

    rows: list[Row]
    provenance: list[tuple[str, int]]


def read_shard(snapshot: Snapshot, entry: Entry) -> Shard:
    folder = snapshot.path / "shards" / entry.shard / entry.attempt
    if entry.rows == 0:
        return Shard([], [])
    offsets: dict[str, np.ndarray] = {}
    for field in snapshot.schema:
        if field["ragged"] and field["like"] is None:
            name = field["name"]
            each = read_array(folder / name / "offsets", "int64", [entry.rows + 1], 2048)
            check(each[0] == 0 and each[-1] == entry.elements[name], f"{folder}: {name}")
            check(bool(np.all(each[1:] >= each[:-1])), f"{folder}: {name} has a negative length")
            offsets[name] = each
    columns: list[list[np.ndarray]] = []
    for field in snapshot.schema:
        owner = field["like"] or field["name"]
        length = entry.elements[owner] if field["ragged"] else entry.rows
        shape = [length, *field["shape"]]
        values = read_array(folder / field["name"] / "data", field["dtype"], shape, field["chunk"])
        limits = offsets[owner] if field["ragged"] else None
        columns.append(
            [np.asarray(value) for value in values]
            if limits is None
            else [values[limits[i] : limits[i + 1]] for i in range(entry.rows)]
        )
    names = read_object(folder / "details.json")[0]["sources"]
    sources = read_array(folder / "_source" / "data", "uint32", [entry.rows], 4096)
    positions = read_array(folder / "_position" / "data", "int64", [entry.rows], 2048)
    provenance = [(names[s], int(p)) for s, p in zip(sources, positions, strict=True)]
    return Shard(list(zip(*columns, strict=True)), provenance)


def read_cache(snapshot: Snapshot) -> Shard:
    """All rows of a snapshot that are left, each shard compared with its entry in the ledger."""
    rows: list[Row] = []
    provenance: list[tuple[str, int]] = []
    for entry in snapshot.entries:
        shard = read_shard(snapshot, entry)
        left = [place for place, index in enumerate(entry.index) if index is not None]
        kept = [shard.rows[place] for place in left]
        found = as_text(rows_digest(snapshot.schema, kept))
        check(found == entry.digest, f"{entry.shard} has digest {found}, not {entry.digest}")
        rows += kept
        provenance += [shard.provenance[place] for place in left]
    return Shard(rows, provenance)


def indices_of(snapshot: Snapshot) -> list[int]:
    """The index of each row that is left."""
    found, base = [], 0
    for entry in snapshot.entries:
        found += [base + index for index in entry.index if index is not None]
        base += entry.span
    return found
