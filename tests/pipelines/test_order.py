"""Builds whose rows are stored in another order: the same on every path, each row once."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cachelib
import pipelines
from cachelib.commands.stats import statistics
from cachelib.errors import BuildFailed, CacheNotFound, LedgerConflict, StorageError
from cachelib.format.digest import digest_rows
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from cachelib.verification import verify
from pipelines import launcher, ranges
from pipelines.cli import main
from pipelines.config import ConfigError, build_config
from pipelines.launcher import build
from pipelines.maintenance.gc import gc
from pipelines.maintenance.launcher import compact, delete
from pipelines.order.passes import Merge
from pipelines.plan import Plan
from pipelines.progress import Progress
from pipelines.tasks import load_plan
from tests.pipelines.conftest import EOS, sentences, write_jsonl
from tests.reader import randomness

SMALL = 4096
ORDERS = ("shuffle(7)", "by(score)", "by(id)", "by(tokens)")


@pytest.fixture
def options(corpus: Path, tokenizer: str, tmp_path: Path) -> dict[str, Any]:
    """A build of the corpus in many splits; tests change what they are about."""
    return {
        "inputs": [str(corpus)],
        "to": str(tmp_path / "cache"),
        "tokenizer": tokenizer,
        "keep": {"id": "str", "score": "float32"},
        "split_bytes": SMALL,
    }


@pytest.fixture
def plain(options: dict[str, Any], tmp_path: Path) -> cachelib.Cache:
    """The rows in the order of the sources."""
    build(**{**options, "to": str(tmp_path / "plain"), "split_bytes": 1 << 20})
    return cachelib.open(tmp_path / "plain")


MASK = 2**64 - 1


def split_mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def shuffle_key(seed: int, source: str, position: int) -> tuple[int, int]:
    """The hash of docs/format.md, anew."""
    name = hashlib.blake2b(
        source.encode(), digest_size=16, person=b"forebay.order", salt=seed.to_bytes(8, "little")
    ).digest()
    a, b = (int.from_bytes(name[i : i + 8], "little") for i in (0, 8))
    return split_mix(split_mix(position ^ a) ^ b), split_mix(split_mix(position ^ b) ^ a)


def naive(cache: cachelib.Cache, order: str) -> tuple[str, np.ndarray]:
    """The digest of the rows of a cache sorted in memory, and the order itself."""
    rows = cache.take(np.arange(len(cache)))
    places = [(p.source, p.position) for p in cache.provenance(np.arange(len(cache)))]

    def key(row: int) -> tuple[Any, ...]:
        source, position = places[row]
        match order.removesuffix(")").split("("):
            case ["shuffle", seed]:
                return (*shuffle_key(int(seed), source, position), source, position)
            case ["by", "tokens"]:
                return len(rows["tokens"][row]), source, position
            case ["by", "id"]:
                return bytes(rows["id"][row]), source, position
            case ["by", name]:
                value = float(rows[name][row])
                return math.isnan(value), 0 if math.isnan(value) else value, source, position
        raise AssertionError(order)

    sequence = np.array(sorted(range(len(cache)), key=key), np.int64)
    return str(digest_rows(cache.schema, cache.take(sequence))), sequence


def digest_of(path: str) -> str:
    return str(cachelib.open(path).snapshot.digest)


def ids_of(path: str) -> list[str]:
    cache = cachelib.open(path)
    ids = cache.take(np.arange(len(cache)))["id"]
    return [bytes(each).decode() for each in ids]


@pytest.mark.parametrize("order", ORDERS)
def test_rows_are_those_of_a_sort_in_memory(
    options: dict[str, Any], plain: cachelib.Cache, order: str
) -> None:
    summary = build(**options, order=order)
    expected, sequence = naive(plain, order)
    cache = cachelib.open(options["to"])
    assert str(cache.snapshot.digest) == expected
    rows = np.arange(len(cache))
    assert cache.provenance(rows) == plain.provenance(sequence)
    assert (summary.rows, summary.new_rows, summary.records) == (500, 500, 500)
    assert not list(verify(Storage.at(options["to"])))
    (commit,) = Ledger(cache.storage).commits(0, 1)
    assert commit.seals
    assert cache.version == 0
    assert build(**options, order=order).new_rows == 0


@pytest.mark.parametrize(
    ("order", "changed", "arguments"),
    [
        ("by(id)", {"workers": 1}, ()),
        ("shuffle(7)", {"workers": 3, "split_bytes": 3000}, ()),
        ("by(id)", {}, ("--direct_runner_bundle_repeat=1",)),
        ("shuffle(7)", {"workers": 2, "processes": True, "split_bytes": 20_000}, ()),
        ("shuffle(7)", {"runner": "bundles"}, ()),
        ("by(tokens)", {"split_bytes": 1 << 20}, ()),
    ],
    ids=["one thread", "three threads", "bundles repeated", "processes", "BundleBasedDirectRunner",
         "one run"],
)  # fmt: skip
def test_every_runner_and_split_size_gives_the_same_content(
    options: dict[str, Any], plain: cachelib.Cache, order: str, changed: dict[str, Any],
    arguments: tuple[str, ...],
) -> None:  # fmt: skip
    build(**{**options, **changed, "order": order}, beam_arguments=arguments)
    assert digest_of(options["to"]) == naive(plain, order)[0]


def test_the_order_of_a_listing_changes_nothing(
    options: dict[str, Any], corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Names and positions count, whatever the order of the sources in the plan."""
    build(**options, order="shuffle(7)")
    find = launcher.find_sources

    def reversed_(config: Any) -> Any:
        found = find(config)
        return type(found)(**{**vars(found), "sources": found.sources[::-1]})

    monkeypatch.setattr(launcher, "find_sources", reversed_)
    build(**{**options, "to": str(tmp_path / "other")}, order="shuffle(7)")
    assert digest_of(str(tmp_path / "other")) == digest_of(options["to"])


