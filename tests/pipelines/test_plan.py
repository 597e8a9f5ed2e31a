"""Splits, waves, coverage and the merge: pure arithmetic, by property."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.errors import CorruptData, SourceChanged
from cachelib.format import coverage
from cachelib.format.coverage import Taken, union
from cachelib.format.schema import Field, Schema
from cachelib.format.shard import Cover, Manifest
from pipelines import plan as planning
from pipelines.merge import in_order
from pipelines.plan import (
    Piece,
    Plan,
    Split,
    check_unchanged,
    make_splits,
    make_waves,
    remaining,
    split_unit,
    spread,
)
from pipelines.sources.records import Reading, Source

SPLIT = 1000


def source(name: str, size: int, format: str = "jsonl", **more: object) -> Source:
    extent = size if format in ("jsonl", "text-lines") else None
    options = {"compression": None, "extent": extent, "version": f"{size}-x", **more}
    return Source(0, name, name, size, format=format, **options)  # type: ignore[arg-type]


@st.composite
def sources(draw: st.DrawFn) -> list[Source]:
    found = []
    for i in range(draw(st.integers(1, 8))):
        size = draw(st.integers(0, 5000))
        kind = draw(st.sampled_from(["plain", "packed", "rows"]))
        if kind == "plain":
            found.append(source(f"s{i}", size))
        elif kind == "packed":
            found.append(source(f"s{i}", size, compression="gz", extent=None))
        else:
            rows = draw(st.integers(0, 300))
            at = tuple(sorted(draw(st.sets(st.integers(1, max(1, rows - 1)), max_size=6))))
            at = tuple(p for p in at if p < rows)
            found.append(source(f"s{i}", size, "parquet", extent=rows, splits_at=at))
    return found


def plan_of(found: list[Source], split_bytes: int = SPLIT) -> Plan:
    splits = make_splits(remaining(found, {}).pieces, found, split_bytes)
    return Plan(
        parent="",
        parent_version=-1,
        schema=Schema((Field("tokens", "uint16", ragged=True),)),
        identity={"processor": "tokens"},
        reading=Reading(),
        tokenizer={},
        sources=tuple(found),
        splits=splits,
        waves=make_waves(splits, split_bytes),
        split_bytes=split_bytes,
    )


@given(sources(), st.integers(1, 4000))
def test_splits_hold_every_position_once_in_order(found: list[Source], split_bytes: int) -> None:
    plan = plan_of(found, split_bytes)
    pieces = [piece for split in plan.splits for piece in split.pieces]
    for index, each in enumerate(found):
        mine = [piece for piece in pieces if piece.source == index]
        assert mine[0].start == 0
        assert mine[-1].stop == each.extent
        for before, after in itertools.pairwise(mine):
            assert before.stop == after.start
            if each.format == "parquet":
                assert after.start in each.splits_at
    assert [piece.source for piece in pieces] == sorted(piece.source for piece in pieces)


@given(st.lists(st.integers(0, 3000), max_size=200))
def test_waves_hold_every_split_once_and_begin_small(sizes: list[int]) -> None:
    splits = [Split((Piece(0, 0, None),), size) for size in sizes]
    limits = make_waves(splits, SPLIT)
    assert limits[0] == 0
    assert limits[-1] == len(splits)
    assert all(a < b for a, b in itertools.pairwise(limits))
    if len(splits) > 1:
        assert limits[1] == 1


def test_waves_double() -> None:
    splits = [Split((Piece(0, 0, None),), SPLIT)] * 31
    assert make_waves(splits, SPLIT) == (0, 1, 3, 7, 15, 31)
    assert make_waves([*splits, splits[0]], SPLIT) == (0, 1, 3, 7, 15, 32)


@given(sources(), st.integers(0, 5))
def test_waves_that_one_pipeline_writes_are_few_or_one(found: list[Source], splits: int) -> None:
    plan = plan_of(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "PIPELINE_SPLITS", splits)
        done = 0
        while done < plan.wave_count:
            waves = plan.together(done)
            assert waves.start == done < waves.stop <= plan.wave_count
            size = sum(plan.splits[split].size for split in plan.splits_of(waves))
            assert len(waves) == 1 or size <= splits * plan.split_bytes
            done = waves.stop


@given(sources())
def test_a_plan_survives_json(found: list[Source]) -> None:
    plan = plan_of(found)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.name == plan.name


def test_a_plan_does_not_depend_on_where_its_sources_lie() -> None:
    assert plan_of([source("a", 10)]).name == plan_of([source("a", 10)]).name
    assert plan_of([source("a", 10)]).name != plan_of([source("a", 11)]).name


def covers_of(piece: Piece, each: Source, draw: random.Random, last: int) -> list[Cover]:
    stop = piece.stop if piece.stop is not None else piece.start + draw.randint(0, 50)
    cuts = sorted({piece.start, stop, *(draw.randint(piece.start, stop) for _ in range(2))})
    limits = list(itertools.pairwise(cuts)) or [(stop, stop)]
    whole = piece.stop is None or piece.stop == each.extent
    return [
        Cover(each.name, a, b, whole and i == len(limits) - 1) for i, (a, b) in enumerate(limits)
    ]


def manifests_of(plan: Plan, wave: int, seed: int) -> list[Manifest]:
    """Manifests as a worker could have made them, parts cut at random."""
    draw = random.Random(seed)
    made = []
    for split in plan.wave(wave):
        parts: list[list[Cover]] = [[]]
        for piece in plan.splits[split].pieces:
            for cover in covers_of(piece, plan.sources[piece.source], draw, 0):
                if parts[-1] and draw.random() < 0.5:
                    parts.append([])
                parts[-1].append(cover)
        for number, covers in enumerate(parts):
            following = None if number == len(parts) - 1 else [0, covers[-1].stop]
            task = {"plan": plan.name, "split": split, "part": number, "next": following}
            made.append(
                Manifest(f"{split}.{number}", "x", 1, {}, "1:0", tuple(covers), 1, {}, {}, task)
            )
    return made


@given(sources(), st.integers(0, 1000))
def test_merge_orders_what_was_planned_and_coverage_then_lacks_nothing(
    found: list[Source], seed: int
) -> None:
    plan = plan_of(found)
    deltas = []
    for wave in range(plan.wave_count):
        manifests = manifests_of(plan, wave, seed)
        repeated = manifests + manifests[:2]
        random.Random(seed).shuffle(repeated)
        ordered = in_order(plan, plan.name, plan.wave(wave), repeated)
        assert ordered == manifests
        versions = {each.name: each.version for each in found}
        deltas.append(coverage.delta([c for m in ordered for c in m.covers], versions))
    taken = coverage.merge(deltas)
    work = remaining(found, taken)
    assert work.pieces == ()
    assert work.reused == len(found)


@given(sources(), st.integers(0, 1000), st.data())
def test_merge_refuses_a_missing_a_changed_and_an_unplanned_part(
    found: list[Source], seed: int, data: st.DataObject
) -> None:
    plan = plan_of(found)
    manifests = manifests_of(plan, 0, seed)
    first = plan.wave(0)
    victim = data.draw(st.integers(0, len(manifests) - 1))
    with pytest.raises(CorruptData):
        in_order(plan, plan.name, first, [m for i, m in enumerate(manifests) if i != victim])
    chosen = manifests[victim]
    twin = Manifest(**{**vars(chosen), "attempt": "y"})
    with pytest.raises(CorruptData, match="two manifests"):
        in_order(plan, plan.name, first, [*manifests, twin])
    cover = chosen.covers[0]
    gap = Cover(cover.source, cover.start + 1, cover.stop + 1, cover.ends)
    holed = Manifest(**{**vars(chosen), "covers": (gap, *chosen.covers[1:])})
    with pytest.raises(CorruptData):
        in_order(plan, plan.name, first, [*manifests[:victim], holed, *manifests[victim + 1 :]])


def test_coverage_joins_ranges_and_refuses_what_was_taken_twice() -> None:
    assert union([(5, 7), (0, 3), (3, 5), (9, 9)]) == ((0, 7),)
    with pytest.raises(ValueError, match="overlaps"):
        union([(0, 3), (2, 4)])
    delta = coverage.delta([Cover("a", 0, 5, False)], {"a": "v"})
    with pytest.raises(CorruptData, match="taken in twice"):
        coverage.merge([delta, delta])
    with pytest.raises(CorruptData, match="version"):
        coverage.merge([delta, coverage.delta([Cover("a", 5, 6, True)], {"a": "w"})])


def test_what_is_missing_of_a_source() -> None:
    assert Taken("v", ((2, 4), (6, 8)), None).missing(10) == ((0, 2), (4, 6), (8, 10))
    assert Taken("v", ((0, 4),), None).missing(None) == ((4, None),)
    assert Taken("v", ((0, 4),), 4).missing(None) == ()
    assert Taken("v", (), 0).missing(None) == ()


def test_a_changed_source_is_refused_by_name() -> None:
    found = [source("a", 10)]
    taken = {"a": Taken("9-y", ((0, 9),), 9)}
    work = remaining(found, taken)
    assert work.changed == ("a",)
    with pytest.raises(SourceChanged, match=r"'a' was taken in with content 9-y and is now 10-x"):
        check_unchanged(work, found, taken)


def test_splits_of_row_sources_hold_about_a_split_of_bytes() -> None:
    rows = source("p", 100_000, "parquet", extent=1000, splits_at=())
    assert split_unit(rows, 25_000) == 100
    assert split_unit(source("a", 10), 64) == 64


def unit_plan(sizes: list[int], parent: str, seals_last: bool) -> Plan:
    """A plan of one wave a split; sizes are in units of an era's bytes over 4."""
    unit = planning.ERA_BYTES // 4
    splits = tuple(Split((Piece(0, i, i + 1),), size * unit) for i, size in enumerate(sizes))
    empty = plan_of([source("a", 1)])
    limits = tuple(range(len(splits) + 1))
    return replace(empty, parent=parent, splits=splits, waves=limits, seals_last=seals_last)


