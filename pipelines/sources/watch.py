"""Whether a file stays what it was when it was inspected, while it is read.

A file's size alone does not tell that it was written in place. Its time of change does, as far as
clocks agree, and costs no reading; of an object in a store, its checksum does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cachelib.errors import SourceChanged
from pipelines.sources.files import STORES, filesystem, is_local, local_path, naming
from pipelines.sources.inspect import told_version, version_of
from pipelines.sources.records import Source

MARGIN_NS = 2_000_000_000
"""By how much the clocks of a file system and a machine may differ, and how coarse they may be."""


@dataclass(frozen=True)
class Stamp:
    """What changes when a file is written."""

    size: int
    changed_ns: int
    inode: int


Mark = Stamp | str
"""The stamp of a local file, or the content version that its store tells of an object."""


def mark_of(url: str) -> Mark | None:
    """The mark of a file as it is now; None for a remote one of which none is told."""
    if url.startswith(STORES):
        with naming(url):
            store, path = filesystem(url)
            return told_version(store.info(path))
    if not is_local(url):
        return None
    with naming(url):
        found = os.stat(local_path(url))
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)


def check_inspected(url: str, source: Source, since_ns: int) -> Mark | None:
    """The mark of a file about to be read.

    Args:
        since_ns: when inspection began, in nanoseconds since the epoch. A file that may have been
            written since is inspected again.

    Raises:
        SourceChanged: its content is no longer that of the source.
    """
    now, version = mark_of(url), source.version
    if isinstance(now, str):
        version = now
    elif now is not None and now.changed_ns >= since_ns - MARGIN_NS:
        version = version_of(url)
    if version != source.version:
        raise SourceChanged(
            f"{url}: has content {version}, but had {source.version} when it was planned; "
            "build again, or put back the file as it was"
        )
    return now


def check_unchanged(url: str, before: Mark | None) -> None:
    """Raises SourceChanged unless a file has the mark it had before it was read."""
    if before is not None and mark_of(url) != before:
        raise SourceChanged(
            f"{url}: was written while it was read; nothing of it was kept. Build again when it is "
            "whole"
        )
