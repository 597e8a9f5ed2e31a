"""Small files written and read back through the public face of pipelines.sources."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.sources import Reading, Records, Reject, Source, discover, read, url_of


@dataclass(frozen=True)
class Outcome:
    """What reading gave, as plain lists."""

    texts: list[str]
    positions: list[int]
    rejects: list[Reject]
    replaced: int
    keep: dict[str, list[Any]]

    @property
    def reasons(self) -> list[str]:
        return [reject.reason for reject in self.rejects]


def source_of(
    path: Path, data: bytes | None = None, format: str | None = None
) -> tuple[str, Source]:
    """URL and source of one file, which is written first where data are given."""
    if data is not None:
        path.write_bytes(data)
    found = discover([str(path)], format=format)
    (source,) = found.sources
    return url_of(found.roots[source.root], source), source


def read_range(
    url: str,
    source: Source,
    start: int = 0,
    stop: int | None = None,
    reading: Reading | None = None,
) -> Outcome:
    """The records of a range; checks what must hold for every source."""
    runs = list(read(url, source, start, stop, reading or Reading()))
    assert runs, "at least one run"
    assert runs[0].start == start
    for before, after in itertools.pairwise(runs):
        assert before.stop == after.start
    if stop is not None:
        assert runs[-1].stop == stop
    elif source.extent is not None and start <= source.extent:
        assert runs[-1].stop == source.extent
    for run in runs:
        check(run)
    return outcome(runs)


def check(run: Records) -> None:
    """The promises of Records."""
    run.text.validate(full=True)
    assert run.text.null_count == 0
    assert str(run.text.type) == "large_string"
    assert len(run.text) == len(run.positions) == len(run)
    assert run.positions.dtype == "int64"
    begun = sorted([*run.positions.tolist(), *(reject.position for reject in run.rejects)])
    assert len(set(begun)) == len(begun), "each record once"
    assert run.positions.tolist() == sorted(run.positions.tolist())
    assert [r.position for r in run.rejects] == sorted(r.position for r in run.rejects)
    assert all(run.start <= position < run.stop for position in begun)
    for values in run.keep.values():
        assert len(values) == len(run)
        assert values.null_count == 0
    for reject in run.rejects:
        assert len(reject.excerpt) <= 200
        reject.excerpt.encode()


def outcome(runs: list[Records]) -> Outcome:
    return Outcome(
        texts=[text for run in runs for text in run.text.to_pylist()],
        positions=[position for run in runs for position in run.positions.tolist()],
        rejects=[reject for run in runs for reject in run.rejects],
        replaced=sum(run.replaced for run in runs),
        keep={
            name: [value for run in runs for value in run.keep[name].to_pylist()]
            for name in runs[0].keep
        },
    )


def read_file(
    path: Path,
    data: bytes | None = None,
    reading: Reading | None = None,
    format: str | None = None,
) -> Outcome:
    """Everything in one file."""
    url, source = source_of(path, data, format)
    return read_range(url, source, 0, None, reading)


def joined(parts: list[Outcome]) -> Outcome:
    """What successive ranges gave, as one."""
    return Outcome(
        texts=[text for part in parts for text in part.texts],
        positions=[position for part in parts for position in part.positions],
        rejects=[reject for part in parts for reject in part.rejects],
        replaced=sum(part.replaced for part in parts),
        keep={
            name: [value for part in parts for value in part.keep[name]] for name in parts[0].keep
        },
    )
