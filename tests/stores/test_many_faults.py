"""Thousands of faults on the way to a store: right data or an error that names the object.

Whatever ended by an error completes when it is done again. On Beam's FnApiRunner.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.conftest import Place, documents
from tests.stores.proxy import DAMAGE, PASSING, STALE, between
from tests.stores.servers import gs_variables, s3_variables

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RATES = {"build": (0.1, 0.02), "read": (0.5, 0.01), "change": (0.3, 0.02), "watch": (0.1, 0.02)}
"""Of each phase of `workload`: shares of requests that fail, and of objects that are damaged."""

WORKLOAD = (sys.executable, "-m", "tests.stores.workload")

FAULTS = 5_000
"""On the way to each of the two stores, at least."""


def test_thousands_of_faults(place: Place, tokenizer: str, tmp_path: Path) -> None:
    for folder, numbers in (("in", range(3)), ("more", range(3, 6))):
        (tmp_path / folder).mkdir()
        for number in numbers:
            data = documents(150, number, 1000 * number)
            if number < 5:
                place.put(f"{folder}/{number}.jsonl", data)
            (tmp_path / folder / f"{number}.jsonl").write_bytes(data)
    with between(place.server.address) as proxy:
        proxy.key, proxy.stale = "cache", 3
        variables = {"s3": s3_variables, "gs": gs_variables}[place.server.scheme](proxy.address)
        patience = {"FOREBAY_RETRY_SECONDS": "2"}
        for phase, (proxy.faults, proxy.damage) in RATES.items():
            done = subprocess.run(
                [*WORKLOAD, phase, place.url, str(tmp_path), tokenizer],
                env={**os.environ, **variables, **patience},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-3000:]
    assert sum(proxy.made.values()) >= FAULTS
    assert set(proxy.made) == {*PASSING, *DAMAGE, STALE}
