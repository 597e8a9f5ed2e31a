"""Memory that work takes counts once, however many threads do the work."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pipelines.tokenization.growth import NOISE, Growth

MB = 1 << 20


@dataclass
class Process:
    """A process whose memory is set by hand."""

    resident: int = 100 * MB

    def __call__(self) -> int:
        return self.resident


@pytest.fixture
def process() -> Process:
    return Process()


def test_what_work_keeps_adds_up_and_what_it_hands_out_does_not(process: Process) -> None:
    growth = Growth(process)
    for number in range(3):
        growth.begin()
        process.resident += 50 * MB
        assert growth.end(given=20 * MB) == 30 * MB * (number + 1)
        process.resident -= 20 * MB


def test_little_is_noise(process: Process) -> None:
    growth = Growth(process)
    for _ in range(100):
        growth.begin()
        process.resident += NOISE - 1
        assert growth.end(given=0) == 0


def test_work_that_overlaps_counts_once(process: Process) -> None:
    growth = Growth(process)
    for _ in range(6):
        growth.begin()
    process.resident += 60 * MB
    assert [growth.end(given=0) for _ in range(6)] == [60 * MB] * 6


def test_what_others_hold_for_a_while_does_not_add_up_while_work_overlaps(
    process: Process,
) -> None:
    growth = Growth(process)
    growth.begin()
    for _ in range(100):  # there is always one at work
        growth.begin()
        process.resident += 40 * MB
        assert growth.end(given=0) <= 40 * MB
        process.resident -= 40 * MB
    assert growth.end(given=0) == 0


def test_growth_is_seen_while_work_overlaps(process: Process) -> None:
    growth = Growth(process)
    growth.begin()
    for number in range(10):
        growth.begin()
        process.resident += 30 * MB
        assert growth.end(given=0) == 30 * MB * (number + 1)
    growth.forget()
    growth.begin()
    process.resident += 8 * MB
    assert growth.end(given=0) == 8 * MB
