"""A function of the user's changes records while they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib.commands.verify import verify
from cachelib.errors import BuildFailed, IncompatibleCache, SourceError
from cachelib.format.shard import read_rejects
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from pipelines.launcher import build
from pipelines.sources.mapping import name_of
from tests.pipelines import functions_of_records
from tests.pipelines.conftest import sentences, write_jsonl

HERE = "tests.pipelines.functions_of_records"


@pytest.fixture
def options(tokenizer: str, tmp_path: Path) -> dict[str, Any]:
    write_jsonl(tmp_path / "in.jsonl", sentences(200, 0))
    return {
        "inputs": [str(tmp_path / "in.jsonl")],
        "to": str(tmp_path / "cache"),
        "tokenizer": tokenizer,
        "keep": {"id": "str", "score": "float32"},
        "split_bytes": 1024,
    }


def test_records_are_what_the_function_gives(
    options: dict[str, Any], encode: Callable[[str], list[int]]
) -> None:
    summary = build(**options, map=f"{HERE}:choose")
    cache = cachelib.open(options["to"])
    columns = cache.take(np.arange(len(cache)))
    kept = [i for i in range(200) if i % 3]
    texts = sentences(200, 0)
    tokens = columns["tokens"]
    assert isinstance(tokens, Ragged)
    assert [row.tolist() for row in tokens] == [encode(f"r{i} {texts[i]}") for i in kept]
    assert np.asarray(columns["score"]).tolist() == [float(i) for i in kept]
    assert [bytes(row).decode() for row in columns["id"]] == [f"r{i}" for i in kept]
    assert summary.counts["omitted"] == 200 - len(kept)
    assert summary.rejects == {}
    assert not list(verify(Storage.at(options["to"])))
    assert build(**options, map=f"{HERE}:choose").records == 0


def test_the_rows_do_not_depend_on_the_size_of_splits(options: dict[str, Any]) -> None:
    digests, omitted = set(), set()
    for size in (1024, 4096, 1 << 20):
        to = f"{options['to']}-{size}"
        summary = build(**{**options, "split_bytes": size, "to": to}, map=f"{HERE}:choose")
        digests.add(str(cachelib.open(to).snapshot.digest))
        omitted.add(summary.counts["omitted"])
    assert len(digests) == 1
    assert omitted == {67}


def test_what_cannot_be_used_is_rejected_with_its_reason(options: dict[str, Any]) -> None:
    summary = build(**options, map=f"{HERE}:stumble", max_reject_rate=1)
    assert summary.new_rows == 28
    assert summary.rejects == {
        "invalid Unicode": 28,
        "kept field 'score' is a string": 28,
        "map failed": 29,
        "map gave fields that are not kept": 29,
        "map gave no text, dict or None": 29,
        "text is null": 29,
    }
    cache = cachelib.open(options["to"])
    entries = cache.snapshot.entries
    found = [
        reject
        for shard, attempt in zip(entries.shard, entries.attempt, strict=True)
        for reject in read_rejects(cache.storage, shard, attempt)
    ]
    assert "ZeroDivisionError: division by zero" in {reject["detail"] for reject in found}
    assert not list(verify(cache.storage))


def test_a_function_that_keeps_nothing_is_told(options: dict[str, Any]) -> None:
    with pytest.raises(BuildFailed, match="no row at all"):
        build(**options, map=f"{HERE}:nothing")


def test_another_function_is_another_cache(options: dict[str, Any]) -> None:
    build(**options, map=f"{HERE}:shout", map_version="1")
    assert build(**options, map=f"{HERE}:shout", map_version="1").records == 0
    for version in ("2", None):
        with pytest.raises(IncompatibleCache, match=r"map .*shout .*the cache has .*version 1"):
            build(**options, map=f"{HERE}:shout", map_version=version)
    with pytest.raises(IncompatibleCache, match=r"map .* is nothing"):
        build(**options)


def test_a_function_that_changed_since_it_was_planned_stops_the_work(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.sources import mapping
    from pipelines.sources.records import Mapped

    told = mapping.mapped(f"{HERE}:shout", None)
    with pytest.raises(IncompatibleCache, match="planned with 0000"):
        mapping._checked(Mapped(told.function, "source", "0000"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonsense", "MODULE:FUNCTION"),
        ("no.such.module:f", "no.such.module"),
        (f"{HERE}:missing", "missing"),
        ("json:JSONDecoder", "not a function"),
    ],
)
def test_functions_that_are_not_there_are_named(
    options: dict[str, Any], name: str, said: str
) -> None:
    with pytest.raises(SourceError, match=said):
        build(**options, map=name)


def test_only_functions_of_modules_have_names() -> None:
    assert name_of(functions_of_records.shout) == f"{HERE}:shout"
    with pytest.raises(TypeError, match="lambda"):
        name_of(lambda record: record["text"])


def test_a_module_is_found_in_the_working_directory(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_functions.py").write_text("def low(record):\n    return 'a'\n")
    monkeypatch.chdir(tmp_path)
    import sys

    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert build(**options, map="own_functions:low").new_rows == 200
    assert (
        json.loads(json.dumps(cachelib.open(options["to"]).snapshot.commit.identity))["reading"][
            "map"
        ]["function"]
        == "own_functions:low"
    )
