"""The commands as a user types them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import cli, entry
from pipelines.config import (
    BEAM_RUNNERS,
    BuildConfig,
    ConfigError,
    build_config,
    parse_size,
    read_yaml,
)
from pipelines.launcher import Summary
from pipelines.progress import Progress, Terminal
from tests.pipelines.conftest import EOS, write_jsonl


@pytest.fixture(autouse=True)
def _keep_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command turns logging off for its process, which here is pytest's."""
    monkeypatch.setattr("logging.disable", lambda level: None)


WAITING = """
import time
from pipelines import cli, entry

def build(*_, **__):
    print("waiting", flush=True)
    time.sleep(60)

cli.build = build
entry.command()
"""


def run(*arguments: str) -> int:
    return entry.main(arguments)


def test_build_from_options_and_again(
    corpus: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "cache")
    options = [str(corpus), "--tokenizer", tokenizer, "--to", to, "--eos", EOS, "--quiet"]
    options += ["--keep", "id", "--keep", "score:float32", "--split-bytes", "32KB", "--finish"]
    assert run("build", *options) == 0
    said = capsys.readouterr().out
    assert "500 rows and" in said
    assert "rejects      0" in said
    assert "bytes a token" not in said  # it says nothing about so few
    assert run("build", *options, "--json-summary") == 0
    assert json.loads(capsys.readouterr().out)["new_rows"] == 0


