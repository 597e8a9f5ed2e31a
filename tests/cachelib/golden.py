"""A tiny cache of format version 1, kept in the repository so that old caches stay readable.

`python -m tests.cachelib.golden FOLDER` writes another one, for a new version of the format. The
one that is there is never written again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from cachelib.format.schema import Field, Schema
from cachelib.format.shard import publish
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from tests.cachelib.helpers import (
    TOKENIZER,
    Columns,
    append_commit,
    take,
    with_tokenizer,
    write_shard,
)

VERSION_1 = Path(__file__).with_name("golden-1")

SCHEMA = Schema(
    (
        Field("tokens", "uint16", ragged=True),
        Field("loss/mask", "bool", ragged=True, like="tokens"),
        Field("title", "uint8", ragged=True, text=True),
        Field("frame", "float16", shape=(2, 2)),
        Field("time", "int64"),
    )
)
MODEL = b'{"model":{}}'
IDENTITY = with_tokenizer({"processor": "tokens"}, MODEL)


def rows() -> Columns:
    lengths = np.array([3, 0, 1], np.int64)
    return {
        "tokens": Ragged.from_lengths(np.array([1, 65535, 0, 7], np.uint16), lengths),
        "loss/mask": Ragged.from_lengths(np.array([True, False, True, True]), lengths),
        "title": Ragged.from_lengths(
            np.frombuffer("für水".encode(), np.uint8), np.array([0, 4, 3], np.int64)
        ),
        "frame": np.array(
            [[[0.5, -0.0], [np.inf, np.nan]], [[1, 2], [3, 4]], [[-1, -2], [-3, -4]]], np.float16
        ),
        "time": np.array([-(2**63), 2**63 - 1, 0], np.int64),
    }


def write(folder: Path) -> None:
    """Two commits and the finish: a shard of three rows, and one with a reject and no row."""
    storage = Storage.at(folder)
    storage.write(TOKENIZER, MODEL)
    whole = write_shard(storage, SCHEMA, "a" * 32, rows())
    append_commit(storage, SCHEMA, [publish(storage, whole)], identity=IDENTITY)
    none = take(rows(), slice(0, 0))
    empty = write_shard(storage, SCHEMA, "b" * 32, none, rejects=["not JSON"], start=3)
    append_commit(storage, SCHEMA, [publish(storage, empty)], identity=IDENTITY)
    append_commit(storage, SCHEMA, [], identity=IDENTITY, finish=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
