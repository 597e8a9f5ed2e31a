"""docs/format.md says what is stored: its vectors, its keys, and a reader made from it alone."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
import pipelines
from cachelib.format.canonical import seal
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from cachelib.verification import verify
from pipelines import tasks
from tests.cachelib.gaps import compact, delete
from tests.cachelib.golden import VERSION_1
from tests.cachelib.helpers import EVERY_KIND, append_commit, random_columns, write_cache
from tests.docs import reader
from tests.docs.reader import FormatError, open_cache, read_cache
from tests.golden.make import CACHE, OPTIONS, SOURCES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")


def block(kind: str) -> Any:
    """The JSON in the document's one block of a kind."""
    (found,) = re.findall(rf"^```json {kind}\n(.*?)^```$", DOCUMENT, re.M | re.S)
    return json.loads(found)


# The document's vectors


def test_bases_are_as_documented() -> None:
    assert {label: reader.base(label) for label in block("bases")} == block("bases")


def vector_rows(vector: dict[str, Any]) -> Iterator[reader.Row]:
    for row in vector["rows"]:
        yield tuple(
            np.frombuffer(value.encode(), np.uint8)
            if field["text"]
            else np.array(value, field["dtype"])
            for field, value in zip(vector["fields"], row, strict=True)
        )


@pytest.mark.parametrize("vector", block("vectors"), ids=lambda vector: vector["digest"])
def test_digests_are_as_documented(vector: dict[str, Any]) -> None:
    from cachelib.format.digest import digest_rows
    from cachelib.format.schema import Field, Schema

    fields, rows = vector["fields"], list(vector_rows(vector))
    assert reader.as_text(reader.rows_digest(fields, rows)) == vector["digest"]
    schema = Schema(tuple(Field(**{**f, "shape": tuple(f["shape"])}) for f in fields))
    columns = {
        f.name: Ragged.from_rows(column, np.dtype(f.dtype)) if f.ragged else np.stack(column)
        for f, column in zip(schema.fields, zip(*rows, strict=True), strict=True)
    }
    assert str(digest_rows(schema, columns)) == vector["digest"]


def test_the_third_vector_is_the_first_and_the_second() -> None:
    first, second, third = (reader.from_text(v["digest"]) for v in block("vectors")[:3])
    assert reader.after(first, second) == third


def test_a_sealed_object_is_as_documented() -> None:
    example = block("sealed")
    stored = f"{example['line']}\n{example['digest']}\n".encode("ascii")
    assert seal(example["value"]) == stored
    assert reader.digest(example["line"].encode("ascii")) == example["digest"]


# A reader made from the document


def assert_read_alike(path: Path, version: int | None = None) -> None:
    """The document's reader and cachelib find the same rows, provenance and digest."""
    snapshot = open_cache(path, version)
    found = read_cache(snapshot)
    cache = cachelib.open(path, version)
    assert snapshot.commit["version"] == cache.version
    assert snapshot.eras == cache.snapshot.eras.tolist()
    assert snapshot.commit["totals"]["digest"] == str(cache.snapshot.digest)
    assert reader.as_text(reader.rows_digest(snapshot.schema, found.rows)) == str(
        cache.snapshot.digest
    )
    indices = np.array(reader.indices_of(snapshot), np.int64)
    assert len(found.rows) == len(indices)
    assert_raises_for_the_others(cache, indices)
    columns = cache.take(indices)
    assert list(columns) == [field["name"] for field in snapshot.schema]
    for number, column in enumerate(columns.values()):
        for row, values in enumerate(column):
            theirs = found.rows[row][number]
            assert (theirs.dtype, theirs.shape) == (values.dtype, values.shape)
            assert theirs.tobytes() == values.tobytes()
    assert found.provenance == [(p.source, p.position) for p in cache.provenance(indices)]


def assert_raises_for_the_others(cache: cachelib.Cache, indices: np.ndarray) -> None:
    for row in np.setdiff1d(np.arange(len(cache)), indices):
        with pytest.raises(cachelib.RowDeleted):
            cache.take([row])


