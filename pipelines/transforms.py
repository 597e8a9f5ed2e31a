"""The public PTransforms of a batch build: write, merge, commit.

    job | WriteShards(lanes) | MergeShards() | CommitShards()

And of one whose rows are put into another order, once its runs are written by the above:

    job | MergeRanges(key) | CommitRanges(key)

Only references and manifests travel between them, never rows.
"""

from __future__ import annotations

from typing import Any

import apache_beam as beam

from pipelines import ranges, tasks
from pipelines.tasks import Job


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
    """(job, manifests) -> the last version committed, or the failure, as JSON."""

    def expand(self, merged: beam.PCollection) -> beam.PCollection:
        return merged | "Commit" >> beam.Map(lambda pair: tasks.commit(pair[0], pair[1]))


class MergeRanges(beam.PTransform):
    """Jobs -> (job, manifest as JSON), one for every shard that a pass over runs makes.

    Args:
        key: under which the plan of that pass is stored, below the runs.
    """

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def expand(self, jobs: beam.PCollection) -> beam.PCollection:
        key = self._key
        return (
            jobs
            | "Ranges" >> beam.FlatMap(lambda job: _items(job, key))
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


def _items(job: Job, key: str) -> list[tuple[Job, ranges.Item]]:
    merge = ranges.load_merge(job.cache, job.plan, key)
    return [(job, item) for item in ranges.items_of(merge)]


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
