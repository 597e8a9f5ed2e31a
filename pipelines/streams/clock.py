"""Clock: the impulses at which a stream looks for what has come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

TURNS = 1 << 60
"""More than there will be."""

_WATERMARK = ManualWatermarkEstimator.default_provider()


class Impulses(beam.PTransform):
    """Nothing -> the number of each turn, at its time, for as long as the pipeline runs.

    Turns that are missed while something else takes longer are left out. Beam's `PeriodicImpulse`
    lets an engine cut its turns in two halves, and Prism, which does where a bundle takes more than
    0.2 s, then takes all that is to come in the first half for later than the windows allow.

    Args:
        seconds: from one turn to the next.

    Raises:
        ValueError: the time is not above 0.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        if not seconds > 0:
            raise ValueError(f"seconds must be above 0, got {seconds}")
        self._seconds = seconds

    def expand(self, begin: Any) -> beam.PCollection:
        return (
            begin
            | "Begin" >> beam.Create([time.time()], reshuffle=False)
            | "Tick" >> beam.ParDo(_Tick(self._seconds))
        )


class _Turns(OffsetRestrictionTracker):
    """Turns that may be interrupted, and are never shared out."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        return super().try_split(0) if fraction_of_remainder == 0 else None

    def is_bounded(self) -> bool:
        return False


class _AllTurns(RestrictionProvider):
    def initial_restriction(self, element: float) -> OffsetRange:
        return OffsetRange(0, TURNS)

    def create_tracker(self, restriction: OffsetRange) -> _Turns:
        return _Turns(restriction)

    def restriction_size(self, element: float, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: float, restriction: OffsetRange) -> None:
        """On drain there are no more turns."""


class _Tick(beam.DoFn):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: float,
        tracker: Any = beam.DoFn.RestrictionParam(_AllTurns()),  # noqa: B008
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(_WATERMARK),  # noqa: B008
    ) -> Iterator[TimestampedValue]:
        now = int((time.time() - element) // self._seconds)
        following = tracker.current_restriction().start
        if now >= following:
            if not tracker.try_claim(now):
                return
            yield TimestampedValue(now, self._time(element, now))
            following = now + 1
        at = self._time(element, following)
        watermark.set_watermark(at)
        tracker.defer_remainder(at)

    def _time(self, began: float, turn: int) -> Timestamp:
        return Timestamp.of(began + turn * self._seconds)