@pytest.mark.parametrize(("read_bytes", "passes"), [(1, 1), (64 << 10, 2), (500, 2)])
def test_runs_are_merged_in_two_passes_where_reads_would_be_small(
    options: dict[str, Any], plain: cachelib.Cache, monkeypatch: pytest.MonkeyPatch,
    read_bytes: int, passes: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("pipelines.order.passes.READ_BYTES", read_bytes)
    made: list[Merge] = []
    load = ranges.load_merge

    def noting(cache: str, plan: str, key: str) -> Merge:
        made.append(load(cache, plan, key))
        return made[-1]

    monkeypatch.setattr(launcher, "load_merge", noting)
    for order in ("shuffle(7)", "by(tokens)"):
        made.clear()
        to = f"{options['to']}-{order[:2]}"
        build(**{**options, "to": to, "order": order})
        assert digest_of(to) == naive(plain, order)[0]
        assert [merge.final for merge in made] == [False, True][-passes:]
        assert len(made[-1].shares) > 5
        assert passes == 1 or len(made[-1].runs) < len(made[0].runs)


def test_a_shuffled_cache_is_random_when_read_in_sequence(tokenizer: str, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(16):
        write_jsonl(folder / f"{number:02d}.jsonl", ["a"] * 512, 512 * number)
    orders = []
    for seed in (0, 1):
        to = str(tmp_path / str(seed))
        build(inputs=[str(folder)], tokenizer=tokenizer, to=to, keep={"id": "str"},
              order=f"shuffle({seed})", split_bytes=16 << 10)  # fmt: skip
        orders.append(np.array([int(name[1:]) for name in ids_of(to)]))
        for check in randomness.ONE_ORDER:
            check(orders[-1], len(orders[-1]))
    assert np.array_equal(np.sort(orders[0]), np.arange(16 * 512))
    randomness.unrelated(orders[0], orders[1], len(orders[0]))


def test_records_without_a_row_are_counted_and_kept(
    options: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    bad = [b'{"text": 3}', b"not json", b'{"id": "x"}']
    lines = (corpus / "a.jsonl").read_bytes().splitlines()
    for place, line in zip((0, 70, 201), bad, strict=True):
        lines.insert(place, line)
    (corpus / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (corpus / "empty.jsonl").write_bytes(b"")
    found = {}
    for order in ("source", "shuffle(1)"):
        to = str(tmp_path / order)
        summary = build(**{**options, "to": to, "order": order}, max_reject_rate=0.1)
        told = statistics(Storage.at(to))
        found[order] = (
            summary.rejects, summary.counts, summary.records, told.rejects, told.records,
            sorted(told.sources.to_json(), key=str) if told.sources else None,
        )  # fmt: skip
        assert not list(verify(Storage.at(to)))
        assert build(**{**options, "to": to, "order": order}, max_reject_rate=0.1).records == 0
    assert sum(found["source"][0].values()) == 3
    assert {r.reason: r.count for r in found["shuffle(1)"][3]} == found["source"][0]
    assert all(reject.example is not None for reject in found["shuffle(1)"][3])
    assert found["shuffle(1)"] == found["source"]


def test_too_many_rejects_fail_before_anything_is_committed(
    options: dict[str, Any], corpus: Path
) -> None:
    (corpus / "z.jsonl").write_bytes(b"no\n" * 50)
    with pytest.raises(BuildFailed, match=r"50 of 550 records were rejected"):
        build(**options, order="shuffle(1)")
    assert Ledger(Storage.at(options["to"])).head() is None
    assert build(**options, order="shuffle(1)", max_reject_rate=0.5).rows == 500
    assert not (Path(options["to"]) / "_runs").exists()


def test_an_append_is_a_plan_and_an_order_of_its_own(
    options: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    later = corpus / "deep"
    shutil.move(later, tmp_path / "deep")
    build(**options, order="shuffle(7)")
    first = ids_of(options["to"])
    shutil.move(tmp_path / "deep", later)
    build(**options, order="by(score)")
    found = ids_of(options["to"])
    assert found[:450] == first
    assert found[450:] == [f"r{i}" for i in range(450, 500)]
    write_jsonl(corpus / "e.jsonl", sentences(20, 9), 500)
    build(**options)
    assert ids_of(options["to"])[500:] == [f"r{i}" for i in range(500, 520)]
    snapshot = cachelib.open(options["to"]).snapshot
    assert snapshot.eras.tolist() == [450, 500, 520]
    assert not list(verify(Storage.at(options["to"])))


def test_an_append_of_no_rows(options: dict[str, Any], corpus: Path) -> None:
    build(**options, order="shuffle(7)")
    (corpus / "e.jsonl").write_bytes(b"no\n" * 3)
    summary = build(**options, order="shuffle(7)", max_reject_rate=1)
    assert (summary.rows, summary.records, summary.version) == (500, 3, 1)
    assert build(**options, order="shuffle(7)", max_reject_rate=1).records == 0
    assert not list(verify(Storage.at(options["to"])))


def test_a_new_cache_of_no_rows_is_refused(tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"no\n")
    with pytest.raises(BuildFailed, match="gave no row at all"):
        build(inputs=[str(tmp_path / "a.jsonl")], tokenizer=tokenizer, to=str(tmp_path / "cache"),
              order="shuffle(0)", max_reject_rate=1)  # fmt: skip


def test_what_is_held_out_is_put_in_order_as_well(options: dict[str, Any]) -> None:
    build(**options, order="by(id)", holdout={"fraction": 0.2, "seed": 3})
    both = [ids_of(options["to"]), ids_of(options["to"] + "-holdout")]
    assert all(ids == sorted(ids) for ids in both)
    assert sorted(both[0] + both[1]) == sorted(f"r{i}" for i in range(500))


def test_nans_come_last(tokenizer: str, tmp_path: Path) -> None:
    values = [1.5, math.nan, -2.0, math.inf, math.nan, -0.0, 0.0]
    pq.write_table(
        pa.table({"text": ["a"] * 7, "v": values, "id": [str(i) for i in range(7)]}),
        tmp_path / "a.parquet",
    )
    build(inputs=[str(tmp_path / "a.parquet")], tokenizer=tokenizer, to=str(tmp_path / "cache"),
          keep={"id": "str", "v": "float64"}, order="by(v)")  # fmt: skip
    assert ids_of(str(tmp_path / "cache")) == ["2", "5", "6", "0", "3", "1", "4"]


def stopping_after(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, count: int
) -> Callable[[], None]:
    """Let a function of a module stop the build when it is called once too often."""
    function = getattr(owner, name)
    calls = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > count:
            raise StorageError("stopped")
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return lambda: monkeypatch.setattr(owner, name, function)


@pytest.mark.parametrize(
    ("name", "count"),
    [("_merge_share", 0), ("_merge_share", 4), ("_carry_over", 0), ("commit_wave", 0),
     ("remove_runs", 0)],
)  # fmt: skip
def test_a_stopped_merge_goes_on(
    options: dict[str, Any], plain: cachelib.Cache, monkeypatch: pytest.MonkeyPatch, name: str,
    count: int,
) -> None:  # fmt: skip
    owner = launcher if name == "remove_runs" else ranges
    mend = stopping_after(monkeypatch, owner, name, count)
    with pytest.raises(Exception, match="stopped"):
        build(**options, order="shuffle(7)")
    cache = Path(options["to"])
    before = {p: p.read_bytes() for p in cache.glob("**/manifest.json")}
    assert before
    assert (cache / "_runs").exists()
    if Ledger(Storage.at(cache)).head() is None:  # nothing says what a gc may delete
        with pytest.raises(CacheNotFound, match=r"but \d+ objects .* of a build that committed"):
            gc(cache)
    mend()
    summary = build(**options, order="shuffle(7)")
    assert summary.rows == 500
    assert summary.new_rows == (0 if name == "remove_runs" else 500)
    assert digest_of(options["to"]) == naive(plain, "shuffle(7)")[0]
    assert not (cache / "_runs").exists()
    kept = [p for p in before if "_runs" not in p.parts]
    assert all(p.read_bytes() == before[p] for p in kept)
    assert bool(kept) == (name != "_merge_share" or count > 0)


def test_runs_that_are_written_are_not_written_again(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mend = stopping_after(monkeypatch, ranges, "_merge_share", 0)
    with pytest.raises(Exception, match="stopped"):
        build(**options, order="by(id)")
    mend()
    stopping_after(monkeypatch, launcher, "write", 0)
    states: list[Progress] = []
    summary = build(**options, order="by(id)", show=states.append)
    assert summary.earlier_tokens == summary.new_tokens
    assert summary.bytes == 0
    assert {state.stage for state in states} == {"pass"}


def test_another_order_of_a_stored_plan_is_another_plan(
    options: dict[str, Any], plain: cachelib.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend = stopping_after(monkeypatch, ranges, "_merge_share", 0)
    with pytest.raises(Exception, match="stopped"):
        build(**options, order="shuffle(7)")
    mend()
    build(**options, order="by(id)")
    assert digest_of(options["to"]) == naive(plain, "by(id)")[0]
    assert not (Path(options["to"]) / "_runs").exists()


def test_a_builder_whose_plan_another_one_commits_first(
    options: dict[str, Any], plain: cachelib.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one removes the runs while this one merges them."""
    merge = ranges._merge_share
    begun: list[bool] = []

    def overtaken(*args: Any) -> Any:
        if not begun:
            begun.append(True)
            pipelines.build(**options, order="shuffle(7)")
            assert not (Path(options["to"]) / "_runs").exists()
        return merge(*args)

    monkeypatch.setattr(ranges, "_merge_share", overtaken)
    summary = build(**options, order="shuffle(7)", workers=1)
    assert summary.rows == 500
    assert digest_of(options["to"]) == naive(plain, "shuffle(7)")[0]
    assert not (Path(options["to"]) / "_runs").exists()
    assert not list(verify(Storage.at(options["to"])))


def test_a_builder_that_another_plan_comes_before(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = ranges._merge_share
    begun: list[bool] = []

    def overtaken(*args: Any) -> Any:
        if not begun:
            begun.append(True)
            pipelines.build(**options)
        return merge(*args)

    monkeypatch.setattr(ranges, "_merge_share", overtaken)
    with pytest.raises(LedgerConflict, match="made by another build"):
        build(**options, order="shuffle(7)", workers=1)
    assert build(**options, order="shuffle(7)").new_rows == 0
    assert ids_of(options["to"]) == [f"r{i}" for i in range(500)]
    assert not (Path(options["to"]) / "_runs").exists()


def test_progress_tells_runs_and_passes(options: dict[str, Any]) -> None:
    states: list[Progress] = []
    build(**options, order="shuffle(7)", show=states.append)
    assert list(dict.fromkeys(state.stage for state in states)) == [
        "run wave", "pass"
    ]  # fmt: skip
    assert all(state.bytes <= state.total for state in states)
    assert (states[-1].rows, states[-1].bytes) == (500, states[-1].total)
    assert states[-1].line().startswith("pass 2/2  100%")
    status = list((Path(options["to"]) / "_status").iterdir())
    assert len(status) == 1


def test_plans_in_source_order_are_named_as_before(
    options: dict[str, Any], plain: cachelib.Cache
) -> None:
    (name,) = (p.stem for p in (Path(plain.storage.url[7:]) / "_plans").iterdir())
    plan = load_plan(plain.storage.url, name)
    assert "order" not in plan.to_json()
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.name == name
    build(**options, order="by(id)")
    (name,) = (p.stem for p in (Path(options["to"]) / "_plans").iterdir())
    ordered = load_plan(Storage.at(options["to"]).url, name)
    assert ordered.to_json()["order"] == "by(id)"
    assert Plan.from_json(ordered.to_json()) == ordered
    assert ordered.waves == (0, len(ordered.splits))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("random", r"^build: order \(--order\) is 'random': expected source, shuffle\(SEED\) "
         r"with a seed from 0 to 2\*\*64 - 1, or by\(FIELD\)$"),
        ("by(length)", r"order \(--order\) is 'by\(length\)': field 'length' is not kept; fields "
         r"to order by: tokens \(the number of tokens\), and the kept ones: id, score$"),
    ],
)  # fmt: skip
def test_orders_that_cannot_be(options: dict[str, Any], order: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_config({**options, "order": order})


def test_the_command(
    options: dict[str, Any], tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*options["inputs"], "--tokenizer", tokenizer, "--to", options["to"], "--keep",
                 "id", "--order", "shuffle(7)", "--split-bytes", "4096", "--eos", EOS]  # fmt: skip
    assert main(["plan", *arguments]) == 0
    said = capsys.readouterr().out
    assert "order      shuffle(7): about 17 sorted runs, then 11 ranges of keys (two passes" in said
    assert main(["build", *arguments, "--quiet"]) == 0
    assert len(ids_of(options["to"])) == 500


def test_shards_in_order_are_packed_and_forgotten_like_others(
    options: dict[str, Any], corpus: Path
) -> None:
    with (corpus / "a.jsonl").open("ab") as file:
        file.write(b"no secret\n")
    build(**options, order="by(id)", max_reject_rate=0.1)
    storage = Storage.at(options["to"])
    before = cachelib.open(options["to"])
    rejects = statistics(storage).rejects
    compact(options["to"], shard_bytes=1 << 20)
    after = cachelib.open(options["to"])
    assert after.snapshot.digest == before.snapshot.digest
    assert len(after.snapshot.entries) < 5 < len(before.snapshot.entries)
    assert not list(verify(storage))
    assert {r.reason: r.count for r in statistics(storage).rejects} == {
        r.reason: r.count for r in rejects
    }
    delete(options["to"], sources=["a.jsonl"])
    compact(options["to"], shard_bytes=1 << 20)
    assert len(cachelib.open(options["to"]).dataset()) == 300
    entries = cachelib.open(options["to"]).snapshot.entries
    for shard in entries.shard:
        files = (p for p in (Path(options["to"]) / "shards" / shard).rglob("*") if p.is_file())
        assert not any(b"secret" in file.read_bytes() for file in files)


def test_gc_leaves_a_merge_alone_and_removes_runs_that_nobody_needs(
    options: dict[str, Any], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(corpus / "deep", corpus.parent / "deep")
    build(**options)
    shutil.move(corpus.parent / "deep", corpus / "deep")
    write_jsonl(corpus / "e.jsonl", sentences(200, 9), 500)
    merge = ranges._merge_share
    cache = Path(options["to"])

    def collected(place: Storage, target: Storage, *others: Any) -> Any:
        made = merge(place, target, *others)
        if others[2] == 1:  # written, not published
            gc(options["to"], younger=0)
        if others[2] == 3:
            raise StorageError("stopped")
        return made

    monkeypatch.setattr(ranges, "_merge_share", collected)
    with pytest.raises(Exception, match="stopped"):
        build(**options, order="by(id)", workers=1)
    monkeypatch.setattr(ranges, "_merge_share", merge)
    gc(options["to"], younger=0)
    assert (cache / "_runs").exists()
    shutil.copytree(cache, cache.parent / "other")
    build(**options, order="by(id)")
    assert sorted(ids_of(options["to"])[450:]) == ids_of(options["to"])[450:]
    assert not list(verify(Storage.at(options["to"])))
    # The same place of the ledger is taken by another plan, whose builder is killed at once.
    other = str(cache.parent / "other")
    monkeypatch.setattr(launcher, "remove_runs", lambda storage: None)
    build(**{**options, "to": other})
    assert (cache.parent / "other" / "_runs").exists()
    gc(other, younger=0)
    assert not (cache.parent / "other" / "_runs").exists()
