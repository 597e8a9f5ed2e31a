"""Measurements stay within the test run, and are small."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from pipelines.tokenization import measurement
from tests.tokenization.tokenizers_at_hand import MEASURED


@pytest.fixture(scope="session", autouse=True)
def small_measurements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All of Unicode is measured once, in test_measurement; elsewhere what the tests use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user")))
        points = [point for block in MEASURED for point in block]
        patch.setattr(
            measurement, "measure", functools.partial(measurement.measure, code_points=points)
        )
        yield
