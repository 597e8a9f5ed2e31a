"""Early commits: waves that are written are committed while their pipeline writes the next."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from cachelib.errors import StorageError
from cachelib.format.shard import read_manifest
from cachelib.format.storage import Storage
from pipelines.overlap import meanwhile
from pipelines.plan import shard_id
from pipelines.tasks import Job, commit, load_plan, merge

POLL_SECONDS = 0.5
"""How often the next part is looked for."""


def committing(job: Job) -> AbstractContextManager[None]:
    """Commit a job's waves but the last, each when it is written, until the block ends.

    The job's pipeline commits all of them once more, which changes nothing, and the last one. So
    it is left to the pipeline, too, whatever the store refuses here.
    """

    def commit_early(ended: threading.Event) -> None:
        for wave in job.waves[:-1]:
            one = replace(job, waves=range(wave, wave + 1))
            try:
                parts = _written(one, ended)
                if parts is None or "failure" in commit(one, merge(one, parts)):
                    return
            except StorageError:
                return

    return meanwhile("forebay-early-commits", commit_early)


def _written(job: Job, ended: threading.Event) -> list[dict[str, Any]] | None:
    """The manifests of a job once all are published; None if that is not so in the end."""
    storage = Storage(job.cache)
    parts = []
    for split in load_plan(job.cache, job.plan).splits_of(job.waves):
        number, more = 0, True
        while more:
            manifest = read_manifest(storage, shard_id(job.plan, split, number))
            if manifest is None:
                if ended.wait(POLL_SECONDS):
                    return None
                continue
            parts.append(manifest.to_json())
            number += 1
            more = manifest.task["next"] is not None
    return parts
