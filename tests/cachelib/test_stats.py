"""Statistics: what plain Python counts in the same rows."""

from __future__ import annotations

import json
import statistics as python
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.commands import stats as stats_module
from cachelib.commands.stats import (
    Lengths,
    Sources,
    group_of,
    histogram_range,
    statistics,
    token_field,
)
from cachelib.errors import CacheNotFound, CorruptData
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import publish
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from tests.cachelib.helpers import (
    EVERY_KIND,
    TOKENS,
    append_commit,
    random_columns,
    take,
    write_shard,
)

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=60)


@given(st.lists(SIZES, min_size=1, max_size=4))
def test_lengths_add_up(parts: list[list[int]]) -> None:
    total = Lengths()
    for part in parts:
        total = total.plus(Lengths.of(np.array(part, np.int64)))
    everything = np.array([size for part in parts for size in part])
    found = total.to_json()
    assert found is not None
    assert (found["min"], found["max"]) == (everything.min(), everything.max())
    assert found["mean"] == pytest.approx(python.fmean(everything.tolist()))
    for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert found[name] == np.quantile(everything, share, method="inverted_cdf")


def test_no_rows_have_no_lengths() -> None:
    assert Lengths().to_json() is None


@given(SIZES, st.floats(0, 1))
def test_powers_of_two_enclose_the_quantile(sizes: list[int], share: float) -> None:
    histogram = [0] * 8
    for size in sizes:
        histogram[size.bit_length()] += 1
    low, high = histogram_range(histogram, share)
    assert low <= Lengths.of(np.array(sizes)).quantile(share) <= high


def test_groups_are_the_first_part_of_a_name() -> None:
    assert [group_of(name) for name in ("a/b/c", "a", "web/x")] == ["a/", ".", "web/"]
    one = np.ones(4, np.int64)
    sources = Sources(["a/1", "b", "a/2", "c"], one, one * 10, one * 0)
    assert sources.groups().to_json() == [
        {"name": "a/", "rows": 2, "tokens": 20, "empty": 0},
        {"name": ".", "rows": 2, "tokens": 20, "empty": 0},
    ]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ([Field("x", "int8")], None),
        ([Field("a", "int8", ragged=True), Field("tokens", "int8", ragged=True)], "tokens"),
        ([Field("a", "int8", ragged=True), Field("tokens", "int8")], "a"),
    ],
)
def test_tokens_are_counted_or_what_stands_for_them(fields: list[Field], name: str | None) -> None:
    found = token_field(Schema(tuple(fields)))
    assert (None if found is None else found.name) == name


LENGTHS = [3, 0, 1, 2, 0, 5, 40, 1, 0, 2]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Three shards of two sources, one of which is in two of them, with rejects."""
    storage = Storage.at(tmp_path)
    columns = random_columns(EVERY_KIND, LENGTHS, seed=1)
    parts = [
        (0, 4, "web/a", []),
        (4, 4, "web/a", ["empty file"]),
        (4, 7, "web/b", ["bad", "worse"]),
        (7, 10, "web/a", ["bad"]),
    ]
    for number, (low, high, source, rejects) in enumerate(parts):
        manifest = write_shard(
            storage,
            EVERY_KIND,
            str(number),
            take(columns, slice(low, high)),
            source=source,
            rejects=rejects,
            start=10 * low + 5 * number,
        )
        append_commit(storage, EVERY_KIND, [publish(storage, manifest)])
    return storage


def test_what_is_counted(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "ROWS_AT_ONCE", 2)
    columns = random_columns(EVERY_KIND, LENGTHS, seed=1)
    tokens = columns["tokens"]
    assert isinstance(tokens, Ragged)
    seen: list[tuple[int, int]] = []
    found = statistics(storage, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert (found.version, found.field) == (3, "tokens")
    assert (found.rows, found.tokens, found.empty) == (10, sum(LENGTHS), 3)
    assert (found.smallest, found.largest) == (tokens.values.min(), tokens.values.max())
    assert (found.records, found.counts) == (14, {"audited": 4})
    assert found.histogram == [3, 2, 3, 1, 0, 0, 1]
    assert [(r.reason, r.count) for r in found.rejects] == [
        ("bad", 2), ("empty file", 1), ("worse", 1)
    ]  # fmt: skip
    example = found.rejects[0].example
    assert example is not None
    assert (example["source"], example["reason"]) == ("web/b", "bad")
    assert found.sources is not None
    assert found.sources.to_json() == [
        {"name": "web/a", "rows": 7, "tokens": 9, "empty": 2},
        {"name": "web/b", "rows": 3, "tokens": 45, "empty": 1},
    ]
    assert found.lengths is not None
    everything = np.array(LENGTHS)
    assert found.lengths.quantile(0.5) == np.quantile(everything, 0.5, method="inverted_cdf")
    as_json = json.loads(json.dumps(found.to_json()))
    assert as_json["groups"] == [{"name": "web/", "rows": 10, "tokens": 54, "empty": 3}]


def test_quick_ones_agree(storage: Storage) -> None:
    exact, quick = statistics(storage), statistics(storage, quick=True)
    assert quick.sources is None
    assert quick.lengths is None
    for name in ("rows", "tokens", "empty", "smallest", "largest", "histogram", "rejects"):
        assert getattr(quick, name) == getattr(exact, name)
    json.dumps(quick.to_json())


def test_an_older_version(storage: Storage) -> None:
    found = statistics(storage, 1)
    assert (found.version, found.rows, found.records) == (1, 4, 5)


def test_thousands_of_sources(tmp_path: Path) -> None:
    from cachelib.format.shard import ShardWriter

    storage = Storage.at(tmp_path)
    count = 5000
    columns = random_columns(TOKENS, [i % 3 for i in range(count)], seed=1)
    for shard in range(2):
        writer = ShardWriter(storage, TOKENS, str(shard))
        index = np.array([writer.source(f"d{i % 7}/{i}") for i in range(count)], np.uint32)
        writer.append(columns, index, np.arange(count))
        manifest = publish(storage, writer.finish(covers=(), counts={}, task={}))
        append_commit(storage, TOKENS, [manifest])
    found = statistics(storage).sources
    assert found is not None
    assert len(found.names) == count
    assert found.rows.tolist() == [2] * count
    assert found.tokens.tolist() == [2 * (i % 3) for i in range(count)]
    assert found.empty.sum() == 2 * (count // 3 + 1)
    assert len(found.groups().names) == 7


def test_fields_without_rows_of_tokens(tmp_path: Path) -> None:
    schema = Schema((Field("x", "int8"),))
    storage = Storage.at(tmp_path)
    manifest = write_shard(storage, schema, "a", random_columns(schema, [0] * 5, 0))
    append_commit(storage, schema, [publish(storage, manifest)])
    found = statistics(storage)
    assert (found.field, found.rows, found.tokens) == (None, 5, 0)
    json.dumps(found.to_json())


def test_what_cannot_be_counted(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(CacheNotFound):
        statistics(Storage.at(tmp_path / "x"))
    next(tmp_path.glob("shards/2/*/details.json")).unlink()
    with pytest.raises(CorruptData, match=r"details\.json is missing"):
        statistics(storage)
