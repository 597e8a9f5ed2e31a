"""Sample: the first records of the sources, and what they tell before the work begins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from cachelib.errors import BuildFailed, SourceError
from pipelines.config import called, setting
from pipelines.sources import Discovery, Reading, Source, read, url_of
from pipelines.sources.files import plain_chunks

SOURCES = 4
"""Sources that are looked at, at most, until one gives a text: the first may be a stray file."""

TEXT_BYTES = 256 << 10
"""Text that is kept, at most: engines are compared and tokens are estimated on it."""

JUDGED_FROM = 20
"""Records from which on a build stops if all of them are rejected."""


@dataclass(frozen=True)
class Sample:
    """The first records of the first sources.

    Attributes:
        reading: how they were read.
        text: the documents among them, pa.LargeStringArray.
        sources: names of the sources that they come from.
        records: how many there were.
        rejects: how many of them were rejected, by reason.
        firsts: where the first of each reason is and what was found there, where that tells more.
        fields: of the first JSON object that was rejected.
        fault: why a source cannot be read at all, or None.
    """

    reading: Reading
    text: pa.LargeStringArray
    sources: tuple[str, ...]
    records: int
    rejects: Mapping[str, int]
    firsts: Mapping[str, str]
    fields: tuple[str, ...]
    fault: str | None

    @property
    def rejected(self) -> int:
        return sum(self.rejects.values())


def take_sample(discovery: Discovery, reading: Reading) -> Sample:
    """The first records; a source that cannot be read fails later, when it is worked on."""
    text = pa.array([], pa.large_string())
    names: list[str] = []
    records, rejects, fault = 0, Counter[str](), None
    firsts: dict[str, str] = {}
    fields: tuple[str, ...] = ()
    for source in discovery.sources[:SOURCES]:
        names.append(source.name)
        url = url_of(discovery.roots[source.root], source)
        try:
            found = next(iter(read(url, source, 0, source.extent, reading)))
        except SourceError as error:
            fault = fault or str(error)
            continue
        records += len(found) + len(found.rejects)
        rejects.update(reject.reason for reject in found.rejects)
        for reject in found.rejects:
            if reject.detail:
                place = f"{source.name}:{reject.position}: {reject.detail}"
                firsts.setdefault(reject.reason, place)
        if found.rejects and not fields:
            fields = _fields(url, source, found.rejects[0].position)
        if len(found):
            text = _first(found.text)
            break
    return Sample(reading, text, tuple(names), records, dict(rejects), firsts, fields, fault)


def _first(text: pa.LargeStringArray) -> pa.LargeStringArray:
    sizes = pa.compute.cumulative_sum(pa.compute.binary_length(text))
    return text[: pa.compute.sum(pa.compute.less(sizes, TEXT_BYTES)).as_py() or 0]


def _fields(url: str, source: Source, position: int) -> tuple[str, ...]:
    """The fields of the JSON object at a position; none where it is something else, or too long.

    Formats with columns need no telling: reading a column that is not there is an error.
    """
    if source.format not in ("jsonl", "json"):
        return ()
    try:
        data = next(plain_chunks(url, source, position), b"")
        value, _ = json.JSONDecoder().raw_decode(data.decode("utf-8", "replace").lstrip())
    except (SourceError, ValueError, RecursionError):
        return ()
    return tuple(value) if isinstance(value, dict) else ()


def notes(sample: Sample) -> tuple[str, ...]:
    """What the user should know of a sample: a source that cannot be read, and many rejects."""
    found = () if sample.fault is None else (sample.fault,)
    if 2 * sample.rejected <= sample.records:
        return found
    return (*found, f"{_rejected(sample)}. {_advice(sample)}")


def check_sample(sample: Sample, max_reject_rate: float) -> None:
    """Stop a build whose first records are all rejected, before it tokenizes the others.

    Raises:
        BuildFailed: with the reasons, the fields that are there, and what to do.
    """
    hopeless = sample.records >= JUDGED_FROM and sample.rejected == sample.records
    if hopeless and max_reject_rate < 1:
        raise BuildFailed(
            f"{_rejected(sample)}. Nothing was begun. {_advice(sample)}. Mend this, or leave these "
            f"sources out; {setting('max_reject_rate', 1)} goes on, whatever is rejected"
        )


def _rejected(sample: Sample) -> str:
    most = sorted(sample.rejects.items(), key=lambda item: (-item[1], item[0]))[:3]
    reasons = ", ".join(
        f"{count:,} x {reason}"
        + (f", first at {sample.firsts[reason]}" if reason in sample.firsts else "")
        for reason, count in most
    )
    return (
        f"{sample.rejected:,} of the first {sample.records:,} records "
        f"({', '.join(sample.sources)}) were rejected: {reasons}"
    )


def _advice(sample: Sample) -> str:
    reading = sample.reading
    asked = f"{called('text_field')} is {reading.text_field!r}"
    if reading.keep:
        kept = ", ".join(f"{name}:{kind}" for name, kind in reading.keep)
        asked += f" and {called('keep')} is {kept}"
    if reading.map is not None:
        asked += f" and {called('map')} is {reading.map.function}"
    there = ", ".join(map(repr, sample.fields[:20])) + (", ..." if sample.fields[20:] else "")
    return asked + (f"; the first of these has the fields {there}" if there else "")
