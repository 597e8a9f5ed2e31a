"""Parts: cut by what is read alone, continued after the last published one, by any worker."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cachelib.errors import SourceChanged, SourceError
from cachelib.format.digest import Digest, fold
from cachelib.format.shard import Manifest, manifest_key
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from pipelines import launcher, tasks, worker
from pipelines.config import build_config
from pipelines.tasks import plan_key, tokenizer_objects
from pipelines.worker import Workplace, write_splits
from tests.pipelines.conftest import sentences, write_csv, write_jsonl

SPLIT = 2048


def workplace(inputs: list[str], tokenizer: str, to: Path, split_bytes: int = SPLIT) -> Workplace:
    """A cache with a stored plan of which nothing is carried out."""
    config = build_config(
        {"inputs": inputs, "tokenizer": tokenizer, "to": str(to), "split_bytes": split_bytes,
         "keep": {"id": "str"}}
    )  # fmt: skip
    request = launcher.inquire(config)
    plan = launcher.next_plan(request).plan
    assert plan is not None
    for key, data in tokenizer_objects(request.files).items():
        request.storage.put_if_absent(key, data)
    request.storage.put_json(plan_key(plan.name), plan.to_json())
    return tasks._workplace(
        request.storage.url, plan.name, request.discovery.roots, request.discovery.inspected_ns
    )


@pytest.fixture
def packed(tmp_path: Path) -> str:
    """One gzip file of many parts, with rejects at some of their borders."""
    plain = tmp_path / "plain.jsonl"
    write_jsonl(plain, sentences(150, 5))
    lines = plain.read_bytes().splitlines(keepends=True)
    for at in range(20, 150, 17):
        lines[at] = b"no json at all\n"
    lines[70] = b'{"id": "big", "text": "' + b"turbine " * 1000 + b'"}\n'
    path = tmp_path / "packed.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(lines), mtime=0))
    return str(path)


@pytest.fixture(params=["csv", "parquet"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One file of 60 rows of some 1 KB, some rejected, small as stored."""
    texts: list[str | None] = [f"{number} {'turbine ' * 120}" for number in range(60)]
    path = tmp_path / f"rows.{request.param}"
    if request.param == "parquet":
        texts[30] = texts[50] = None
        ids = [f"r{number}" for number in range(60)]
        pq.write_table(pa.table({"id": ids, "text": texts}), path)
    else:
        write_csv(path, [text or "" for text in texts])
        lines = path.read_bytes().splitlines(keepends=True)
        lines[30] = lines[50] = b"one cell\n"
        path.write_bytes(b"".join(lines))
    return str(path)


def test_parts_of_numbered_rows_are_bounded_by_their_text(
    rows: str, tokenizer: str, tmp_path: Path
) -> None:
    work = workplace([rows], tokenizer, tmp_path / "cache", 4096)
    made = list(write_splits(work, range(len(work.plan.splits))))
    assert 12 <= len(made) <= 16
    assert all(m.records <= 6 for m in made)
    assert sum(m.records for m in made) == 60


