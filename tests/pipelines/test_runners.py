"""Engines: what runs on the embedded one comes out whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import apache_beam as beam

from pipelines.runners import run

ELEMENTS = 3


class SlowToEncode:
    """A value whose encoding takes longer than Beam's timer for what is encoded already."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        time.sleep(0.6)
        return SlowToEncode, (self.number,)


def test_an_element_is_never_sent_in_part(tmp_path: Path) -> None:
    out = tmp_path / "numbers"

    def keep(group: tuple[int, Any]) -> None:
        out.write_text(",".join(str(value.number) for value in group[1]))

    def build(pipeline: beam.Pipeline, lanes: int) -> Any:
        return (
            pipeline
            | beam.Create([0])
            | beam.FlatMap(lambda _: ((0, SlowToEncode(n)) for n in range(ELEMENTS)))
            | beam.GroupByKey()
            | beam.Map(keep)
        )

    run(build, "embedded", workers=2, processes=False, arguments=())
    assert out.read_text() == ",".join(map(str, range(ELEMENTS)))
