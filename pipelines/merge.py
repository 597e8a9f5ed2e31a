"""Merge: the manifests of waves in row order, checked to be exactly what was planned. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cachelib.errors import CorruptData
from cachelib.format.shard import Manifest
from pipelines.plan import Plan, Split


def in_order(plan: Plan, name: str, splits: range, manifests: Iterable[Manifest]) -> list[Manifest]:
    """The manifests of splits, sorted by split and part, each shard once.

    A manifest may come several times: engines run tasks twice, and both get the published one.

    Args:
        plan, name: the plan and its digest.
        splits: those that were to be written.

    Raises:
        CorruptData: a split or part is missing, or was not planned, or two manifests of one shard
            differ, or the ranges read are not the ranges planned.
    """
    by_place: dict[tuple[int, int], Manifest] = {}
    for manifest in manifests:
        task = manifest.task
        if task["plan"] != name:
            raise CorruptData(f"shard {manifest.shard} belongs to plan {task['plan']}, not {name}")
        there = by_place.setdefault((task["split"], task["part"]), manifest)
        if there != manifest:
            raise CorruptData(
                f"shard {manifest.shard} has two manifests: attempts {there.attempt} and "
                f"{manifest.attempt}; the store let two writers create one object"
            )
    ordered = [by_place[place] for place in sorted(by_place)]
    found = {split for split, _ in by_place}
    if found != set(splits):
        missing, extra = sorted(set(splits) - found), sorted(found - set(splits))
        raise CorruptData(f"plan {name} lacks splits {missing[:5]} and has unplanned {extra[:5]}")
    for split in splits:
        parts = [m for m in ordered if m.task["split"] == split]
        check_cover(plan, split, plan.splits[split], parts)
    return ordered


def check_cover(plan: Plan, number: int, split: Split, parts: list[Manifest]) -> None:
    """Check that parts cover a split's pieces exactly, first to last, once each.

    Raises:
        CorruptData: naming the split and the first place that is wrong.
    """
    numbers = [part.task["part"] for part in parts]
    if numbers != list(range(len(parts))):
        raise CorruptData(f"split {number} has parts {numbers}, expected 0 to {len(parts) - 1}")
    if any(part.task["next"] is None for part in parts[:-1]) or parts[-1].task["next"] is not None:
        raise CorruptData(f"split {number} does not end with its part {numbers[-1]}")
    covers = [cover for part in parts for cover in part.covers]
    at = 0
    for piece in split.pieces:
        source = plan.sources[piece.source]
        position = piece.start
        while at < len(covers) and covers[at].source == source.name:
            cover = covers[at]
            if cover.start != position:
                break
            position = cover.stop
            at += 1
            if position == piece.stop or cover.ends:
                break
        ended = position == piece.stop if piece.stop is not None else covers[at - 1].ends
        if at == 0 or not ended:
            raise CorruptData(
                f"split {number} covers {source.name!r} from {piece.start} to {position}, "
                f"expected to {'the end' if piece.stop is None else piece.stop}"
            )
    if at != len(covers):
        raise CorruptData(f"split {number} covers more than was planned: {covers[at]}")
