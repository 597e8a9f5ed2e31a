"""The public PTransforms of a stream: find, write, commit.

    impulses | FindFiles(stream, inputs) | StreamShards(stream) | CommitStream(stream, seconds)

Only units and manifests travel between them, never rows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms import trigger, window
from apache_beam.utils.shared import Shared
from apache_beam.utils.timestamp import Duration

from cachelib.errors import AttemptRetired, IncompatibleCache
from cachelib.format.canonical import digest
from pipelines.sources.messages import MESSAGE_FORMATS
from pipelines.streams.finding import Finder, Sealer
from pipelines.streams.news import announce
from pipelines.streams.sequencing import sequence
from pipelines.streams.units import Shard, Stream, Unit, write_messages, write_or_set_aside

NAMESPACE = "forebay"
"""Of the counters, which say what became of files and shards."""

FOREVER = Duration(seconds=100 * 365 * 86_400)
"""How late data may be: none is dropped."""


class FindFiles(beam.PTransform):
    """Impulses -> units of files that are new; one look an impulse.

    Args:
        stream: that they are for.
        inputs: patterns, folders or URLs, as of a build.
        format: of all files, or None to find it out.
        settle_seconds: for how long a file must not have changed.

    Raises:
        ValueError: there are no inputs, or the time is negative.
    """

    def __init__(
        self,
        stream: Stream,
        inputs: Sequence[str],
        *,
        format: str | None = None,
        settle_seconds: float = 2.0,
    ) -> None:
        super().__init__()
        if isinstance(inputs, str) or not inputs:
            raise ValueError(f"inputs must be a sequence of patterns, got {inputs!r}")
        if settle_seconds < 0:
            raise ValueError(f"settle_seconds must not be negative, got {settle_seconds}")
        self._find = (stream, tuple(inputs), format, settle_seconds)

    def expand(self, impulses: beam.PCollection) -> beam.PCollection:
        return impulses | "Look" >> beam.ParDo(_Find(*self._find)) | "Spread" >> beam.Reshuffle()


class StreamShards(beam.PTransform):
    """Units -> published shards; a damaged file is set aside and counted."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def expand(self, units: beam.PCollection) -> beam.PCollection:
        return units | "Write" >> beam.ParDo(_Write(self._stream))


class StreamMessages(beam.PTransform):
    """(partition, position, bytes) of messages -> published shards, one a partition and window.

    Args:
        stream: that they are of.
        seconds: of a window.
        format: "jsonl" where a message is a JSON object, "text-lines" where it is a document.

    Raises:
        ValueError: the time is not above 0, or the format is another one.
    """

    def __init__(self, stream: Stream, seconds: float, format: str = "jsonl") -> None:
        super().__init__()
        if not seconds > 0:
            raise ValueError(f"seconds must be above 0, got {seconds}")
        if format not in MESSAGE_FORMATS:
            raise ValueError(f"format must be one of {', '.join(MESSAGE_FORMATS)}, got {format!r}")
        self._stream = stream
        self._seconds = seconds
        self._format = format

    def expand(self, messages: beam.PCollection) -> beam.PCollection:
        stream, format = self._stream, self._format
        return (
            messages
            | "Key" >> beam.Map(lambda message: (message[0], (message[1], message[2])))
            | "Window" >> _windows(self._seconds)
            | "Gather" >> beam.GroupByKey()
            | "Write" >> beam.FlatMap(lambda pair: write_messages(stream, pair[0], pair[1], format))
        )


def of_kafka(record: Any) -> tuple[str, int, bytes]:
    """The message of a record that ``ReadFromKafka(with_metadata=True)`` gives."""
    return f"{record.topic}/{record.partition}", record.offset, record.value or b""


def of_pubsub(subscription: str, message: Any) -> tuple[str, int, bytes]:
    """The message that ``ReadFromPubSub(with_attributes=True)`` gives; its id is its position.

    A partition is an hour of publishing, so that the coverage of earlier hours is at rest.
    """
    hour = message.publish_time.strftime("%Y-%m-%dT%H")
    number = int(message.message_id) if message.message_id.isdecimal() else -1
    if not 0 <= number < 1 << 62:
        number = int(digest(message.message_id.encode()), 16) % (1 << 62)
    return f"{subscription}/{hour}", number, message.data


