"""What the first records tell: wrong field names end a build before it tokenizes anything."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cachelib.errors import BuildFailed
from pipelines import entry, runners
from pipelines.launcher import build
from pipelines.sample import take_sample
from pipelines.sources import Reading, discover
from tests.pipelines.conftest import write_jsonl


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def options(folder: Path, tokenizer: str, **more: Any) -> dict[str, Any]:
    to = str(folder.parent / "cache")
    return {"inputs": [str(folder)], "to": to, "tokenizer": tokenizer, **more}


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a wave was run")

    monkeypatch.setattr(runners, "run_waves", fail)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("wrong", "asked"),
    [
        ({"text_field": "body"}, "text_field (--text-field) is 'body';"),
        ({"keep": {"url": "str"}}, "300 x kept field 'url' is missing"),
        ({"keep": {"id": "int64"}}, "keep (--keep) is id:int64;"),
    ],
)
def test_a_build_whose_first_records_are_all_rejected_stops_at_once(
    folder: Path, tokenizer: str, wrong: dict[str, Any], asked: str
) -> None:
    write_jsonl(folder / "a.jsonl", ["some text"] * 300)
    with pytest.raises(BuildFailed) as error:
        build(**options(folder, tokenizer, **wrong))
    said = str(error.value)
    assert "300 of the first 300 records (a.jsonl) were rejected" in said
    assert asked in said
    assert "has the fields 'id', 'text', 'score'" in said
    assert "max_reject_rate: 1 (--max-reject-rate 1)" in said
    assert not (folder.parent / "cache").exists()


def test_plan_notes_it(
    folder: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(folder / "a.jsonl", ["some text"] * 3)
    command = ["plan", str(folder), "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")]
    assert entry.main([*command, "--text-field", "body"]) == 0
    said = capsys.readouterr().out
    assert "note       3 of the first 3 records (a.jsonl) were rejected: 3 x text is miss" in said
    with (folder / "b.csv").open("w") as file:
        csv.writer(file).writerows([["a", "b"], ["x", "y"]])
    (folder / "a.jsonl").unlink()
    assert entry.main(command) == 0
    assert "b.csv: no column is called 'text'; its columns are 'a', 'b'" in capsys.readouterr().out


def test_few_records_or_a_high_rate_do_not_stop_it(folder: Path, tokenizer: str) -> None:
    write_jsonl(folder / "a.jsonl", ["some text"] * 25)
    with pytest.raises(BuildFailed, match="gave no row at all"):
        build(**options(folder, tokenizer, text_field="body", max_reject_rate=1))
    write_jsonl(folder / "a.jsonl", ["some text"] * 19)
    with pytest.raises(BuildFailed, match="19 of 19 records"):
        build(**options(folder, tokenizer, text_field="body"))


def test_a_stray_file_before_the_data_does_not_stop_it(folder: Path, tokenizer: str) -> None:
    (folder / "a.jsonl").write_text('{"name": "stray"}\n' * 30)
    write_jsonl(folder / "b.jsonl", ["some text"] * 300)
    summary = build(**options(folder, tokenizer, max_reject_rate=0.1))
    assert (summary.new_rows, summary.rejects) == (300, {"text is missing": 30})
    # What was taken in says nothing about what is new.
    write_jsonl(folder / "c.jsonl", ["more text"] * 300)
    assert build(**options(folder, tokenizer)).notes == ()


def test_the_fields_are_those_of_the_record(folder: Path) -> None:
    record = {"body": "x" * 100_000, "url": {"a": 1}, "é": None}
    line = json.dumps(record).encode() + b"\n"
    for name, data in (
        ("a.jsonl", line),
        ("b.jsonl.gz", gzip.compress(line)),
        ("c.json", json.dumps([record, record], indent=1).encode()),
    ):
        for old in folder.iterdir():
            old.unlink()
        (folder / name).write_bytes(data)
        sample = take_sample(discover([str(folder)]), Reading())
        assert sample.fields == ("body", "url", "é"), name
    (folder / "c.json").write_text("3\n")
    assert take_sample(discover([str(folder)]), Reading()).fields == ()