@pytest.mark.parametrize("path", [CACHE, VERSION_1], ids=["built", "every kind"])
@pytest.mark.parametrize("version", [None, 0])
def test_golden_caches_are_read_alike(path: Path, version: int | None) -> None:
    assert_read_alike(path, version)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of today with its status, and a failure that a pipeline left behind."""
    from pipelines.launcher import build

    folder = tmp_path_factory.mktemp("fresh")
    path = folder / "cache"
    (folder / "half.jsonl").write_text('{"id": "half", "text": "\\ud800 water", "score": 1}\n')
    build(
        **{**OPTIONS, "max_reject_rate": 1},
        inputs=[str(SOURCES), str(folder / "half.jsonl")],
        to=str(path),
        invalid_unicode="replace",
        map="tests.pipelines.functions_of_records:shout",
        holdout={"fraction": 0.2},
        seal=False,
    )
    (plan,) = (file.stem for file in (path / "_plans").iterdir())
    job = tasks.Job(Storage.at(path).url, plan, range(1), (), 0, 0.0)
    tasks.commit(job, [{"failure": "SourceError", "message": "it is", "source": "an example"}])
    return path


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build whose rows are put in order."""
    from pipelines.launcher import build

    path = tmp_path_factory.mktemp("shuffled") / "cache"
    build(**OPTIONS, inputs=[str(SOURCES)], to=str(path), order="shuffle(1)",
          show=lambda progress: None)  # fmt: skip
    return path


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of a stream, with a shard that was cut and a file that was set aside."""
    from pipelines.config import growing_config
    from pipelines.streams.finding import Finder
    from pipelines.streams.launcher import describe
    from pipelines.streams.sequencing import sequence
    from pipelines.streams.units import write_unit

    folder = tmp_path_factory.mktemp("streamed")
    lines = [f'{{"text": "water {number}"}}' for number in range(9)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "b.txt").write_bytes("wide".encode("utf-16"))
    values = {"inputs": [str(folder)], "to": str(folder / "cache")}
    config, _ = growing_config({**values, "tokenizer": OPTIONS["tokenizer"]})
    stream = describe(config)
    ((unit,), _) = Finder(stream, config.inputs, None, 0).look()
    sequence(stream, write_unit(stream, replace(unit, stop=100)))
    sequence(stream, write_unit(stream, unit))
    return folder / "cache"


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden cache with so many commits after it that there is a checkpoint."""
    path = tmp_path_factory.mktemp("long") / "cache"
    shutil.copytree(CACHE, path)
    storage, commit = Storage.at(path), cachelib.open(path).snapshot.commit
    while commit.version < 66:
        commit = append_commit(storage, commit.schema, [], identity=commit.identity)
    assert commit.base is not None
    return path