def test_a_split_of_numbered_rows_goes_on_after_any_published_part(
    rows: str, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.sources import lines, parquet

    work = workplace([rows], tokenizer, tmp_path / "cache", 4096)
    made = list(write_splits(work, [0]))
    for module in (lines, parquet):
        monkeypatch.setattr(module, "BLOCK", 3000)
    monkeypatch.setattr(lines.blocks, "__defaults__", (3000,))
    for kept in (0, 1, 2, len(made) - 1):
        copy = tmp_path / f"copy{kept}"
        shutil.copytree(tmp_path / "cache", copy)
        for manifest in made[kept:]:
            (copy / manifest_key(manifest.shard)).unlink()
        other = replace(work, storage=Storage.at(copy))
        assert facts(list(write_splits(other, [0]))) == facts(made)
    large = workplace([rows], tokenizer, tmp_path / "large", 1 << 20)
    (whole,) = write_splits(large, [0])
    assert str(fold(Digest.parse(m.digest) for m in made)) == whole.digest


def facts(manifests: list[Manifest]) -> list[tuple[Any, ...]]:
    """All of a manifest that does not name its attempt."""
    return [tuple(v for k, v in m.to_json().items() if k != "attempt") for m in manifests]


def test_a_split_goes_on_after_any_published_part(
    packed: str, tokenizer: str, tmp_path: Path
) -> None:
    work = workplace([packed], tokenizer, tmp_path / "cache")
    made = list(write_splits(work, [0]))
    assert len(made) > 10
    assert [m.task["part"] for m in made] == list(range(len(made)))
    assert sum(m.records for m in made) == 150
    for kept in (1, 2, 7, len(made) - 1, len(made)):
        copy = tmp_path / f"copy{kept}"
        shutil.copytree(tmp_path / "cache", copy)
        for manifest in made[kept:]:
            (copy / manifest_key(manifest.shard)).unlink()
        other = replace(work, storage=Storage.at(copy))
        again = list(write_splits(other, [0]))
        assert again[:kept] == made[:kept]
        assert facts(again) == facts(made)


def test_the_size_of_blocks_that_are_read_changes_no_part(
    packed: str, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.sources import lines

    work = workplace([packed], tokenizer, tmp_path / "cache")
    made = facts(list(write_splits(work, [0])))
    for size in (100, 1000, 5000):
        monkeypatch.setattr(lines.blocks, "__defaults__", (size,))
        other = workplace([packed], tokenizer, tmp_path / f"cache{size}")
        assert facts(list(write_splits(other, [0]))) == made


def test_two_workers_on_one_split_at_once_agree(
    packed: str, tokenizer: str, tmp_path: Path
) -> None:
    work = workplace([packed], tokenizer, tmp_path / "cache")
    results: list[list[Manifest]] = []
    threads = [
        threading.Thread(target=lambda: results.append(list(write_splits(work, [0]))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result == results[0] for result in results)


def test_a_json_array_makes_as_many_parts_as_its_lines_would(
    tokenizer: str, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "lines.jsonl", sentences(150, 5))
    lines = (tmp_path / "lines.jsonl").read_text().splitlines()
    (tmp_path / "array.json").write_text(f"[{','.join(lines)}]")
    parts = []
    for name in ("lines.jsonl", "array.json"):
        work = workplace([str(tmp_path / name)], tokenizer, tmp_path / f"cache-{name}")
        parts.append(len(list(write_splits(work, range(len(work.plan.splits))))))
    assert parts[0] > 3
    assert abs(parts[1] - parts[0]) <= 1


def test_small_files_share_a_part(tokenizer: str, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}.txt").write_text(f"document {number}\n")
    (folder / "13.txt").write_bytes(b"\xff")
    config = {"inputs": [str(folder)], "format": "text", "tokenizer": tokenizer,
              "to": str(tmp_path / "cache"), "max_reject_rate": 0.1}  # fmt: skip
    request = launcher.inquire(build_config(config))
    plan = launcher.next_plan(request).plan
    assert plan is not None
    assert len(plan.splits) == 1
    (commit,) = launcher._carry_out(request, launcher.next_plan(request), None, ())
    assert len(commit.entries) == 1
    assert commit.records == 40
    assert commit.rejects == {"invalid Unicode": 1}


def test_a_source_that_fails_stops_the_split_and_publishes_nothing_of_the_part(
    packed: str, tokenizer: str, tmp_path: Path
) -> None:
    work = workplace([packed], tokenizer, tmp_path / "cache", 1 << 20)
    Path(packed).write_bytes(Path(packed).read_bytes()[:-9] + b"123456789")
    with pytest.raises(SourceError, match=r"packed\.jsonl\.gz"):
        list(write_splits(work, [0]))
    assert not list((tmp_path / "cache").glob("shards/*/manifest.json"))


def test_the_digest_of_parts_is_that_of_the_whole(
    packed: str, tokenizer: str, tmp_path: Path
) -> None:
    small = list(write_splits(workplace([packed], tokenizer, tmp_path / "a"), [0]))
    large = list(write_splits(workplace([packed], tokenizer, tmp_path / "b", 1 << 20), [0]))
    assert len(large) == 1
    assert str(fold(Digest.parse(m.digest) for m in small)) == large[0].digest


def test_while_one_split_is_tokenized_the_next_is_being_read(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write_jsonl(tmp_path / f"{name}.jsonl", sentences(20, 1))
    work = workplace([str(tmp_path / "*.jsonl")], tokenizer, tmp_path / "cache")
    assert len(work.plan.splits) > 1
    second_is_read = threading.Event()
    read = worker.read

    def noting(url: str, source: Any, start: int, *rest: Any) -> Any:
        if (source.name, start) != ("a.jsonl", 0):
            second_is_read.set()
        return read(url, source, start, *rest)

    class Waiting:
        fast = None

        def encode(self, text: Any, exact: bool = False) -> Ragged:
            assert second_is_read.wait(30), "nothing was read while the first split was tokenized"
            return work.encoder.encode(text, exact)

    monkeypatch.setattr(worker, "read", noting)
    waiting = replace(work, encoder=Waiting())  # type: ignore[arg-type]
    made = list(write_splits(waiting, range(len(work.plan.splits))))
    assert sum(m.rows for m in made) == 40


def test_empty_texts_are_counted_and_every_part_is_audited(tokenizer: str, tmp_path: Path) -> None:
    texts = ["" if n % 3 == 0 else f"record {n} " * 20 for n in range(60)]
    write_jsonl(tmp_path / "a.jsonl", texts)
    work = workplace([str(tmp_path / "a.jsonl")], tokenizer, tmp_path / "cache")
    made = list(write_splits(work, range(len(work.plan.splits))))
    assert len(made) > 3
    assert sum(m.counts.get("empty", 0) for m in made) == 20
    assert all(m.counts["audited"] == 1 for m in made if m.rows > m.counts.get("empty", 0))


def rewritten(path: Path) -> None:
    """Write a file in place: as long as it was, another content, another time."""
    path.write_bytes(path.read_bytes().swapcase())


def test_a_file_written_between_inspection_and_reading_is_refused(
    tokenizer: str, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "a.jsonl", sentences(20, 1))
    work = workplace([str(tmp_path / "a.jsonl")], tokenizer, tmp_path / "cache")
    rewritten(tmp_path / "a.jsonl")
    with pytest.raises(SourceChanged, match=r"a\.jsonl: has content"):
        list(write_splits(work, [0]))


def test_a_file_that_is_touched_is_the_same(tokenizer: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", sentences(20, 1))
    work = workplace([str(tmp_path / "a.jsonl")], tokenizer, tmp_path / "cache")
    later = time.time_ns() + 10**10
    os.utime(tmp_path / "a.jsonl", ns=(later, later))
    assert sum(m.rows for m in write_splits(work, range(len(work.plan.splits)))) == 20


def test_a_file_written_while_it_is_read_is_refused(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "a.jsonl", sentences(20, 1))
    old = time.time_ns() - 10**11
    os.utime(tmp_path / "a.jsonl", ns=(old, old))
    work = workplace([str(tmp_path / "a.jsonl")], tokenizer, tmp_path / "cache", 1 << 20)
    read = worker.read

    def then_write(*arguments: Any) -> Any:
        yield from read(*arguments)
        rewritten(tmp_path / "a.jsonl")

    monkeypatch.setattr(worker, "read", then_write)
    with pytest.raises(SourceChanged, match="written while it was read"):
        list(write_splits(work, [0]))
    assert not list((tmp_path / "cache").glob("shards/*/manifest.json"))
