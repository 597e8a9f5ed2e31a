"""Units: what a stream hands out as work, and how it becomes shards. No Beam here.

A unit is a range of positions of one source. Its shards' ids follow from it and from how rows are
made, so whoever works on it again, in this job or another one, adopts what was published.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachelib.errors import SourceError
from cachelib.format.canonical import digest_of
from cachelib.format.commit import Commit
from cachelib.format.shard import Manifest
from cachelib.format.storage import Storage
from pipelines.plan import Piece, Plan, Split, make_splits
from pipelines.quarantine import SetAside, set_aside
from pipelines.request import Request
from pipelines.sources.arrivals import became
from pipelines.sources.messages import decode_messages
from pipelines.sources.reader import as_read
from pipelines.sources.records import Reading, Records, Source
from pipelines.streams.news import announce
from pipelines.tasks import read_tokenizer
from pipelines.tokenization import Encoder, Prepared, open_encoder
from pipelines.worker import Workplace, write_splits

MESSAGES = "messages"
"""Content version of a partition of messages: they never change."""


@dataclass(frozen=True)
class Stream:
    """How a stream makes rows: all that its pipeline carries.

    Attributes:
        cache: URL of the cache.
        making: a plan without sources: the schema, the identity, how records are read.
        run: whom its workers tell of files; see `pipelines.streams.news`.
    """

    cache: str
    making: Plan
    run: str = ""

    @classmethod
    def of(cls, request: Request) -> Stream:
        """The stream that a request describes; its tokenizer must be in the cache."""
        making = Plan(
            parent="",
            parent_version=-1,
            schema=request.schema,
            identity=request.identity,
            reading=request.reading,
            tokenizer=request.prepared.to_json(),
            sources=(),
            splits=(),
            waves=(0,),
            split_bytes=request.config.split_bytes,
        )
        return cls(request.storage.url, making)

    @property
    def storage(self) -> Storage:
        return Storage(self.cache)

    @functools.cached_property
    def name(self) -> str:
        """A digest of how rows are made."""
        return self.making.name


@dataclass(frozen=True)
class Unit:
    """Positions [start, stop) of a file; a stop of None is its end.

    Attributes:
        source: what the file is.
        root: where it lies.
        url: of the file.
        stamp: what told its content when it was found.
        inspected_ns: when it was inspected, since the epoch.
        given_up: what the ledger had given up when it was handed out; see `given_up`.
    """

    source: Source
    root: str
    url: str
    stamp: str
    inspected_ns: int
    start: int
    stop: int | None
    given_up: str = ""


@dataclass(frozen=True)
class Shard:
    """A published shard on its way to the committer.

    Attributes:
        manifest: as JSON.
        versions: content version of each source in it.
    """

    manifest: dict[str, Any]
    versions: dict[str, str]


def given_up(commit: Commit) -> str:
    """A digest of all attempts that were given up by some gc; "" if there are none.

    Units that are handed out after a gc become shards of other ids, since those from before may be
    among what it gave up, and would be adopted.
    """
    return "" if commit.collected is None else digest_of(commit.collected["attempts"])


def cut_unit(stream: Stream, unit: Unit) -> list[Unit]:
    """A unit cut into units of about a split each, where its source may be cut."""
    piece = Piece(0, unit.start, unit.stop)
    splits = make_splits([piece], [unit.source], stream.making.split_bytes)
    pieces = [piece for split in splits for piece in split.pieces]
    return [replace(unit, start=each.start, stop=each.stop) for each in pieces]


def write_unit(stream: Stream, unit: Unit) -> list[Shard]:
    """The shards of a unit, written unless they are published already.

    Raises:
        SourceError: the file cannot be used, or is no longer what it was.
    """
    source = replace(unit.source, root=0)
    pieces = [Piece(0, unit.start, unit.stop)]
    splits = make_splits(pieces, [source], stream.making.split_bytes)
    plan = replace(
        stream.making,
        parent=unit.given_up,
        sources=(source,),
        splits=splits,
        waves=(0, len(splits)),
    )
    place = Workplace(
        stream.storage, plan, plan.name, (unit.root,), unit.inspected_ns, _encoder(stream)
    )
    versions = {source.name: source.version}
    manifests = write_splits(place, range(len(splits)))
    return [Shard(manifest.to_json(), versions) for manifest in manifests]


def write_messages(
    stream: Stream, partition: str, messages: Iterable[tuple[int, bytes]], format: str
) -> list[Shard]:
    """The shards of messages of one partition, written unless they are published already.

    Covered are just the positions of these messages: others may come between them later.

    Args:
        messages: (position, bytes) of each; of several at one position the first counts.
        format: "jsonl" where each is a JSON object, "text-lines" where each is a document.
    """
    found: dict[int, bytes] = {}
    for position, data in messages:
        found.setdefault(position, data)
    runs = _runs(sorted(found))
    size = sum(map(len, found.values()))
    source = Source(0, partition, partition, 0, MESSAGES, format, None, None)
    plan = replace(
        stream.making,
        sources=(source,),
        splits=(Split(tuple(Piece(0, start, stop) for start, stop in runs), size),),
        waves=(0, 1),
    )

    def read(
        url: str, source: Source, start: int, stop: int | None, reading: Reading
    ) -> Iterator[Records]:
        own = [(at, found[at]) for at in range(start, start if stop is None else stop)]
        yield as_read(decode_messages(own, reading, format), source.name, reading)

    place = Workplace(
        stream.storage, plan, plan.name, ("messages://stream",), 0, _encoder(stream), records=read
    )
    return [Shard(m.to_json(), {partition: MESSAGES}) for m in write_splits(place, [0])]


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending positions as ranges [start, stop) without a gap."""
    runs: list[tuple[int, int]] = []
    for at in positions:
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs


def write_or_set_aside(stream: Stream, unit: Unit) -> tuple[list[Shard], str | None]:
    """The shards of a unit, or what became of it: "damaged", or as of `became`.

    A damaged file is remembered. One that changed comes again as it is then, and one whose store
    could not be asked when it is handed out again.
    """
    try:
        return write_unit(stream, unit), None
    except SourceError as error:
        return [], what_became(stream, unit.source.name, unit.url, unit.stamp, error)


def what_became(stream: Stream, name: str, url: str, stamp: str, error: SourceError) -> str:
    """What became of a file that cannot be read, which is announced: as of `became`, or "damaged".

    Args:
        stamp: what told its content when it was found.
    """
    otherwise = became(url, stamp)
    match otherwise:
        case None:
            set_aside(stream.storage, SetAside(name, stamp, type(error).__name__, str(error)))
            announce(stream.storage, stream.run, "unusable", [name], str(error))
            return "damaged"
        case "changed":
            announce(stream.storage, stream.run, "rewritten", [name])
        case _:
            announce(stream.storage, stream.run, otherwise, [name], str(error))
    return otherwise


def _encoder(stream: Stream) -> Encoder:
    files = read_tokenizer(stream.storage, stream.making.identity["files"])
    return open_encoder(files, Prepared.from_json(stream.making.tokenizer))


def manifest_of(shard: Shard) -> Manifest:
    return Manifest.from_json(shard.manifest)