def _windows(seconds: float) -> beam.WindowInto:
    """Windows out of which nothing late is dropped.

    They also fire by the clock: one long file holds the watermark back, and Prism, when it begins
    on a busy machine, was seen to hold it for good.
    """
    return beam.WindowInto(
        window.FixedWindows(seconds),
        trigger=trigger.AfterWatermark(
            early=trigger.AfterProcessingTime(math.ceil(seconds)), late=trigger.AfterCount(1)
        ),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
        allowed_lateness=FOREVER,
    )


class CommitStream(beam.PTransform):
    """Shards -> the version of each commit: one for the shards of a window.

    Args:
        stream: that they are of.
        seconds: of a window.

    Raises:
        ValueError: the time is not above 0.
    """

    def __init__(self, stream: Stream, seconds: float) -> None:
        super().__init__()
        if not seconds > 0:
            raise ValueError(f"seconds must be above 0, got {seconds}")
        self._stream = stream
        self._seconds = seconds

    def expand(self, shards: beam.PCollection) -> beam.PCollection:
        return (
            shards
            | "Key" >> beam.Map(lambda shard: (0, shard))
            | "Window" >> _windows(self._seconds)
            | "Gather" >> beam.GroupByKey()
            | "Commit" >> beam.ParDo(_Commit(self._stream))
        )


class SealEras(beam.PTransform):
    """Impulses -> nothing: ends eras of the cache by size and time, also while nothing comes.

    Args:
        stream: that fills the cache.
        seconds: from the first row of an era to its end.
        size: bytes of token ids at which it ends before that.

    Raises:
        ValueError: one of them is not above 0.
    """

    def __init__(self, stream: Stream, seconds: float, size: int) -> None:
        super().__init__()
        if not seconds > 0 or size < 1:
            raise ValueError(f"seconds and size must be above 0, got {seconds} and {size}")
        self._seal = (stream, seconds, size)

    def expand(self, impulses: beam.PCollection) -> beam.PCollection:
        return impulses | "Seal" >> beam.ParDo(_Seal(*self._seal))


_Kept = TypeVar("_Kept")


class _Holder:
    """A thing that the DoFns of a process use in turn; Beam keeps it by a weak reference."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self.lock = threading.Lock()


class _Once(beam.DoFn):
    """A DoFn that keeps one thing a process, made when it is first used."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._shared = Shared()

    def setup(self) -> None:
        self._holder = self._shared.acquire(lambda: _Holder(self._make()))


class _Find(_Once):
    def __init__(
        self, stream: Stream, inputs: tuple[str, ...], format: str | None, settle: float
    ) -> None:
        super().__init__(lambda: Finder(stream, inputs, format, settle))

    def process(self, element: Any) -> Iterator[Unit]:
        with self._holder.lock:
            units, counts = self._holder.thing.look()
        for name, count in counts.items():
            Metrics.counter(NAMESPACE, name).inc(count)
        yield from units


class _Seal(_Once):
    def __init__(self, stream: Stream, seconds: float, size: int) -> None:
        super().__init__(lambda: Sealer(stream.storage, seconds, size))

    def process(self, element: Any) -> None:
        with self._holder.lock:
            self._holder.thing.look()


class _Write(beam.DoFn):
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def process(self, unit: Unit) -> Iterator[Shard]:
        shards, otherwise = write_or_set_aside(self._stream, unit)
        if otherwise is not None:
            Metrics.counter(NAMESPACE, otherwise).inc()
        yield from shards


class _Commit(beam.DoFn):
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def process(self, keyed: tuple[int, Any]) -> Iterator[int]:
        try:
            found = sequence(self._stream, keyed[1])
        except (IncompatibleCache, AttemptRetired) as error:
            if not self._stream.run:
                raise
            # Who began the stream ends it with the error itself, and without Beam's tracebacks.
            announce(
                self._stream.storage,
                self._stream.run,
                "stopped",
                (),
                f"{type(error).__name__}: {error}",
            )
            return
        for name in ("taken", "cut", "known", "changed", "late", "given_up"):
            Metrics.counter(NAMESPACE, f"shards_{name}").inc(getattr(found, name))
        announce(self._stream.storage, self._stream.run, "changed", found.left_out)
        if found.commit is not None:
            yield found.commit.version
