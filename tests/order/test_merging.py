"""The merge of sorted runs, against a sort of all rows in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelib.errors import CorruptData
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import Manifest, publish
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from pipelines import merging
from pipelines.merging import Block, Runs, merged
from pipelines.order.orders import Order
from pipelines.order.passes import Share, plan_ranges
from pipelines.runs import RunWriter

SCHEMA = Schema(
    (
        Field("tokens", "uint16", ragged=True, chunk=8),
        Field("mask", "bool", ragged=True, like="tokens", chunk=8),
        Field("id", "uint8", ragged=True, text=True, chunk=8),
        Field("score", "float32", chunk=4),
        Field("frame", "int16", shape=(2,), chunk=4),
    )
)

Row = dict[str, Any]
"""A value of each field, the name of its source and its position."""

ORDERS = [Order("shuffle", seed=3), *(Order("by", field=f) for f in ("tokens", "id", "score"))]


def written(storage: Storage, order: Order, number: int, rows: Sequence[Row]) -> Manifest:
    """A run of rows given in any order, in two batches."""
    writer = RunWriter(storage, SCHEMA, f"run{number}", order)
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        if not part:
            continue
        tokens = Ragged.from_rows([row["tokens"] for row in part], np.uint16)
        writer.append(
            {
                "tokens": tokens,
                "mask": Ragged(tokens.values % 2 == 1, tokens.offsets),
                "id": Ragged.from_rows(
                    [np.frombuffer(r["id"].encode(), "u1") for r in part], np.uint8
                ),
                "score": np.array([row["score"] for row in part], np.float32),
                "frame": np.array([[len(row["tokens"]), -1] for row in part], np.int16),
            },
            np.array([writer.source(row["source"]) for row in part], np.uint32),
            np.array([row["position"] for row in part], np.int64),
        )
    return publish(storage, writer.finish(covers=(), counts={}, task={}))


def unpacked(runs: Runs, blocks: Iterator[Block]) -> list[Row]:
    found = []
    for block in blocks:
        columns = block.columns
        for i in range(len(block)):
            row = {
                "tokens": columns["tokens"][i].tolist(),
                "id": bytes(columns["id"][i]).decode(),
                "score": float(columns["score"][i]),
                "source": runs.names.sorted[block.ranks[i]],
                "position": int(block.positions[i]),
            }
            assert columns["mask"][i].tolist() == [t % 2 == 1 for t in row["tokens"]]
            assert columns["frame"][i].tolist() == [len(row["tokens"]), -1]
            found.append(row)
    return found


def place(row: Row) -> tuple[str, int]:
    return row["source"], row["position"]


def naive(order: Order, rows: Sequence[Row]) -> list[Row]:
    value = {"tokens": lambda v: len(v), "id": lambda v: v.encode(), "score": lambda v: v}
    return sorted(rows, key=lambda r: (value[order.field](r[order.field]), *place(r)))


@st.composite
def parts(draw: st.DrawFn) -> list[list[Row]]:
    """Rows of some sources, dealt out to runs."""
    places = draw(
        st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50)), unique=True, max_size=60)
    )
    runs: list[list[Row]] = [[] for _ in range(draw(st.integers(1, 5)))]
    for source, position in places:
        row = {
            "tokens": draw(st.lists(st.integers(0, 99), max_size=30)),
            "id": draw(st.text(st.sampled_from("aé\0"), max_size=3)),
            "score": draw(st.sampled_from([-1.5, 0.0, 2.0, 3.0])),
            "source": source,
            "position": position,
        }
        draw(st.sampled_from(runs)).append(row)
    return runs


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "BLOCK_BYTES", 1)


@settings(deadline=None, max_examples=25)
@given(parts(), st.sampled_from(ORDERS), st.sampled_from([1, 300, 1 << 20]), st.integers(1, 5))
def test_ranges_of_runs_are_all_rows_in_order(
    found: list[list[Row]], order: Order, budget: int, ranges: int
) -> None:
    everything = [row for rows in found for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage.at(folder)
        manifests = [written(storage, order, i, rows) for i, rows in enumerate(found)]
        merge = plan_ranges(order, [m for m in manifests if m.rows], ranges, manifests)
        if not everything:
            assert merge.shares == ()
            return
        runs = Runs(storage, SCHEMA, merge.runs, order)
        rows = [
            row for share in merge.shares for row in unpacked(runs, merged(runs, share, budget))
        ]
    assert sorted(rows, key=place) == sorted(everything, key=place)
    if order.kind == "by":
        assert rows == naive(order, everything)


def test_a_shuffle_is_the_same_from_any_runs(tmp_path: Path) -> None:
    rows = [
        {"tokens": [i], "id": "", "score": 0.0, "source": "abc"[i % 3], "position": i}
        for i in range(300)
    ]
    orders = []
    for number, step in enumerate((300, 7, 50)):
        storage = Storage.at(tmp_path / str(number))
        manifests = [
            written(storage, ORDERS[0], first, rows[first : first + step])
            for first in range(0, 300, step)
        ]
        runs = Runs(storage, SCHEMA, manifests, ORDERS[0])
        orders.append([place(r) for r in unpacked(runs, merged(runs, Share(0, len(manifests))))])
    assert orders[0] == orders[1] == orders[2] != sorted(orders[0])


def test_memory_is_bounded_by_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 runs of 40 KB no more than the budget and a half is ever held in buffers."""
    draw = np.random.default_rng(0)
    storage, budget = Storage.at(tmp_path), 60_000
    manifests = []
    for number in range(20):
        rows = [
            {"tokens": [7] * int(n), "id": "", "score": float(s), "source": "a",
             "position": 1000 * number + i}
            for i, (n, s) in enumerate(
                zip(draw.integers(0, 60, 400), draw.random(400), strict=True)
            )
        ]  # fmt: skip
        manifests.append(written(storage, ORDERS[3], number, rows))
    runs = Runs(storage, SCHEMA, manifests, ORDERS[3])
    held: list[int] = []
    fill = merging._fill

    def watched(runs: Runs, buffers: list[Block | None], *others: Any) -> None:
        fill(runs, buffers, *others)
        held.append(sum(int(b.sizes.sum()) for b in buffers if b is not None))

    monkeypatch.setattr(merging, "_fill", watched)
    blocks = list(merged(runs, Share(0, 20), budget))
    assert sum(map(len, blocks)) == 8000
    assert max(held) <= 1.5 * budget
    assert 8 < len(blocks) < 60  # neither row by row nor at once