@pytest.fixture(scope="session")
def gapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of which rows were deleted, and then carried on beyond a checkpoint."""
    path = tmp_path_factory.mktemp("gapped")
    columns = random_columns(EVERY_KIND, [2, 3, 1, 0, 4], seed=1)
    storage = write_cache(path, EVERY_KIND, columns, [[3, 2]])
    delete(storage, [1, 4], columns)
    while Ledger(storage).snapshot().commit.base is None:
        append_commit(storage, EVERY_KIND, [])
    compact(storage, 0, 2, "packed", columns)
    pipelines.gc(path, keep=1, younger=0)
    cachelib.open(path, pin="run17")
    return path


def test_gaps_in_a_checkpoint_are_read_alike(gapped: Path) -> None:
    assert_read_alike(gapped)


def test_expired_versions_are_refused_alike(gapped: Path) -> None:
    assert cachelib.open(gapped, pin="run17").version == open_cache(gapped).commit["version"]
    for version in (0, 7, 64):
        with pytest.raises(FormatError, match="has expired by commit 66"):
            open_cache(gapped, version)
        with pytest.raises(cachelib.SnapshotExpired, match="commit 66"):
            cachelib.open(gapped, version)
    assert_read_alike(gapped, 65)


def test_a_fresh_build_is_read_alike(fresh: Path) -> None:
    assert_read_alike(fresh)


def test_a_shuffled_build_is_read_alike(shuffled: Path) -> None:
    assert_read_alike(shuffled)


def test_a_checkpoint_is_read_alike(long: Path) -> None:
    assert_read_alike(long)
    assert_read_alike(long, 63)


def test_deleted_and_compacted_rows_are_read_alike(tmp_path: Path) -> None:
    columns = random_columns(EVERY_KIND, [2, 3, 1, 0, 4, 2, 2, 1], seed=1)
    storage = write_cache(tmp_path, EVERY_KIND, columns, [[3, 0, 3], [2]])
    delete(storage, [1, 4, 5, 7], columns)
    assert_read_alike(tmp_path)
    compact(storage, 0, 3, "packed", columns)
    assert_read_alike(tmp_path)
    delete(storage, [0], columns)
    assert_read_alike(tmp_path)


def test_checkpoints_are_where_the_document_says(long: Path) -> None:
    bases = [reader.read_commit(long, version)[0]["base"] for version in range(67)]
    assert bases[:64] == [None] * 64
    assert bases[64]["version"] == 63
    assert bases[65] == bases[66] == bases[64]


def test_arrays_of_many_outer_chunks_are_read_alike(tmp_path: Path) -> None:
    """More than 1024 inner chunks, exactly 1024, fewer, and none."""
    lengths = [0, 1023, 0, 1, 0, 7, 0]
    columns = random_columns(EVERY_KIND, lengths, seed=1)
    write_cache(tmp_path, EVERY_KIND, columns, [[2, 0, 2], [3]])
    assert_read_alike(tmp_path)


@pytest.mark.parametrize("hint", [b"", b"0", b"2", b"4", b"9", b"nonsense", b"1" * 21, None])
def test_the_head_is_found_from_any_hint(tmp_path: Path, hint: bytes | None) -> None:
    path = Path(shutil.copytree(CACHE, tmp_path / "cache"))
    (path / "_ledger/head").unlink()
    if hint is not None:
        (path / "_ledger/head").write_bytes(hint)
    assert reader.find_head(path) == cachelib.open(path).version == 4


# What the document tells a reader to check


def test_a_changed_commit_is_refused(tmp_path: Path) -> None:
    path = Path(shutil.copytree(CACHE, tmp_path / "cache"))
    commit = path / "_ledger" / f"{1:020d}.json"
    commit.write_bytes(seal({**json.loads(commit.read_bytes().split(b"\n")[0]), "records": 99}))
    with pytest.raises(FormatError, match="does not follow"):
        open_cache(path)


@pytest.mark.parametrize("change", [{"format": 2}, {"operation": "explode"}, {"more": 1}])
def test_what_is_not_of_this_version_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = Path(shutil.copytree(CACHE, tmp_path / "cache"))
    commit = path / "_ledger" / f"{4:020d}.json"
    commit.write_bytes(seal({**json.loads(commit.read_bytes().split(b"\n")[0]), **change}))
    with pytest.raises(FormatError):
        open_cache(path)


def test_a_missing_chunk_is_refused(tmp_path: Path) -> None:
    path = Path(shutil.copytree(CACHE, tmp_path / "cache"))
    next(path.glob("shards/*/*/score/data/c/0")).unlink()
    with pytest.raises(FormatError, match="c/0 is missing"):
        read_cache(open_cache(path))


def test_an_inner_chunk_is_laid_out_as_documented(tmp_path: Path) -> None:
    """Index at the end, crc32c after the index and after each zstd frame, all little-endian."""
    import google_crc32c
    import zstandard

    (entry,) = [e for e in open_cache(VERSION_1, 0).entries if e.rows]
    folder = VERSION_1 / "shards" / entry.shard / entry.attempt / "frame/data"
    data = (folder / "c/0/0/0").read_bytes()
    assert struct.pack("<I", google_crc32c.value(data[-20:-4])) == data[-4:]
    offset, size = struct.unpack("<QQ", data[-20:-4])
    chunk = data[offset : offset + size]
    assert struct.pack("<I", google_crc32c.value(chunk[:-4])) == chunk[-4:]
    values = np.frombuffer(zstandard.decompress(chunk[:-4]), "<f2").reshape(-1, 2, 2)
    assert len(values) == 2048
    frames = cachelib.open(VERSION_1).take([0, 1, 2])["frame"]
    assert isinstance(frames, np.ndarray)
    assert values[:3].tobytes() == frames.tobytes()


# Keys


def documented(section: str) -> set[tuple[str, ...]]:
    """The keys in the table of a section, as paths; parts like <name> stand for any key."""
    (text,) = re.findall(rf"^##+ {section}\n(.*?)(?=^##|\Z)", DOCUMENT, re.M | re.S)
    return {tuple(key.split(".")) for key in re.findall(r"^\| `([^`]+)` \|", text, re.M)}


# Where a value is described in another section.
ELSEWHERE = {
    ("Commit", "schema"): ("Schema", ()),
    ("Commit", "identity"): ("Identity", ()),
    ("Plan", "schema"): ("Schema", ()),
    ("Plan", "identity"): ("Identity", ()),
    ("Plan", "reading"): ("Identity", ("reading",)),
    ("Plan", "tokenizer", "identity"): ("Identity", ("tokenizer",)),
}
SECTIONS = ("Commit", "Segment", "Coverage object", "Retirement", "Pin", "Schema", "Identity",
            "Manifest", "Details", "Reject", "Plan", "Status", "Failure", "Quarantine")  # fmt: skip
PATHS = {section: documented(section) for section in SECTIONS}
Key = tuple[str, tuple[str, ...]]


def matching(section: str, path: tuple[str, ...]) -> set[Key]:
    """The documented keys that a path in a stored object is described by."""
    return {
        (section, key)
        for key in PATHS[section]
        if len(key) == len(path)
        and all(k == p or k.startswith("<") for k, p in zip(key, path, strict=True))
    }


def keys_of(value: Any, section: str, path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every key in a value, as the section and the path that should describe it."""
    if (section, *path) in ELSEWHERE:
        yield section, path
        section, path = ELSEWHERE[(section, *path)]
    if isinstance(value, dict):
        for key, each in value.items():
            yield from keys_of(each, section, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from keys_of(each, section, (*path[:-1], f"{path[-1]}[]"))
    elif path:
        yield section, path


def stored_objects(path: Path) -> Iterator[tuple[str, Any]]:
    """Every JSON object of a cache but Zarr's and the tokenizer's, and its section."""
    for file in sorted(path.rglob("*")):
        key = file.relative_to(path).as_posix()
        if not file.is_file() or key.startswith("tokenizer/") or "/c/" in key:
            continue
        if key == "_ledger/head" or key.endswith("zarr.json"):
            continue
        if key.endswith("rejects.jsonl"):
            yield from (("Reject", json.loads(line)) for line in file.read_bytes().splitlines())
            continue
        value, _ = reader.read_object(file)
        if key.startswith("_ledger/checkpoint/"):
            kinds = {"source": "Coverage object", "attempts": "Retirement", "shard": "Segment"}
            yield next(kinds[name] for name in kinds if name in value), value
        elif key.startswith("_refs/"):
            yield "Pin", value
        elif key.startswith("_ledger/"):
            yield "Commit", value
        elif key.startswith("_plans/"):
            yield "Plan", value
        elif key.startswith("_quarantine/"):
            yield "Quarantine", value
        elif key.startswith("_status/"):
            yield "Failure" if key.endswith(".failure.json") else "Status", value
        else:
            name = {"manifest.json": "Manifest", "details.json": "Details"}
            yield name[file.name], value


def test_every_key_is_documented_and_every_documented_key_is_stored(
    fresh: Path, shuffled: Path, long: Path, gapped: Path, streamed: Path
) -> None:
    seen: set[Key] = set()
    for path in (CACHE, fresh, shuffled, long, gapped, streamed):
        for section, value in stored_objects(path):
            if path == gapped and section == "Manifest":
                continue  # written by the tests, which have tasks of their own
            for where, key in keys_of(value, section):
                found = matching(where, key)
                # An object without keys has no more to say: {} of rejects, counts and tasks.
                assert found, f"{where}: {'.'.join(key)} is not documented"
                seen |= found
    missing = {(section, key) for section, keys in PATHS.items() for key in keys} - seen
    assert not missing, f"documented, but never stored: {sorted(missing)}"


def test_long_caches_are_sound(long: Path) -> None:
    assert [str(problem) for problem in verify(Storage.at(long))] == []
