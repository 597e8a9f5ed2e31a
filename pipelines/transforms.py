"""The public PTransforms of a batch build: write, merge, commit.

    job | WriteShards(lanes) | MergeShards() | CommitShards()

And of one whose rows are put into another order, once its runs are written by the above:

    job | MergeRanges(key) | CommitRanges(key)

A whole build in one graph is `FillCache`.

Only references and manifests travel between them, never rows.
"""

from __future__ import annotations

from typing import Any

import apache_beam as beam

from pipelines import ranges, tasks
from pipelines.tasks import Job
from pipelines.whole import Whole, conclude


class WriteShards(beam.PTransform):
    """Jobs -> (job, manifest as JSON), one for every part of every split of the job's waves.

    Args:
        lanes: into how many sequences of splits the work is dealt out. Within one the next split is
            read while the one before is tokenized. More lanes than workers balance the load.

    Raises:
        ValueError: `lanes` is below 1.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__()
        if lanes < 1:
            raise ValueError(f"lanes must be at least 1, got {lanes}")
        self._lanes = lanes

    def expand(self, jobs: beam.PCollection) -> beam.PCollection:
        lanes = self._lanes
        return (
            jobs
            | "Deal" >> beam.FlatMap(lambda job: [(job, lane) for lane in tasks.lanes(job, lanes)])
            | "Spread" >> beam.Reshuffle()
            | "Write" >> beam.FlatMap(_write)
        )


class MergeShards(beam.PTransform):
    """(job, manifest) -> (job, its manifests in row order), checked to cover the plan."""

    def expand(self, manifests: beam.PCollection) -> beam.PCollection:
        return (
            manifests
            | "Key" >> beam.Map(lambda pair: ((pair[0].plan, pair[0].waves.start), pair))
            | "Gather" >> beam.GroupByKey()
            | "Merge" >> beam.Map(_merge)
        )


class CommitShards(beam.PTransform):
    """(job, manifests) -> the last version committed, or the failure, as JSON.

    Args:
        before: what came of the commits that these follow in the same graph, if any.
    """

    def __init__(self, before: beam.PCollection | None = None) -> None:
        super().__init__()
        self._before = before

    def expand(self, merged: beam.PCollection) -> beam.PCollection:
        return merged | "Commit" >> beam.Map(_commit, *_after(self._before))


class MergeRanges(beam.PTransform):
    """Jobs -> (job, manifest as JSON), one for every shard that a pass over runs makes.

    Args:
        key: under which the plan of that pass is stored, below the runs, if there is such a pass.
        before: as of `CommitShards`.
    """

    def __init__(self, key: str, before: beam.PCollection | None = None) -> None:
        super().__init__()
        self._key = key
        self._before = before

    def expand(self, jobs: beam.PCollection) -> beam.PCollection:
        key = self._key
        return (
            jobs
            | "Ranges" >> beam.FlatMap(_items, key, *_after(self._before))
            | "Spread" >> beam.Reshuffle()
            | "Merge" >> beam.Map(lambda pair: (pair[0], ranges.carry_out(pair[0], key, pair[1])))
        )


class CommitRanges(beam.PTransform):
    """(job, manifest) -> the version committed, or the failure, as JSON; nothing before the end.

    Args:
        key: as of `MergeRanges`.
    """

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def expand(self, manifests: beam.PCollection) -> beam.PCollection:
        key = self._key
        return (
            manifests
            | "Key" >> beam.Map(lambda pair: (pair[0].plan, pair))
            | "Gather" >> beam.GroupByKey()
            | "Commit" >> beam.Map(lambda group: _commit_ranges(group[1], key))
        )


class FillCache(beam.PTransform):
    """The beginning of a pipeline -> the version of a cache once a plan is carried out, as JSON.

    Branches write at the same time, and commit one after another.

    Args:
        whole: what is left of the plan.
        lanes: as of `WriteShards`.
    """

    def __init__(self, whole: Whole, lanes: int) -> None:
        super().__init__()
        self._whole = whole
        self._lanes = lanes

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        whole = self._whole
        before = None
        for number, branch in enumerate(whole.branches):
            before = (
                begin
                | f"Waves {number:02d}" >> beam.Create([branch], reshuffle=False)
                | f"WriteShards {number:02d}" >> WriteShards(self._lanes)
                | f"MergeShards {number:02d}" >> MergeShards()
                | f"CommitShards {number:02d}" >> CommitShards(before)
            )
        for number, key in enumerate(whole.passes):
            before = (
                begin
                | f"Runs {number}" >> beam.Create([whole.job], reshuffle=False)
                | f"MergeRanges {number}" >> MergeRanges(key, before)
                | f"CommitRanges {number}" >> CommitRanges(key)
            )
        return (
            begin
            | "Plan" >> beam.Create([whole], reshuffle=False)
            | "Conclude" >> beam.Map(_conclude, *_after(before))
        )


def _after(before: beam.PCollection | None) -> tuple[beam.pvalue.AsIter, ...]:
    return () if before is None else (beam.pvalue.AsIter(before),)


def _commit(merged: tuple[Job, list[dict[str, Any]]], before: Any = ()) -> dict[str, Any]:
    return tasks.commit(merged[0], merged[1], before)


def _items(job: Job, key: str, before: Any = ()) -> list[tuple[Job, ranges.Item]]:
    return [(job, item) for item in ranges.items_now(job, key, before)]


def _conclude(whole: Whole, before: Any = ()) -> dict[str, Any]:
    return conclude(whole, before)


def _commit_ranges(pairs: Any, key: str) -> dict[str, Any]:
    found = list(pairs)
    return ranges.commit_ranges(found[0][0], key, (result for _, result in found))


def _write(dealt: tuple[Job, tuple[int, ...]]) -> list[tuple[Job, dict[str, Any]]]:
    job, splits = dealt
    return [(job, result) for result in tasks.write(job, splits)]


def _merge(group: tuple[Any, Any]) -> tuple[Job, list[dict[str, Any]]]:
    pairs = list(group[1])
    job = pairs[0][0]
    return job, tasks.merge(job, (result for _, result in pairs))
