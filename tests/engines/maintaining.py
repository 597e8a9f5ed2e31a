"""Deletion, compaction and collection on an engine, beside the same in this process."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cachelib
import pipelines
from cachelib.format.storage import Storage
from cachelib.verification import verify


def check_maintenance(cache: Path, folder: Path, engine: Mapping[str, Any]) -> None:
    """Change copies of a cache on an engine and in this process; see that they are alike."""
    digests = []
    for path, where in ((folder / "here", {}), (folder / "there", engine)):
        shutil.copytree(cache, path)
        deleted = pipelines.delete(path, where=[("id", "in", ["r7", "r10001", "r40000"])], **where)
        assert deleted.rows == 3
        packed = pipelines.compact(path, shard_bytes=1 << 20, **where)
        assert packed.version == deleted.version + 1
        assert packed.shards < packed.shards_before
        collected = pipelines.gc(path, keep=1, younger=0, **where)
        assert collected.attempts == packed.shards_before
        assert not list(verify(Storage.at(path)))
        digests.append(cachelib.open(path).snapshot.digest)
    assert digests[0] == digests[1]
