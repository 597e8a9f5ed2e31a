"""The impulses of a stream: one a turn, never shared out, whatever an engine asks for."""

from __future__ import annotations

import time
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineState
from apache_beam.runners.sdf_utils import RestrictionTrackerView, ThreadsafeRestrictionTracker
from apache_beam.transforms.window import FixedWindows

from pipelines.streams.clock import Impulses, _AllTurns, _Tick, _Turns

SECONDS = 0.5


def tick(began: float, restriction: Any) -> tuple[list[Any], Any, Any]:
    """What comes of one call, what is left of the turns, and the watermark."""
    tracker = ThreadsafeRestrictionTracker(_Turns(restriction))
    watermark = ManualWatermarkEstimator(None)
    view = RestrictionTrackerView(tracker)
    out = list(_Tick(SECONDS).process(began, view, watermark))
    tracker.check_done()
    residual, _ = tracker.deferred_status()
    return out, residual, watermark.current_watermark()


def test_a_turn_comes_at_its_time_and_missed_ones_are_left_out() -> None:
    provider = _AllTurns()
    began = time.time() - 10.2 * SECONDS
    out, residual, watermark = tick(began, provider.initial_restriction(began))
    assert [(each.value, float(each.timestamp)) for each in out] == [
        (10, pytest.approx(began + 10 * SECONDS, abs=1e-5))
    ]
    assert residual.start == 11
    assert float(watermark) == pytest.approx(began + 11 * SECONDS, abs=1e-5)
    out, residual, _ = tick(began, residual)
    assert (out, residual.start) == ([], 11)  # it is not time yet


def test_turns_are_not_shared_out() -> None:
    tracker = _Turns(_AllTurns().initial_restriction(0.0))
    assert tracker.try_claim(5)
    assert tracker.try_split(0.5) is None
    primary, residual = tracker.try_split(0)
    assert (primary.stop, residual.start) == (6, 6)
    assert not tracker.is_bounded()


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Impulses(seconds)


@pytest.mark.engine
@pytest.mark.slow
def test_windows_go_on_on_prism_where_each_look_takes_long(tmp_path: Any, prism: str) -> None:
    """Bundles of more than 0.2 s, of which Prism asks the clock for a part of its turns."""
    out = tmp_path / "windows"

    def look(turn: int) -> tuple[int, int]:
        time.sleep(0.45)
        return 0, turn

    def keep(pair: tuple[int, Any]) -> None:
        with out.open("a") as file:
            file.write("".join(f"{turn}\n" for turn in pair[1]))

    flags = [f"--prism_location={prism}", "--environment_type=LOOPBACK", "--runner=PrismRunner"]
    options = PipelineOptions(flags)
    options.view_as(StandardOptions).streaming = True
    pipeline = beam.Pipeline(options=options)
    _ = (
        pipeline
        | Impulses(SECONDS)
        | beam.Map(look)
        | beam.WindowInto(FixedWindows(1))
        | beam.GroupByKey()
        | beam.Map(keep)
    )
    result: Any = pipeline.run()
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (out.exists() and len(_lines(out)) >= 16):
            assert not PipelineState.is_terminal(result.state)
            time.sleep(0.2)
    finally:
        result.cancel()
    turns = [int(turn) for turn in _lines(out)]
    assert len(turns) >= 16
    assert len(set(turns)) == len(turns)


def _lines(path: Any) -> list[str]:
    return path.read_text().splitlines()