def test_a_run_that_is_not_sorted_is_an_error(tmp_path: Path) -> None:
    rows = [
        {"tokens": [], "id": "", "score": float(-i), "source": "a", "position": i} for i in range(9)
    ]
    storage = Storage.at(tmp_path)
    manifest = written(storage, ORDERS[1], 0, rows)  # by their lengths, which are all alike
    runs = Runs(storage, SCHEMA, [manifest], ORDERS[3])
    with pytest.raises(CorruptData, match=r"rows 0 to 9 are not in the order by\(score\)"):
        list(merged(runs, Share(0, 1)))


def test_only_the_rows_of_a_range_are_read(tmp_path: Path) -> None:
    """Of the values; keys are read between two samples."""
    rows = [
        {"tokens": [i % 100] * 4, "id": "", "score": float(i), "source": "a", "position": i}
        for i in range(2000)
    ]
    storage = Storage.at(tmp_path)
    manifest = written(storage, ORDERS[3], 0, rows)
    runs = Runs(storage, SCHEMA, [manifest], ORDERS[3])
    asked: list[tuple[str, int]] = []
    read = runs._arrays.read

    def counting(field: Field, kind: Any, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        asked.append((field.name, int(lengths.sum())))
        return read(field, kind, starts, lengths)

    runs._arrays.read = counting  # type: ignore[method-assign]
    merge = plan_ranges(ORDERS[3], [manifest], 10, [manifest])
    share = merge.shares[4]
    found = unpacked(runs, merged(runs, share))
    assert share.lower is not None
    assert share.upper is not None
    assert [r["position"] for r in found] == list(range(share.lower[-1], share.upper[-1]))
    assert 150 < len(found) < 250
    assert sum(n for name, n in asked if name == "frame") == len(found)
    assert sum(n for name, n in asked if name == "_position") <= len(found) + 2 * 2000 // 64
