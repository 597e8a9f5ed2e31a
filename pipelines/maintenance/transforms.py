"""The public PTransforms of maintenance: jobs become one commit each, attempts are deleted.

Only names, references and ledger entries travel through them, never rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam

from pipelines.maintenance import tasks
from pipelines.maintenance.garbage import Attempt
from pipelines.maintenance.removal import delete_attempts
from pipelines.maintenance.tasks import Job


class ChangeShards(beam.PTransform):
    """Jobs -> what became of each, as JSON: shards are packed or thinned, and committed at once."""

    def expand(self, jobs: beam.PCollection) -> beam.PCollection:
        return (
            jobs
            | "Deal" >> beam.FlatMap(lambda job: [(job, unit) for unit in tasks.units(job)])
            | "Spread" >> beam.Reshuffle()
            | "Change" >> beam.Map(_work)
            | "Key" >> beam.Map(lambda pair: (pair[0].name, pair))
            | "Gather" >> beam.GroupByKey()
            | "Commit" >> beam.Map(_commit)
        )


class DeleteAttempts(beam.PTransform):
    """Deletes attempts; gives how many, group by group.

    Args:
        groups: URLs of caches, each with attempts that a commit gave up.
    """

    def __init__(self, groups: Sequence[tuple[str, list[Attempt]]]) -> None:
        super().__init__()
        self._groups = list(groups)

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        return (
            pipeline
            | "Attempts" >> beam.Create(self._groups, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Delete" >> beam.Map(lambda group: delete_attempts(*group))
        )


def _work(dealt: tuple[Job, range]) -> tuple[Job, dict[str, Any]]:
    job, unit = dealt
    return job, tasks.work(job, unit)


def _commit(group: tuple[str, Any]) -> dict[str, Any]:
    pairs = list(group[1])
    return tasks.commit(pairs[0][0], [result for _, result in pairs])
