"""A function of the user's changes records while they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib.errors import BuildFailed, IncompatibleCache, SourceError
from cachelib.format.shard import read_rejects
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from cachelib.verification import verify
from pipelines.entry import main
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
    details = {reject["reason"]: reject["detail"] for reject in found}
    line = line_of("1 / 0")
    assert details["map failed"] == (
        f"ZeroDivisionError: division by zero (functions_of_records.py, line {line})"
    )
    assert details["map gave fields that are not kept"] == "it gave other"
    assert details["map gave no text, dict or None"] == "it gave int"
    assert not list(verify(cache.storage))


def line_of(code: str) -> int:
    """The line of the functions' file that has some code."""
    lines = Path(functions_of_records.__file__).read_text().splitlines()
    return 1 + next(at for at, line in enumerate(lines) if code in line)


FAILED = f"KeyError: 'no such field' (functions_of_records.py, line {line_of('no such field')})"


def test_what_a_function_raised_is_told_before_anything_is_begun(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    said = "200 of the first 200 records (in.jsonl) were rejected: 200 x map failed, first at "
    said += f"in.jsonl:0: {FAILED}."
    with pytest.raises(BuildFailed, match=re.escape(said)):
        build(**options, map=f"{HERE}:fail")
    planned = ["plan", *options["inputs"], "--to", options["to"], "--map", f"{HERE}:fail"]
    assert main([*planned, "--tokenizer", options["tokenizer"]]) == 0
    out = capsys.readouterr().out
    assert said in out
    assert f"map (--map) is {HERE}:fail" in out


def test_what_a_function_raised_is_told_where_it_left_too_little(options: dict[str, Any]) -> None:
    options["split_bytes"] = 1 << 20
    with pytest.raises(BuildFailed, match="no row at all") as error:
        build(**options, map=f"{HERE}:fail", max_reject_rate=1)
    assert f"  200 x map failed, first at in.jsonl:0: {FAILED}: '" in str(error.value)
    with pytest.raises(BuildFailed, match="172 of 200 records were rejected") as error:
        build(**options, map=f"{HERE}:stumble")
    assert "29 x map failed, first at in.jsonl:0: ZeroDivisionError: divi" in str(error.value)


@pytest.mark.parametrize("bundles", [False, True])
@pytest.mark.parametrize(
    ("function", "raised", "code"),
    [
        ("leave", "SystemExit: 3", "sys.exit(3)"),
        ("interrupt", "KeyboardInterrupt", "raise KeyboardInterrupt"),
    ],
)
def test_a_function_that_ends_the_process_ends_the_build_with_a_message(
    options: dict[str, Any],
    function: str,
    raised: str,
    code: str,
    bundles: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first records are read in this thread, where it cannot be told from Ctrl-C.
    monkeypatch.setattr("pipelines.sample.SOURCES", 0)
    said = f"map: {HERE}:{function} raised {raised} (functions_of_records.py, line {line_of(code)})"
    with pytest.raises(BuildFailed, match=re.escape(said)):
        build(**options, map=f"{HERE}:{function}", runner="bundles" if bundles else "embedded")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys\nsys.exit('bye')\n", "SystemExit: bye (broken.py, line 2)"),
        ("x = 1\ny = z\n", "NameError: name 'z' is not defined (broken.py, line 2)"),
    ],
)
def test_a_module_that_fails_is_named(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SourceError, match=re.escape(f"module 'broken' cannot be imported: {said}")):
        build(**options, map="broken:f")


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