@pytest.mark.parametrize(
    ("sizes", "parent", "seals_last", "sealing"),
    [
        ([1, 1, 1, 1, 1, 1, 1], "", True, [0, 4, 6]),
        ([1, 1, 1, 1, 1, 1, 1], "", False, [0, 4]),
        ([1, 1, 1, 1, 1, 1, 1], "p", True, [3, 6]),
        ([1, 1, 1], "p", False, []),
        ([9, 9, 1], "p", False, [0, 1]),
        ([1], "", True, [0]),
    ],
)
def test_waves_that_end_an_era_are_a_function_of_the_plan(
    sizes: list[int], parent: str, seals_last: bool, sealing: list[int]
) -> None:
    plan = unit_plan(sizes, parent, seals_last)
    assert [wave for wave in range(plan.wave_count) if plan.seals(wave)] == sealing
    again = Plan.from_json(plan.to_json())
    assert [wave for wave in range(again.wave_count) if again.seals(wave)] == sealing


def test_a_plan_of_an_earlier_version_has_the_name_that_it_had() -> None:
    stored = plan_of([source("a", 5000)]).to_json()
    assert "seals_last" not in stored
    assert Plan.from_json(stored).name == plan_of([source("a", 5000)]).name


@given(sources(), st.integers(1, 4000), st.randoms(use_true_random=False))
def test_spread_splits_are_the_same_ones_whatever_order_they_come_in(
    found: list[Source], split_bytes: int, draw: random.Random
) -> None:
    splits = list(make_splits(remaining(found, {}).pieces, found, split_bytes))
    spread_out = spread(splits, found)
    assert sorted(map(str, spread_out)) == sorted(map(str, splits))
    draw.shuffle(splits)
    assert {s.pieces[0] for s in spread(splits, found)} == {s.pieces[0] for s in spread_out}
    if len({(s.pieces[0].source, s.pieces[0].start) for s in splits}) == len(splits):
        assert spread(splits, found) == spread_out


def test_an_early_part_of_spread_splits_is_a_sample_of_all_sources() -> None:
    found = [source(f"s{i}", 100 * SPLIT) for i in range(4)]
    splits = spread(make_splits(remaining(found, {}).pieces, found, SPLIT), found)
    counts = [sum(split.pieces[0].source == i for split in splits[:100]) for i in range(4)]
    assert min(counts) > 10
