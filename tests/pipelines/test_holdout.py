"""What is held out of a build goes to a cache of its own, and stays apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib.errors import BuildFailed, IncompatibleCache
from cachelib.format.storage import Storage
from cachelib.verification import verify
from pipelines.cli import main
from pipelines.config import ConfigError, build_config
from pipelines.launcher import build
from pipelines.sources.records import Holdout, Reading, Records, Reject
from pipelines.tokenization.arrow import as_texts
from tests.pipelines.conftest import sentences, write_jsonl


@pytest.fixture
def options(corpus: Path, tokenizer: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "inputs": [str(corpus)],
        "to": str(tmp_path / "cache"),
        "tokenizer": tokenizer,
        "keep": {"id": "str"},
        "split_bytes": 4096,
        "holdout": {"fraction": 0.2, "seed": 3},
    }


def ids(path: str) -> list[str]:
    cache = cachelib.open(path)
    return [bytes(row).decode() for row in cache.take(np.arange(len(cache)))["id"]]


def test_two_caches_share_all_rows_out(options: dict[str, Any]) -> None:
    summary = build(**options)
    assert summary.holdout is not None
    rest, held = ids(options["to"]), ids(options["to"] + "-holdout")
    assert sorted(rest + held, key=lambda name: int(name[1:])) == [f"r{i}" for i in range(500)]
    assert (len(rest), len(held)) == (summary.new_rows, summary.holdout.new_rows)
    assert 60 < len(held) < 140
    for path in (options["to"], options["to"] + "-holdout"):
        assert not list(verify(Storage.at(path)))
    again = build(**options)
    assert again.holdout is not None
    assert (again.new_rows, again.holdout.new_rows) == (0, 0)


def test_sides_depend_on_source_and_position_alone(
    options: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    build(**options)
    other = {**options, "to": str(tmp_path / "other"), "split_bytes": 1 << 20}
    build(**{**other, "inputs": [str(corpus / "deep"), str(corpus)][1:]})
    for ending in ("", "-holdout"):
        one, two = (cachelib.open(each["to"] + ending) for each in (options, other))
        assert one.snapshot.digest == two.snapshot.digest
    another = {**options, "to": str(tmp_path / "another"), "holdout": {"fraction": 0.2, "seed": 4}}
    build(**another)
    assert set(ids(another["to"] + "-holdout")) != set(ids(options["to"] + "-holdout"))


def test_an_append_holds_out_alike_or_is_refused(options: dict[str, Any], corpus: Path) -> None:
    build(**options)
    before = ids(options["to"]), ids(options["to"] + "-holdout")
    write_jsonl(corpus / "z.jsonl", sentences(100, 9), 500)
    for holdout in (None, 0.1):
        with pytest.raises(IncompatibleCache, match=r"holdout .* has 0\.2 by seed 3 \(the rest\)"):
            build(**{**options, "holdout": holdout})
    build(**options)
    after = ids(options["to"]), ids(options["to"] + "-holdout")
    for old, new in zip(before, after, strict=True):
        assert new[: len(old)] == old
    assert len(after[0]) + len(after[1]) == 600
    plain = {**options, "to": options["to"] + "-plain", "holdout": None}
    build(**plain)
    with pytest.raises(IncompatibleCache, match="the cache has nothing"):
        build(**{**plain, "holdout": 0.2})


def test_rejects_are_shared_out_as_well(options: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "bad.jsonl"
    lines = [json.dumps({"id": f"r{i}", "text": "word" if i % 4 else None}) for i in range(400)]
    source.write_text("\n".join(lines))
    summary = build(**{**options, "inputs": [str(source)], "max_reject_rate": 1})
    assert summary.holdout is not None
    found = [sum(each.rejects.values()) for each in (summary, summary.holdout)]
    assert sum(found) == 100
    assert found[1] > 5
    assert summary.records + summary.holdout.records == 400


def test_a_side_without_a_row_is_an_error_that_says_why(
    options: dict[str, Any], tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "few.jsonl", ["a", "b"])
    with pytest.raises(BuildFailed, match=r"Of all records 0\.001 are wanted.*--holdout"):
        build(**{**options, "inputs": [str(tmp_path / "few.jsonl")], "holdout": 0.001})


@given(
    st.lists(st.integers(0, 1 << 40), unique=True, max_size=40),
    st.sampled_from([0.01, 0.5, 0.99]),
    st.integers(0, 2**64 - 1),
)
def test_every_record_is_on_one_side(positions: list[int], fraction: float, seed: int) -> None:
    positions.sort()
    good, bad = positions[::2], positions[1::2]
    records = Records(
        text=as_texts([str(p) for p in good]),
        keep={},
        positions=np.array(good, np.int64),
        rejects=tuple(Reject(p, "bad", "", "") for p in bad),
        replaced=0,
        start=0,
        stop=1 << 41,
    )
    sides = [Holdout(fraction, seed, held).of("a", records) for held in (False, True)]
    texts = [[int(text) for text in side.text.to_pylist()] for side in sides]
    assert texts == [side.positions.tolist() for side in sides]
    assert sorted(texts[0] + texts[1]) == good
    assert sorted(r.position for side in sides for r in side.rejects) == bad
    assert {(side.start, side.stop) for side in sides} == {(0, 1 << 41)}


def test_what_is_stored_of_a_reading_is_as_ever_without_a_holdout() -> None:
    assert Reading().to_json() == {"text_field": "text", "keep": (), "invalid_unicode": "reject"}
    for reading in (Reading(), Reading(holdout=Holdout(0.25, 7, True))):
        assert Reading.from_json(json.loads(json.dumps(reading.to_json()))) == reading


@pytest.mark.parametrize(
    ("given", "fraction", "seed"),
    [(0.01, 0.01, 0), ("0.01", 0.01, 0), ("0.5:7", 0.5, 7), ({"fraction": 0.1, "seed": 2}, 0.1, 2)],
)
def test_forms_of_the_option(
    options: dict[str, Any], given: Any, fraction: float, seed: int
) -> None:
    told = build_config({**options, "holdout": given}).holdout
    assert told is not None
    assert (told.fraction, told.seed) == (fraction, seed)


@pytest.mark.parametrize(
    "given", [0, 1, 1.5, -0.1, "half", "0.1:x", "0.1:-1", {"seed": 1}, float("nan"), True, [0.1]]
)
def test_values_that_cannot_be_are_named(options: dict[str, Any], given: Any) -> None:
    with pytest.raises(ConfigError, match=r"holdout \(--holdout\)"):
        build_config({**options, "holdout": given})


def test_the_command_tells_of_both(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*options["inputs"], "--to", options["to"], "--tokenizer", options["tokenizer"]]
    for command in ("plan", "build"):
        assert main([command, *given, "--quiet", "--holdout", "0.2:3"]) == 0
        out = capsys.readouterr().out
        assert "cache/" in out
        assert "cache-holdout/" in out
