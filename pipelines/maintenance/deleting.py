"""The PTransform of a gc: attempts that were given up are deleted. Only their names travel."""

from __future__ import annotations

from collections.abc import Sequence

import apache_beam as beam

from pipelines.maintenance import gc
from pipelines.maintenance.garbage import Attempt


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
            | "Delete" >> beam.Map(lambda group: gc.delete_attempts(*group))
        )
