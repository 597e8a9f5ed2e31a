"""Survey: which attempts lie in a cache, whole or not, how large and how old; and other remains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cachelib.format.shard import Manifest, read_manifest
from cachelib.format.storage import Storage
from pipelines.maintenance.garbage import Attempt
from pipelines.maintenance.objects import Stored

UNFINISHED = ".__lock"
"""How the names of files end that are being written, or that a killed writer left behind."""


@dataclass
class Folder:
    """What lies below an attempt.

    Attributes:
        objects, bytes: how many, and their size together.
        modified: when the youngest was written, in seconds since the epoch; infinite where the
            store does not tell.
        whole: whether the object is there that is written last and deleted first. An attempt
            without rows has none.
    """

    objects: int = 0
    bytes: int = 0
    modified: float = -math.inf
    whole: bool = False

    def add(self, stored: Stored) -> None:
        self.objects += 1
        self.bytes += stored.size
        self.modified = max(self.modified, written(stored))


@dataclass
class Survey:
    """What lies below ``shards/``.

    Attributes:
        folders: of each attempt.
        manifests: when the manifest of each shard that has one was written.
        unfinished: files that are no part of an attempt.
    """

    folders: dict[Attempt, Folder] = field(default_factory=dict)
    manifests: dict[str, float] = field(default_factory=dict)
    unfinished: list[Stored] = field(default_factory=list)

    def add(self, stored: Stored) -> None:
        """Take in an object below ``shards/``."""
        _, shard, *rest = stored.key.split("/")
        if rest == ["manifest.json"]:
            self.manifests[shard] = written(stored)
        elif len(rest) == 1:
            self.unfinished.append(stored)
        elif rest:
            folder = self.folders.setdefault((shard, rest[0]), Folder())
            folder.add(stored)
            folder.whole |= rest[1:] == ["zarr.json"]

    @classmethod
    def of(cls, objects: Iterable[Stored]) -> Survey:
        found = cls()
        for stored in objects:
            found.add(stored)
        return found


def written(stored: Stored) -> float:
    """When an object was written; infinite, so younger than all, where that is not known."""
    return math.inf if stored.modified is None else stored.modified


@dataclass(frozen=True)
class Loose:
    """An attempt that no version names.

    Attributes:
        modified: when the youngest object of it was written, as of `Folder`.
        published: whether the manifest of its shard names it.
        plan: that it belongs to, if it is published and says so.
    """

    attempt: Attempt
    modified: float
    published: bool
    plan: str | None


def loose_attempts(
    storage: Storage, survey: Survey, named: Mapping[Attempt, int]
) -> Iterator[Loose]:
    """The attempts that lie in a cache, or that a manifest names, and that no version does."""
    shards = {shard for shard, _ in survey.folders.keys() - named.keys()}
    shards |= survey.manifests.keys() - {shard for shard, _ in named}
    published: dict[Attempt, Manifest] = {}
    for shard in sorted(shards & survey.manifests.keys()):
        manifest = read_manifest(storage, shard)
        if manifest is not None:
            published[(shard, manifest.attempt)] = manifest
    for attempt in sorted((survey.folders.keys() | published.keys()) - named.keys()):
        modified = survey.folders.get(attempt, Folder()).modified
        if attempt in published:
            modified = max(modified, survey.manifests[attempt[0]])
            yield Loose(attempt, modified, True, published[attempt].task.get("plan"))
        else:
            yield Loose(attempt, modified, False, None)