def test_build_from_yaml_with_an_option_that_outranks_it(
    corpus: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "build.yaml"
    path.write_text(
        f"inputs: ['{corpus}']\ntokenizer: {tokenizer}\nto: {tmp_path / 'wrong'}\n"
        "keep: {id: str}\nsplit_bytes: 64KB\n"
    )
    assert run("build", str(path), "--to", str(tmp_path / "right"), "--quiet") == 0
    assert (tmp_path / "right" / "_ledger").exists()
    assert not (tmp_path / "wrong").exists()
    assert run("plan", str(path), "--workers", "x") == 2
    assert f"{path} and options: workers (--workers) is 'x'" in capsys.readouterr().err


def test_plan_does_everything_but_the_work(
    corpus: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "cache"
    options = [str(corpus), "--tokenizer", tokenizer, "--to", str(to), "--split-bytes", "4KB"]
    assert run("plan", *options) == 0
    said = capsys.readouterr().out
    assert "sources    4 files" in said
    assert "reused     0 files that" in said
    assert "wave   1        1 split   " in said
    assert re.search(r"work       \d+ splits, [\d.]+ KB of text, about [\d,]+ tokens", said)
    assert not to.exists()
    assert run("build", *options, "--quiet") == 0
    assert run("plan", *options) == 0
    said = capsys.readouterr().out
    assert "reused     4 files" in said
    assert "work       none" in said


def test_what_is_left_out_is_told(
    corpus: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(7):
        (corpus / f"{number}.md").touch()
    os.mkfifo(corpus / "pipe.jsonl")
    options = [str(corpus), "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")]
    assert run("plan", *options) == 0
    said = capsys.readouterr().out
    note = "left out below the inputs: 1 x not a regular file (FIFO), 7 x unknown suffix; plan"
    assert f"left out   {corpus}/pipe.jsonl: not a regular file (FIFO)\n" in said
    assert f"left out   {corpus}/4.md: unknown suffix\nleft out   2 more: unknown suffix\n" in said
    assert f"note       {note}" in said
    assert run("build", *options, "--quiet") == 0
    assert f"note: {note}" in capsys.readouterr().out


def test_errors_are_one_message_without_a_traceback(
    tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    to = str(tmp_path / "cache")
    assert run("build", str(bad), "--tokenizer", tokenizer, "--to", to, "--quiet") == 1
    said = capsys.readouterr().err
    assert said.startswith("forebay: BuildFailed: ")
    assert "1 x text is missing, first at bad.jsonl:0: field 'text' is missing: '{}'" in said
    assert "Traceback" not in said
    assert run("build", str(bad), "--tokenizer", str(tmp_path / "no.json"), "--to", to) == 1
    assert "no.json" in capsys.readouterr().err


def test_a_summary_says_what_this_run_did(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(
        url="file:///x/",
        version=1,
        rows=1,
        tokens=300_000,
        new_rows=1,
        new_tokens=300_000,
        earlier_tokens=100_000,
        records=1,
        rejects={},
        counts={},
        bytes=500_000,
        stored_bytes=450_000,
        seconds=4,
        working=2,
        notes=(),
    )
    cli._print_summary(summary, False)
    assert capsys.readouterr().out.splitlines() == [
        "file:///x/ version 1: 1 row, 300,000 tokens",
        "  this build   1 row and 300,000 tokens from 1 record in 4.0 s",
        "               100,000 tokens written by an earlier run",
        "  work         2.0 s: 250 KB/s, 100,000 tokens/s",
        "  stored       450 KB, 1.50 bytes a token",
        "  rejects      0",
    ]


def test_a_line_of_progress_is_ended_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(2, 0, 3000, 9000, 1000, 1, 2, 0, 4)
    line = "wave 1/2   33%  3.0 KB of 9.0 KB  1 row  2 tokens  0 rejects  500 bytes/s  12 s left"
    assert progress.line() == line
    for live, shown in ((True, f"\r\x1b[K{line}\n"), (False, "")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda live=live: live)
        screen = Terminal()
        screen.show(progress)
        screen.end()
        screen.end()
        assert capsys.readouterr().err == shown


@pytest.mark.parametrize("runner", ["embedded", "dask"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_build_with_a_message(number: signal.Signals, runner: str) -> None:
    """Whether the process ends at once or lets the engine tidy up."""
    arguments = ["build", "x", "--to", "y", "--tokenizer", "z", "--runner", runner]
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, *arguments], stdout=-1, stderr=-1, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        assert process.stderr.read() == (
            "forebay: stopped. What is committed can be read; the same command goes on from here\n"
        )
        assert process.wait() == 128 + number


def test_workers_that_are_processes_end_with_the_build(tmp_path: Path) -> None:
    """Beam would wait for ever for those that have not come up yet."""
    # As Beam does it: a shell that starts the worker.
    started = "import subprocess; subprocess.Popen('sleep 60 & echo $!; wait', shell=True)"
    program = f"{started}\n{WAITING}"
    arguments = ["build", "x", "--to", "y", "--tokenizer", "z", "--processes"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=-1, stderr=-1, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.stdout.readline() == "waiting\n"
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    state = Path(f"/proc/{child}/stat")  # dead, and perhaps left to whoever takes in orphans
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_work_begins_ends_the_command_in_words(number: signal.Signals) -> None:
    program = (
        "import time; from pipelines import entry; "
        "entry.overwritten = lambda: (print('waiting', flush=True), time.sleep(60)); "
        "entry.command()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "ls", "x"], stdout=-1, stderr=-1, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        assert process.stderr.read() == "forebay: stopped\n"
        assert process.wait() == 128 + number


def test_a_configuration_beside_other_inputs_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.yaml").write_text("to: x\n")
    assert run("build", str(tmp_path / "b.yaml"), "data.jsonl") == 2
    assert "b.yaml: a configuration comes without other inputs" in capsys.readouterr().err


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As nohup and a shell's background jobs ask for."""
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{WAITING}"
    arguments = ["build", "x", "--to", "y", "--tokenizer", "z"]
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM


def test_unknown_commands_and_options_are_refused(
    tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 2
    assert run("biuld") == 2
    assert "no command 'biuld'" in capsys.readouterr().err
    assert run("build", "x", "--tokenizer", tokenizer) == 2
    assert "to (--to) is missing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("build", "x", "--tokenizer", tokenizer, "--to", str(tmp_path), "--splitbytes", "3")
    said = capsys.readouterr().err
    assert "unknown options --splitbytes 3 (inputs come first); did you mean --split-bytes?" in said
    assert run("build", "x", "--tokenizer", tokenizer, "--too", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert "to (--to) is missing" in said
    assert f"unknown options --too {tmp_path} (inputs come first); did you mean --to?" in said
    assert run("watch", "x", "--tokenizer", tokenizer, "--too", str(tmp_path)) == 2
    assert "did you mean --to?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("plan", "x", "--tokenizer", tokenizer, "--to", str(tmp_path), "--json-summary")
    assert "unknown options --json-summary" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert re.fullmatch(r"forebay \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_an_empty_configuration_is_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.yaml").write_text("# nothing yet\n")
    assert run("build", str(tmp_path / "b.yaml")) == 2
    assert "b.yaml: is empty, expected keys and values" in capsys.readouterr().err


def test_commands_that_need_no_beam_do_not_import_it(
    corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    program = (
        "import sys; from pipelines.entry import main; status = main(sys.argv[1:]); "
        "assert 'apache_beam' not in sys.modules; sys.exit(status)"
    )
    options = [str(corpus), "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")]
    subprocess.run([sys.executable, "-c", program, "plan", *options], check=True)
    assert run("build", *options, "--quiet") == 0
    subprocess.run([sys.executable, "-c", program, "build", *options], check=True)


def test_another_package_in_place_of_cachelib_is_named(
    tmp_path: Path,
) -> None:
    other = tmp_path / "cachelib"
    other.mkdir()
    (other / "__init__.py").write_text("class SimpleCache: ...\n")
    program = "import sys; from pipelines.entry import main; sys.exit(main(['ls', 'x']))"
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "another package called cachelib" in result.stderr
    assert "pip uninstall cachelib" in result.stderr


def test_sizes() -> None:
    assert parse_size("64MB") == parse_size("64 MiB") == parse_size("64m") == 64 << 20
    assert parse_size("1.5K") == 1536
    assert parse_size("123") == 123
    for wrong in ("", "MB", "12 parsecs", "-3K"):
        with pytest.raises(ValueError, match="is no size"):
            parse_size(wrong)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_reject_rat": 0.1}, "unknown key 'max_reject_rat'; did you mean 'max_reject_rate'?"),
        ({"max_reject_rate": 1.5}, "max_reject_rate (--max-reject-rate) is 1.5: "),
        ({"max_reject_rate": True}, "(--max-reject-rate) is True: expected a number"),
        ({"max_reject_rate": math.nan}, "(--max-reject-rate) is nan: expected a finite number"),
        ({"workers": True}, "workers (--workers) is True: expected a number"),
        ({"holdout": "nan"}, "'fraction' is 'nan': expected a finite number"),
        ({"keep": {"id": "string"}}, "keep (--keep): 'id' is 'string': expected one of str, int32"),
        ({"keep": {"id": {"a": "b"}}}, "keep (--keep): 'id' is {'a': 'b'}: "),
        ({"keep": {"tokens": "str"}}, "names 'tokens': this is the name of the token ids"),
        ({"keep": {"_source": "str"}}, "keep (--keep) names '_source': field name '_source': use"),
        ({"keep": {"text": "str"}}, "keep (--keep) names 'text', which is the text field: "),
        ({"keep": ["x", "x/data"]}, "field 'x/data' would lie inside field 'x'"),
        ({"keep": ["id", "id:int32"]}, "keep (--keep) is ['id', 'id:int32']: 'id' is named twice"),
        ({"keep": [{"id": "str"}]}, "keep (--keep) is [{'id': 'str'}]: expected NAME or NAME:TYPE"),
        ({"keep": 3}, "keep (--keep) is 3: "),
        ({"format": "xml"}, "format (--format) is 'xml': expected one of jsonl, "),
        ({"inputs": []}, "inputs is (): "),
        ({"inputs": ["x", ""]}, "inputs is ['x', '']: it is empty. Expected: Files, folders"),
        ({"inputs": ["x", 3]}, "inputs: number 2 is 3: "),
        ({"inputs": {"web": ["a", "b"]}}, "expected one pattern for 'web'"),
        ({"split_bytes": "4"}, "split_bytes (--split-bytes) is 4: "),
        ({"split_bytes": "9999999GB"}, "split_bytes (--split-bytes) is "),
        ({"workers": 10**20}, "workers (--workers) is 100000000000000000000: "),
        ({"engine": "fast"}, "engine (--engine) is 'fast': "),
        ({"finish": "yes"}, "finish (--finish) is 'yes': "),
        ({"eos": ""}, "eos (--eos) is '': it is empty. Expected: Token put after"),
        ({"bos": ""}, "bos (--bos) is '': it is empty. Expected: Token put before"),
        ({"text_field": ""}, "text_field (--text-field) is '': it is empty. "),
        ({"tokenizer": ""}, "tokenizer (--tokenizer) is '': it is empty. "),
        ({"to": ""}, "to (--to) is '': it is empty. "),
        ({"to": "a\0b"}, r"to (--to) is 'a\x00b': it holds a NUL"),
        ({"to": "https://x/y"}, "caches live on file://, gs:// or s3://, not on 'https://x/y'"),
        ({"to": "gs://"}, "to (--to) is 'gs://': 'gs://' names no bucket"),
        ({"runner": "nonsense"}, "runner (--runner) is 'nonsense': expected embedded, dask, "),
        ({"runner": "Dask"}, "FlinkRunner"),
    ],
)
def test_bad_values_are_named(values: dict[str, object], said: str) -> None:
    right = {"inputs": ["x"], "to": "y", "tokenizer": "z"}
    with pytest.raises(ConfigError) as error:
        build_config({**right, **values}, "build.yaml")
    assert "build.yaml: " in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("runner", ["embedded", "FlinkRunner", "flink", "PRISM", "my.own.Runner"])
def test_runners_may_be_beams(runner: str) -> None:
    assert build_config({"inputs": "x", "to": "y", "tokenizer": "z", "runner": runner})


def test_the_names_of_beams_runners_are_beams() -> None:
    from apache_beam.options.pipeline_options import StandardOptions

    assert set(BEAM_RUNNERS) == set(StandardOptions.KNOWN_RUNNER_NAMES)


def test_a_bad_value_of_an_option_is_told_before_any_work(
    corpus: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [str(corpus), "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")]
    for wrong in (["--eos", ""], ["--runner", "nonsense"], ["--keep", "id:text"]):
        for command in ("plan", "build"):
            assert run(command, *options, *wrong) == 2
            said = capsys.readouterr().err
            assert f"ConfigError: options: {wrong[0][2:]} ({wrong[0]})" in said
            assert "engine failed" not in said
    assert not (tmp_path / "cache").exists()


def test_a_key_twice_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    path.write_text("to: a\nkeep:\n  id: str\n  x: &x [1]\n  id: int32\ninputs: *x\nto: b\n")
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert f"{path}:5: key 'id' is there a second time" in str(error.value)
    assert f"{path}:7: key 'to' is there a second time" in str(error.value)
    for text in ("&a [*a]", "a: &a {b: *a}", "? [c]\n: 1", "3", "", "{"):
        path.write_text(text)
        with contextlib.suppress(ConfigError):
            read_yaml(path)


def test_short_ways_to_write_inputs_and_kept_fields() -> None:
    right = {"inputs": {"web": "w/*.jsonl", "code": "c"}, "to": "y", "tokenizer": "z"}
    config = build_config({**right, "keep": ["id", "url"]})
    assert config.inputs == ("web=w/*.jsonl", "code=c")
    assert config.keep == {"id": "str", "url": "str"}
    assert build_config({**right, "keep": "id"}).keep == {"id": "str"}
    mixed = build_config({**right, "keep": ["id", "score:float32"]}).keep
    assert mixed == {"id": "str", "score": "float32"}
    paths = build_config({"inputs": [Path("a"), "b"], "to": Path("c"), "tokenizer": Path("d")})
    assert (paths.inputs, paths.to, paths.tokenizer) == (("a", "b"), "c", "d")
    assert build_config({**right, "inputs": Path("a")}).inputs == ("a",)


COMMAND = [sys.executable, "-m", "pipelines.entry"]


def test_closed_and_full_outputs_end_quietly(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    options = [str(corpus), "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")]
    build = shlex.join([*COMMAND, "build", *options, "--quiet"])
    ls = shlex.join([*COMMAND, "ls", str(tmp_path / "cache")])
    plan = f"PYTHONUNBUFFERED=1 {shlex.join([*COMMAND, 'plan', *options])}"
    for line, status in [
        (f"{plan} | true; exit ${{PIPESTATUS[0]}}", 141),
        (f"{build} | true; exit ${{PIPESTATUS[0]}}", 141),
        (f"{build} >&-", 0),
        (f"{build} >&- 2>&-", 0),
        (f"{ls} >&-", 0),
        (f"{ls} > /dev/full", 1),
    ]:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == status, (line, done)
        assert "Traceback" not in done.stderr, line
        assert "engine failed" not in done.stderr, line


def test_every_option_says_what_it_is() -> None:
    assert all(field.description for field in BuildConfig.model_fields.values())


@pytest.mark.parametrize("ascii_only", [True, False])
def test_names_that_are_not_ascii_need_a_locale_that_has_them(
    ascii_only: bool, tokenizer: str, tmp_path: Path
) -> None:
    (tmp_path / "ü").mkdir()
    (tmp_path / "ü" / "ä.jsonl").write_text('{"text": "one"}\n')
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "pipelines.entry", "plan", str(tmp_path / "ü")]
    result = subprocess.run(
        [*command, "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")],
        env={**os.environ, **(locale if ascii_only else {"PYTHONUTF8": "1"})},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert "Traceback" not in result.stderr
    if ascii_only:
        assert result.returncode == 2
        assert "set a UTF-8 locale, such as LC_ALL=C.UTF-8" in result.stderr
    else:
        assert result.returncode == 0, result.stderr


def test_only_folders_above_the_sources_may_have_names_that_are_no_utf8(
    tokenizer: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "\udcff"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", ["some text"])
    options = [str(folder), "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")]
    assert run("plan", *options) == 0
    for option, value in (("--to", str(folder)), ("--text-field", "\udcff"), ("--eos", "\udcff")):
        assert run("plan", *options, option, value) == 2
        said = capfd.readouterr().err
        assert f"({option})" in said
        assert "is not UTF-8: rename it" in said


def test_python_without_docstrings_is_refused(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    """Beam reads its own."""
    options = [str(corpus), "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")]
    result = subprocess.run(
        [*COMMAND, "build", *options],
        env={**os.environ, "PYTHONOPTIMIZE": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("forebay: ForebayError: Apache Beam")
    assert "PYTHONOPTIMIZE=2" in result.stderr


def test_processes_of_a_quiet_build_print_nothing(
    corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    options = [str(corpus), "--tokenizer", tokenizer, "--to", str(tmp_path / "cache")]
    build = [*COMMAND, "build", *options, "--quiet", "--processes", "--workers", "2"]
    done = subprocess.run(build, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "version" in done.stdout
    assert "WARNING" not in done.stdout
