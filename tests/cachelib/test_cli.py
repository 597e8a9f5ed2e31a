"""The commands: what they print, and that nothing that goes wrong ends in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

import cachelib
from cachelib.commands.cli import main, printable
from cachelib.format.canonical import seal
from cachelib.format.commit import commit_key
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import publish
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from tests.cachelib.helpers import (
    TOKENIZER,
    TOKENS,
    Columns,
    append_commit,
    random_columns,
    take,
    with_tokenizer,
    write_cache,
    write_shard,
)

ROOT = Path(__file__).parents[2]
SCHEMA = Schema(
    (
        Field("tokens", "uint16", ragged=True),
        Field("title", "uint8", ragged=True, text=True),
        Field("score", "float32"),
        Field("frame", "int16", shape=(2,)),
        Field("notes", "int32", ragged=True),
    )
)
VOCABULARY = ["the", "wheel", "\x1b[31m", "\n", "水力", "\u202e"]
IDENTITY = {
    "processor": "tokens",
    "tokenizer": {
        "content": "abc",
        "vocabulary": 6,
        "largest_id": 5,
        "edges": {"bos": None, "bos_id": None, "eos": "<|end|>", "eos_id": 4},
    },
    "engines": {"tokenizers": "1.2"},
}


def rows() -> Columns:
    titles = ["plain", "", "für \x1b[2J\u3000x"]
    encoded = [np.frombuffer(title.encode(), np.uint8) for title in titles]
    return {
        "tokens": Ragged.from_rows(
            [np.array([0, 1]), np.array([]), np.array([2, 3, 4, 5] * 2000)], np.uint16
        ),
        "title": Ragged.from_rows(encoded, np.uint8),
        "score": np.array([0.5, np.nan, -1], np.float32),
        "frame": np.array([[1, 2], [3, 4], [5, 6]], np.int16),
        "notes": Ragged.from_rows([np.arange(100), np.array([]), np.array([7])], np.int32),
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("cli")
    words = {word: index for index, word in enumerate(VOCABULARY)}
    data = Tokenizer(models.WordLevel(words, unk_token="the")).to_str().encode()
    identity = with_tokenizer(IDENTITY, data)
    storage = write_cache(
        path, SCHEMA, rows(), [[1], [2]], rejects=["not\tJSON"], identity=identity
    )
    storage.write(TOKENIZER, data)
    append_commit(storage, SCHEMA, [], identity=identity, finish=True)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_ls(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "ls", cache)
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    digest = Ledger(Storage.at(cache)).snapshot().digest
    assert lines == [
        f"file://{cache}/",
        "version 2, finished",
        "holds 3 rows, 8,002 tokens, 101 notes in 2 shards",
        f"content {digest}",
        "fields tokens uint16 ragged, title text, score float32, frame int16 2, notes int32 ragged",
        "tokenizer content abc, 6 tokens up to id 5, no bos, eos '<|end|>' (id 4)",
        "engines tokenizers 1.2",
        "",
        "version operation wave shards rows tokens notes records rejects",
        "0 create 1 1 2 100 1 0",
        "1 append 1 2 8,000 1 3 1",
        "2 finish 0 0 0 0 0 0 finished",
    ]


def test_ls_of_an_older_version(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "ls", cache, "--version", "0")
    assert "version    0, not finished" in out
    assert "holds      1 row, 2 tokens, 100 notes in 1 shard\n" in out


@pytest.mark.parametrize("command", ["ls", "head", "stats"])
def test_a_lost_newest_commit_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    write_cache(tmp_path, SCHEMA, rows(), [[1], [2]])
    (tmp_path / commit_key(1)).unlink()
    status, _, err = run(capsys, command, str(tmp_path))
    assert status == 0
    assert err == (
        f"forebay: file://{tmp_path}/: _ledger/head names version 1, but the newest is 0: commits "
        "were lost, or left out of a copy\n"
    )
    assert run(capsys, command, str(tmp_path), "--version", "0")[2] == ""


def test_ls_tells_that_a_finished_cache_was_reopened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cache(tmp_path, SCHEMA, rows(), [[3]])
    storage = Storage.at(tmp_path)
    assert "version    0, not finished\n" in run(capsys, "ls", str(tmp_path))[1]
    append_commit(storage, SCHEMA, [], finish=True)
    assert "version    1, finished\n" in run(capsys, "ls", str(tmp_path))[1]
    shard = write_shard(storage, SCHEMA, "more", take(rows(), slice(0, 1)), start=3)
    append_commit(storage, SCHEMA, [publish(storage, shard)])
    said = "version    2, not finished, reopened since it was at version 1\n"
    assert said in run(capsys, "ls", str(tmp_path))[1]


def test_ls_as_json(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "ls", cache, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["version"] == 2
    assert found["finished"] is True
    assert found["totals"]["rows"] == 3
    assert Schema.from_json(found["schema"]) == SCHEMA
    assert found["identity"] == {**IDENTITY, "files": found["identity"]["files"]}
    assert [c["operation"] for c in found["commits"]] == ["create", "append", "finish"]
    assert found["commits"][1]["elements"]["tokens"] == 8000
    assert found["commits"][1]["rejects"] == {"not\tJSON": 1}


def test_head(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "head", cache, "-n", "2")
    assert (status, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines == [
        "row 0  numbers:0",
        "  tokens  2 ids: the wheel",
        "  title   plain",
        "  score   0.5",
        "  frame   [1 2]",
        "  notes   100 values: [ 0  1  2  3  4  5  6  7 ... 92 93 94 95 96 97 98 99]",
        "row 1  numbers:1",
        "  tokens  0 ids:",
        "  title",
        "  score   nan",
        "  frame   [3 4]",
        "  notes   0 values: []",
    ]


@pytest.mark.parametrize("count", ["0", "-1", "x"])
def test_head_shows_one_row_at_least(
    cache: str, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "head", cache, "-n", count)
    assert f"argument -n: '{count}' is no whole number from 1 on" in capsys.readouterr().err


def test_head_cannot_garble_a_terminal(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "head", cache, "--row", "-1")
    assert status == 0
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"8,000 ids: \x1b[31m" in out
    assert r"title   für \x1b[2J" in out
    assert "水力" in out
    assert "(more with --full)" in out
    assert len(out) < 2500
    _, full, _ = run(capsys, "head", cache, "--row", "2", "--full")
    assert full.count("水力") == 2000


def test_head_without_tokenizers_shows_ids(
    cache: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    status, out, err = run(capsys, "head", cache, "-n", "1")
    assert status == 0
    assert "tokens  2 values: [0 1]" in out
    assert err == (
        "forebay: showing ids: to see text, install what decodes them: pip install tokenizers\n"
    )


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", None])
def test_head_with_a_damaged_tokenizer_shows_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes | None
) -> None:
    write_cache(tmp_path, SCHEMA, rows(), [[3]], identity=with_tokenizer(IDENTITY, b"right"))
    if damage is not None:
        Storage.at(tmp_path).write(TOKENIZER, damage)
    status, out, err = run(capsys, "head", str(tmp_path), "-n", "1")
    assert status == 0
    assert "tokens  2 values: [0 1]" in out
    assert err.startswith("forebay: showing ids: ")
    assert err.count("\n") == 1


def test_verify(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "verify", cache)
    digest = Ledger(Storage.at(cache)).snapshot().digest
    assert (status, err) == (0, "")
    assert out == (f"file://{cache}/ version 2 is sound: 3 rows in 2 shards, content {digest}\n")


def test_verify_against(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cache(tmp_path / "same", SCHEMA, rows(), [[3]])
    status, out, _ = run(capsys, "verify", cache, "--against", str(tmp_path / "same"))
    assert status == 0
    assert "its rows are those of file://" in out
    other = take(rows(), np.array([0, 2, 1]))
    write_cache(tmp_path / "other", SCHEMA, other, [[3]])
    status, out, _ = run(capsys, "verify", cache, "--against", str(tmp_path / "other"))
    assert status == 1
    assert "they begin to differ at row 1 (numbers:1 and numbers:1)" in out


def test_verify_names_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cache(tmp_path, SCHEMA, rows(), [[1], [2]])
    for shard in ("0-0", "1-0"):
        next((tmp_path / "shards" / shard).glob("*/score/data/c/0")).unlink()
    status, out, _ = run(capsys, "verify", str(tmp_path))
    lines = out.splitlines()
    assert status == 1
    assert len(lines) == 3
    assert "shards/0-0/" in lines[0]
    assert "score/data (rows 0 to 1 of the shard)" in lines[0]
    assert "shards/1-0/" in lines[1]
    assert lines[2] == f"2 problems in file://{tmp_path}/"


def test_stats(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "stats", cache)
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        f"file://{cache}/ version 2",
        "rows 3, 1 of them empty",
        "tokens 8,002, from 0 to 5",
        "lengths min 0, mean 2,667.3, median 2, p90 8,000, p99 8,000, max 8,000",
        "records 4, 2 audited",
        "rejects 1",
        r"1 x not\tJSON",
        "as numbers:3: detail: 'excerpt'",
        "",
        "1 source",
        "rows tokens empty",
        "numbers 3 8,002 1",
    ]


def test_quick_stats(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "stats", cache, "--quick")
    assert status == 0
    assert "min 0, median 2 to 3, p90 4,096 to 8,191, p99 4,096 to 8,191, max 4,096 to" in out
    assert "sources" not in out


def test_stats_as_json(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--quick"]):
        status, out, _ = run(capsys, "stats", cache, "--json", *more)
        found = json.loads(out)
        assert status == 0
        assert (found["rows"], found["tokens"], found["empty"]) == (3, 8002, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "{none}"], "CacheNotFound: file://{none}/: there is no cache here"),
        (["head", "{none}"], "CacheNotFound: file://{none}/: there is no cache here"),
        (["verify", "{none}"], "CacheNotFound: file://{none}/: there is no cache here"),
        (["stats", "{none}"], "CacheNotFound: file://{none}/: there is no cache here"),
        (
            ["ls", "{cache}", "--version", "9"],
            "CacheNotFound: file://{cache}/: there is no version 9",
        ),
        (["ls", "{cache}", "--version", "999999999999"], "CacheNotFound: "),
        (
            ["ls", "{cache}", "--version", "-1"],
            "CacheNotFound: file://{cache}/: there is no version -1; versions 0 to 2 are there",
        ),
        (
            ["head", "{cache}", "--version", "9"],
            "CacheNotFound: file://{cache}/: there is no version",
        ),
        (["head", "{cache}", "--row", "3"], "row 3 is outside the 3 rows"),
        (["head", "{cache}", "--row", "-4"], "row -4 is outside the 3 rows"),
        (["verify", "{cache}", "--version", "9"], "CacheNotFound: "),
        (["verify", "{cache}", "--against", "{none}"], "CacheNotFound: "),
        (["stats", "{cache}", "--version", "9"], "CacheNotFound: "),
        (["ls", "{corrupt}"], "CorruptData: "),
        (["head", "{corrupt}"], "CorruptData: "),
        (["stats", "{corrupt}"], "CorruptData: "),
        (["ls", "{newer}"], "IncompatibleCache: "),
        (["head", "{newer}"], "IncompatibleCache: "),
        (["verify", "{newer}"], "IncompatibleCache: "),
        (["stats", "{newer}"], "IncompatibleCache: "),
    ],
    ids=" ".join,
)
def test_errors_are_one_line(
    arguments: list[str],
    message: str,
    cache: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {name: str(tmp_path / name) for name in ("none", "corrupt", "newer")}
    for name, data in (("corrupt", b"x\ny\n"), ("newer", seal({"format": 99}))):
        Storage.at(places[name]).write(commit_key(0), data)
    status, out, err = run(capsys, *(a.format(cache=cache, **places) for a in arguments))
    assert status == 1
    assert err.startswith("forebay: " + message.format(cache=cache, **places))
    assert err.count("\n") == 1
    assert out == "" or arguments[0] == "verify"


@pytest.mark.parametrize("command", ["ls", "head", "verify", "stats"])
def test_wrong_use_and_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in (([], 2), (["http://x"], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as stopped:
            main([command, *arguments])
        assert stopped.value.code == status
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert f"usage: forebay {command}" in out + err


@pytest.mark.parametrize("command", ["ls", "head", "verify", "stats"])
def test_a_closed_pipe_is_quiet(cache: str, command: str) -> None:
    code = "import sys; from cachelib.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code, command, cache],
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_text_that_the_terminal_cannot_show_is_escaped(cache: str) -> None:
    code = "import sys; from cachelib.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "head", cache, "--row", "2"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u6c34\u529b" in done.stdout


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\x00\x7f\x9b", r"a\tb\x00\x7f\x9b"),
        ("line\nline", "line\nline"),
        ("\u3000\u00a0", "\u3000\u00a0"),
        ("\u2028\u202e\ud800\ufeff", r"\u2028\u202e\ud800\ufeff"),
        ("naïve 水 😀", "naïve 水 😀"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_explain_names_source_and_record_of_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = random_columns(TOKENS, [3, 5, 7, 9] * 5, seed=1)
    write_cache(tmp_path / "web", TOKENS, columns, [[12, 8]])
    windows = cachelib.open(tmp_path / "web").windows(8)
    loader = windows.shuffle(0).repeat().loader([(0, 4), (16, 2)])
    states = tmp_path / "run" / "checkpoint-3"
    states.mkdir(parents=True)
    for _ in range(3):
        next(loader)
    state = str(states / "state.json")
    Path(state).write_text(json.dumps(loader.state_dict()))
    assert main(["explain", state, "--step", "1"]) == 1
    assert "save what loader.description() gives once" in capsys.readouterr().err
    (tmp_path / "run" / "description.json").write_text(json.dumps(loader.description()))

    for step, rows in ((0, 4), (3, 4), (4, 2)):
        assert main(["explain", state, "--step", str(step), "--json"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [each["row"] for each in told] == list(range(rows))
        for each in told:
            origins = [vars(origin) for origin in loader.explain(step, each["row"])]
            assert each["origins"] == [{**o, "through": list(o["through"])} for o in origins]
            assert each["epoch"] == each["sample"] // len(
                cachelib.open(tmp_path / "web").windows(8)
            )

    assert main(["explain", state, "--step", "4", "--row", "1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "row 1  sample 17, epoch 1"
    origin = loader.explain(4, 1)[0]
    assert out[1] == f"  numbers:{origin.position}  (row {origin.row})"

    assert main(["explain", state, "--step", "4", "--row", "2"]) == 1
    assert "row 2 is outside the 2 rows of the batch 4" in capsys.readouterr().err

    resumed = windows.shuffle(0).repeat().loader(3, start=loader.state_dict())
    Path(state).write_text(json.dumps(resumed.state_dict()))
    (tmp_path / "run" / "description.json").write_text(json.dumps(resumed.description()))
    assert main(["explain", state, "--step", "3"]) == 0
    capsys.readouterr()
    assert main(["explain", state, "--step", "2"]) == 1
    assert "before the state that was started from (step 3, sample 12)" in capsys.readouterr().err

    steps = [next(resumed), next(resumed)]
    Path(state).write_text(json.dumps(resumed.state_dict()))
    for step in range(3, 3 + len(steps)):
        assert main(["explain", state, "--step", str(step), "--row", "2", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["sample"] == 12 + 3 * (step - 3) + 2
        assert told["origins"][0]["row"] == resumed.explain(step, 2)[0].row

    once = windows.loader(4)
    for _ in once:
        pass
    Path(state).write_text(json.dumps(once.state_dict()))
    (tmp_path / "run" / "description.json").write_text(json.dumps(once.description()))
    with warnings.catch_warnings(action="error"):
        assert main(["explain", state, "--step", "0"]) == 0


def test_explain_refuses_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = random_columns(TOKENS, [3, 5, 7, 9] * 5, seed=1)
    write_cache(tmp_path / "web", TOKENS, columns, [[20]])
    cache = cachelib.open(tmp_path / "web")
    state, description = tmp_path / "state.json", tmp_path / "other.json"
    state.write_text(json.dumps(cache.shuffle(1).loader(4).state_dict()))
    description.write_text(json.dumps(cache.shuffle(2).loader(4).description()))
    command = ["explain", str(state), "--step", "0", "--description", str(description)]
    for content, message in (
        (description.read_text(), "shuffle.seed is 1 in the state, but 2 here"),
        ("[]", "holds list, expected an object of JSON"),
        ("{", "cannot be read as JSON"),
        ("{}", "no 'order' in it"),
    ):
        description.write_text(content)
        assert main(command) == 1
        assert message in capsys.readouterr().err

    loader = cache.shuffle(1).loader(4)
    for sizes in ({}, {"batches": {"sizes": [8, 16], "last": "drop"}}):
        told = {**loader.description(), "batches": {}, **sizes}
        description.write_text(json.dumps(told))
        assert main(command) == 1
        assert "do not tell how batches were cut" in capsys.readouterr().err
