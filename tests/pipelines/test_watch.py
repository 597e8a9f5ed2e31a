"""Watching: files that come, settle, change, vanish or are damaged, and eras that end."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cachelib
import pipelines
from cachelib.errors import CacheNotFound, ForebayError
from cachelib.format.coverage import merge
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from pipelines import growing, watching
from pipelines.config import ConfigError, growing_config
from pipelines.launcher import build
from pipelines.quarantine import read_quarantine
from pipelines.sources.arrivals import Arrivals
from pipelines.tally import Tally
from tests.pipelines.conftest import sentences, write_jsonl
from tests.pipelines.watches import Running
from tests.sources.test_discover import deny

# Beam's FnApiRunner.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def start(folder: Path, tokenizer: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(**more: Any) -> Running:
        running.append(Running(folder, tokenizer, tmp_path / "cache", **more))
        return running[-1]

    yield begin
    for each in running:
        each.stopped.set()
        each.thread.join(60)


def put(folder: Path, name: str, count: int, seed: int) -> None:
    """Write a file elsewhere and rename it into place."""
    draft = folder.parent / f"{name}.draft"
    write_jsonl(draft, sentences(count, seed))
    draft.rename(folder / name)


def rows(path: Path) -> int:
    try:
        return len(cachelib.open(path))
    except CacheNotFound:
        return 0


def coverage(path: Path) -> dict[str, Any]:
    ledger = Ledger(Storage.at(path))
    return merge(ledger.coverage_deltas(ledger.snapshot()))


def test_files_that_come_are_taken_in_once(
    folder: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    running = start()
    running.until(lambda: running.told("nothing yet"))
    for number in range(3):
        put(folder, f"{number}.jsonl", 20, number)
        running.until(lambda: rows(tmp_path / "cache") == 20 * (number + 1))  # noqa: B023
    versions = cachelib.open(tmp_path / "cache").version
    time.sleep(0.5)
    assert cachelib.open(tmp_path / "cache").version == versions  # idle: no commit
    seen = running.end()
    assert (seen.files, seen.new_rows, seen.rows) == (3, 60, 60)
    again = start()
    time.sleep(0.5)
    assert again.end().commits == 0
    cache = cachelib.open(tmp_path / "cache")
    assert set(coverage(tmp_path / "cache")) == {"0.jsonl", "1.jsonl", "2.jsonl"}
    assert cache.snapshot.eras.tolist()[-1] == 60  # sealed at the end


def test_a_file_that_grows_after_it_was_taken_in_is_left_out_once(
    folder: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    put(folder, "a.jsonl", 10, 0)
    running = start()
    running.until(lambda: rows(tmp_path / "cache") == 10)
    with (folder / "a.jsonl").open("a") as file:
        file.write('{"text": "late"}\n')
    running.until(lambda: running.told("left out a.jsonl"))
    put(folder, "b.jsonl", 5, 1)
    running.until(lambda: rows(tmp_path / "cache") == 15)
    seen = running.end()
    assert seen.changed == {"a.jsonl"}
    assert sum("left out a.jsonl" in line for line in running.lines) == 1


def test_a_damaged_file_is_set_aside_until_it_changes(
    folder: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    put(folder, "good.jsonl", 10, 0)
    put(folder, "plain", 30, 1)
    whole = gzip.compress((folder / "plain").read_bytes())
    (folder / "plain").unlink()
    (folder / "half.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (folder / "odd.txt").write_bytes("text".encode("utf-16"))
    running = start()
    running.until(lambda: rows(tmp_path / "cache") == 10)
    running.until(lambda: running.told("set aside half") and running.told("set aside odd"))
    put(folder, "more.jsonl", 10, 2)
    running.until(lambda: rows(tmp_path / "cache") == 20)
    seen = running.end()
    assert set(seen.damaged) == {"half.jsonl.gz", "odd.txt"}
    assert set(read_quarantine(Storage.at(tmp_path / "cache"))) == set(seen.damaged)
    again = start()
    again.until(lambda: again.told("set aside before half"))
    assert not again.told("set aside half")
    (folder / "half.jsonl.gz").write_bytes(whole)
    again.until(lambda: rows(tmp_path / "cache") == 50)
    assert set(again.end().damaged) == {"odd.txt"}
    assert set(read_quarantine(Storage.at(tmp_path / "cache"))) == {"odd.txt"}


def test_bad_records_are_counted_and_a_cache_may_begin_without_a_row(
    folder: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    (folder / "a.jsonl").write_text('{"text": 1}\nnothing\n' * 15)
    running = start()
    running.until(lambda: running.told("30 rejects"))
    put(folder, "b.jsonl", 5, 1)
    running.until(lambda: rows(tmp_path / "cache") == 5)
    assert sum(running.end().rejects.values()) == 30


def test_what_comes_bit_by_bit_does_not_make_an_era_each(
    folder: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    running = start(seal_after=3600)
    for number in range(4):
        put(folder, f"{number}.jsonl", 5, number)
        running.until(lambda: rows(tmp_path / "cache") == 5 * (number + 1))  # noqa: B023
    snapshot = cachelib.open(tmp_path / "cache").snapshot
    assert snapshot.version == 3
    assert snapshot.eras.tolist() == [5]  # the first rows of a new cache are waited for
    running.end()
    assert cachelib.open(tmp_path / "cache").snapshot.eras.tolist() == [5, 20]


def test_eras_end_by_time(folder: Path, start: Callable[..., Running], tmp_path: Path) -> None:
    put(folder, "a.jsonl", 5, 0)
    running = start(seal_after=0.4)

    def eras() -> int:
        return len(cachelib.open(tmp_path / "cache").snapshot.eras)

    running.until(lambda: rows(tmp_path / "cache") == 5 and eras() == 1)
    put(folder, "b.jsonl", 5, 1)
    running.until(lambda: rows(tmp_path / "cache") == 10 and eras() == 2)
    running.end()
    assert eras() == 2


def test_a_file_that_goes_while_it_is_read_is_counted(
    folder: Path,
    start: Callable[..., Running],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = watching.inspect_file

    def inspect(file: Any, *rest: Any) -> Any:
        found = real(file, *rest)
        if file.name == "gone.jsonl":
            Path(file.url).unlink()
        return found

    monkeypatch.setattr(watching, "inspect_file", inspect)
    put(folder, "gone.jsonl", 5, 0)
    put(folder, "here.jsonl", 5, 1)
    running = start()
    running.until(lambda: rows(tmp_path / "cache") == 5)
    assert running.end().vanished == 1
    assert read_quarantine(Storage.at(tmp_path / "cache")) == {}


def test_what_cannot_be_used_is_named_and_does_not_hold_up_the_rest(
    folder: Path, start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "closed").mkdir()
    put(folder, "here.jsonl", 5, 1)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jsonl")).write_bytes(b'{"text": "a"}\n')
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    deny(monkeypatch, folder / "closed")
    running = start()
    running.until(lambda: rows(tmp_path / "cache") == 5)
    put(folder, "more.jsonl", 5, 2)
    running.until(lambda: rows(tmp_path / "cache") == 10)
    seen = running.end()
    assert set(seen.damaged) == {"closed/", "loop.jsonl", "\\xff.jsonl"}
    json.dumps(seen.to_json(), ensure_ascii=False).encode()  # no name or fault is half a character
    told = [line for line in running.lines if line.startswith("set aside closed/: ")]
    assert len(told) == 1
    assert f"{folder}/closed: access is denied" in told[0]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_cache_that_is_deleted_ends_the_watch(
    folder: Path, start: Callable[..., Running], tokenizer: str, tmp_path: Path, replaced: bool
) -> None:
    put(folder, "a.jsonl", 5, 0)
    running = start()
    running.until(lambda: running.told("version 0"))
    shutil.rmtree(tmp_path / "cache")
    if replaced:
        put(tmp_path, "c.jsonl", 5, 2)
        build(inputs=[str(tmp_path / "c.jsonl")], to=str(tmp_path / "cache"), tokenizer=tokenizer)
    put(folder, "b.jsonl", 5, 1)
    running.thread.join(60)
    assert isinstance(running.error, CacheNotFound)
    assert "deleted or replaced while it was being filled" in str(running.error)
    assert rows(tmp_path / "cache") == (5 if replaced else 0)


def test_what_others_commit_is_not_counted(
    folder: Path, start: Callable[..., Running], tokenizer: str, tmp_path: Path
) -> None:
    to = tmp_path / "cache"
    put(tmp_path, "built.jsonl", 7, 9)
    build(inputs=[str(tmp_path / "built.jsonl")], to=str(to), tokenizer=tokenizer)
    put(folder, "0.jsonl", 20, 0)
    running = start(seal_after=0.1)
    running.until(lambda: running.told("20 rows"))
    assert pipelines.delete(to, sources=["0.jsonl"]).rows == 20
    put(tmp_path, "other.jsonl", 7, 8)
    build(inputs=[str(tmp_path / "other.jsonl")], to=str(to), tokenizer=tokenizer)
    pipelines.compact(to)
    put(folder, "1.jsonl", 20, 1)
    running.until(lambda: sum("20 rows" in line for line in running.lines) == 2)
    os.utime(folder / "1.jsonl", (1, 1))  # looked at again, and known
    time.sleep(0.3)
    seen = running.end()
    assert (seen.files, seen.commits, seen.records, seen.new_rows) == (2, 2, 40, 40)
    assert (seen.rows, len(cachelib.open(to).dataset())) == (34, 34)


def test_a_log_gets_no_progress_of_batches(
    folder: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []

    def no_watch(*_: Any, show: Any, **__: Any) -> Tally:
        shown.append(show)
        return Tally("cache")

    monkeypatch.setattr(growing, "watch", no_watch)
    options = [str(folder), "--to", str(tmp_path / "cache"), "--tokenizer", tokenizer]
    assert growing.main(["watch", *options]) == 0
    assert shown == [None]


def test_arrivals_settle_change_and_vanish(folder: Path) -> None:
    now = 0.0
    looks = Arrivals([str(folder)], any_suffix=False, settle_seconds=5, clock=lambda: now)
    assert looks.look().nothing
    path = folder / "a.jsonl"
    path.write_text("{}\n")
    assert (looks.look().settled, looks.look().waiting) == ((), 1)
    now = 4
    path.write_text("{}\n{}\n")  # it grows: the time begins anew
    assert looks.look().settled == ()
    now = 8.9
    assert looks.look().settled == ()
    now = 9
    assert [file.name for file in looks.look().settled] == ["a.jsonl"]
    assert looks.look().settled == ()
    path.write_text("{}\n{}\n{}\n")
    assert looks.look().waiting == 1
    path.unlink()
    assert looks.look().vanished == ("a.jsonl",)
    write_jsonl(path, ["old"])
    os.utime(path, (1, 1))  # written long ago, and renamed into place
    assert [file.name for file in looks.look().settled] == ["a.jsonl"]
    looks.forget(["a.jsonl"])
    assert [file.name for file in looks.look().settled] == ["a.jsonl"]


def test_keys_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"finish \(--finish\) cannot be set"):
        growing_config({"inputs": ["x"], "to": "y", "tokenizer": "z", "finish": True})
    with pytest.raises(ConfigError, match="settle"):
        growing_config({"inputs": ["x"], "to": "y", "tokenizer": "z", "settle": -1})


def test_the_command_ends_by_a_signal_and_says_what_it_saw(
    folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    put(folder, "a.jsonl", 10, 0)
    to = tmp_path / "cache"
    command = [sys.executable, "-m", "pipelines.entry", "watch", str(folder), "--to", str(to)]
    options = ["--tokenizer", tokenizer, "--every", "0.1", "--settle", "0"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while rows(to) < 10:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "taken in     1 file, 10 records: 10 rows" in output


def test_what_no_round_could_mend_ends_a_watch_at_once(
    folder: Path, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, "a.jsonl", 10, 0)
    for name in ("pipelines.engines.dask", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    for more, said in (
        ({"map": "no_such_module:change"}, "no_such_module"),
        ({"runner": "dask"}, r"pip install 'forebay\[pipelines,dask\]'"),
        ({"runner": "no_such_module.Runner"}, "no_such_module.Runner cannot be imported"),
    ):
        running = start(**more)
        running.thread.join(60)
        assert not running.thread.is_alive()
        assert isinstance(running.error, ForebayError)
        assert re.search(said, str(running.error))


def test_the_content_of_another_name_is_taken_in_with_a_note(
    folder: Path, start: Callable[..., Running], tmp_path: Path
) -> None:
    put(folder, "a.jsonl", 10, 0)
    running = start()
    running.until(lambda: rows(tmp_path / "cache") == 10)
    (folder / "a.jsonl").rename(folder / "b.jsonl")
    running.until(lambda: rows(tmp_path / "cache") == 20)
    running.end()
    assert running.told("note: the content of 1 source is in the cache already by another name")


def test_what_is_held_out_is_summed_up_beside_the_rest(
    folder: Path, start: Callable[..., Running], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = start(holdout=0.5)
    put(folder, "a.jsonl", 100, 0)
    running.until(lambda: running.told("held out, "))
    seen = running.end()
    held = seen.holdout
    assert held is not None
    assert held.url.endswith("/cache-holdout/")
    assert 0 < held.rows < 100
    assert held.rows + seen.rows == 100
    told = json.loads(json.dumps(seen.to_json()))
    assert told["holdout"]["rows"] == held.rows
    assert "damaged" not in told["holdout"]
    growing._print_seen(seen, as_json=False)
    assert f"{held.url} version {held.version}: {held.rows} rows" in capsys.readouterr().out


def test_a_watch_that_took_in_nothing_says_that_there_is_no_cache(
    start: Callable[..., Running], capsys: pytest.CaptureFixture[str]
) -> None:
    growing._print_seen(start().end(), as_json=False)
    printed = capsys.readouterr().out
    assert "no cache was made, since nothing was taken in" in printed
    assert "version -1" not in printed
