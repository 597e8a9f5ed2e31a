"""Builds into object stores that are followed, sorted, compacted, deleted from and collected.

On Beam's FnApiRunner.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
import pipelines
from cachelib.commands.history import missing_objects
from cachelib.errors import SnapshotExpired
from cachelib.format.storage import Storage
from cachelib.verification import verify
from pipelines.entry import main
from pipelines.maintenance.gc import gc
from tests.maintenance.stored import stored
from tests.maintenance.test_races import ROWS, add, keep_adding
from tests.stores.conftest import Place, documents

pytestmark = pytest.mark.engine

SECRET = "Geheimnis"


@pytest.fixture
def options(place: Place, tokenizer: str) -> dict[str, Any]:
    """A build of three objects in many splits."""
    for number in range(3):
        place.put(f"in/{number}.jsonl", documents(100, number, 1000 * number))
    return {
        "inputs": [f"{place.url}/in"],
        "to": f"{place.url}/cache",
        "tokenizer": tokenizer,
        "keep": {"id": "str", "score": "float32"},
        "split_bytes": 4096,
    }


def locally(options: dict[str, Any], place: Place, folder: Path) -> dict[str, Any]:
    """The same build of files of this machine."""
    (folder / "in").mkdir()
    for number in range(3):
        data = Storage.at(place.url).read(f"in/{number}.jsonl")
        (folder / "in" / f"{number}.jsonl").write_bytes(data or b"")
    return {**options, "inputs": [str(folder / "in")], "to": str(folder / "cache")}


def digest_of(cache: Any) -> str:
    return str(cachelib.open(cache).snapshot.digest)


def check_sound(cache: str) -> None:
    assert [str(problem) for problem in verify(Storage.at(cache))] == []


@pytest.mark.parametrize("order", ["source", "shuffle(7)", "by(score)"])
def test_a_build_is_the_same_as_on_this_machine(
    options: dict[str, Any], place: Place, tmp_path: Path, order: str
) -> None:
    pipelines.build(**options, order=order)
    here = locally(options, place, tmp_path)
    pipelines.build(**here, order=order)
    assert digest_of(options["to"]) == digest_of(here["to"])
    check_sound(options["to"])
    assert place.keys("cache/_runs/") == []
    place.put("in/3.jsonl", documents(20, 3, 3000))
    pipelines.build(**options, order=order)
    assert len(cachelib.open(options["to"])) == 320


def test_a_build_is_followed_to_its_end(place: Place, tokenizer: str) -> None:
    for number in range(3):
        place.put(f"in/{number}.jsonl", documents(3000, number))
    to = f"{place.url}/cache"
    command = [sys.executable, "-m", "pipelines.entry", "build", f"{place.url}/in", "--to", to]
    more = ["--tokenizer", tokenizer, "--split-bytes", "65536", "--workers", "1", "--quiet"]
    builder = subprocess.Popen([*command, *more, "--finish"])
    try:
        dataset = cachelib.open(to, follow=True, timeout=120).windows(64).shuffle(seed=0)
        served = [batch["tokens"] for batch in dataset.loader(32, last="short")]
    finally:
        builder.kill()
        builder.wait()
    again = cachelib.open(to, follow=True)
    assert again.finished
    replayed = [b["tokens"] for b in again.windows(64).shuffle(seed=0).loader(32, last="short")]
    np.testing.assert_array_equal(np.concatenate(served), np.concatenate(replayed))
    assert len(cachelib.open(to).windows(64)) == sum(map(len, served))


def test_nothing_of_what_was_deleted_is_left_in_the_store(
    options: dict[str, Any], place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"id": "the secret id", "text": f"water {SECRET} wheel", "score": 1},
        {"id": "the secret id", "text": 7, "score": 1, "note": SECRET},
    ]
    place.put("in/secret.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    pipelines.build(**options, max_reject_rate=1)
    to = options["to"]
    cache = cachelib.open(to, pin="before")
    sources = [found.source for found in cache.provenance(range(len(cache)))]
    row = sources.index("secret.jsonl")
    ids = np.asarray(cache.take([row])["tokens"][0]).tobytes()
    needles = [ids, b"the secret id", SECRET.encode()]
    folder = place.folder / "cache"
    assert all(any(needle in data for data in stored(folder)) for needle in needles)
    place.delete("in/secret.jsonl")
    pipelines.delete(to, sources=["secret.jsonl"])
    packed = pipelines.compact(to)
    check_sound(to)
    first = gc(to, keep=1, younger=0)
    assert first.pins == {"before": cache.version}
    assert bytes(cachelib.open(to, pin="before").take([row])["id"][0]) == b"the secret id"
    assert main(["unpin", to, "before"]) == 0
    found = gc(to, keep=1, younger=0)
    assert found.attempts > 0
    assert any(start <= cache.version < stop for start, stop in found.expired)
    for data in stored(folder):
        assert not any(needle in data for needle in needles)
    check_sound(to)
    assert len(cachelib.open(to).dataset()) == 300
    with pytest.raises(SnapshotExpired):
        cachelib.open(to, cache.version).take([0])
    pipelines.build(**options, max_reject_rate=1)  # a deleted source is not taken in again
    assert cachelib.open(to).version == found.version
    assert missing_objects(cachelib.open(to))[1] == []
    capsys.readouterr()
    assert main(["log", to]) == 0
    log = capsys.readouterr().out
    assert all(word in log for word in ("delete", "compact", "retire"))
    assert main(["diff", to, str(cache.version), str(packed.version)]) == 0
    assert "deleted    1 row" in capsys.readouterr().out
    assert main(["checkout", to, str(found.version), "--pin", "kept"]) == 0
    assert cachelib.open(to, pin="kept").version == found.version


def test_a_compaction_and_deletions_hold_their_own_against_a_stream(place: Place) -> None:
    to = f"{place.url}/cache"
    add(Storage.at(to), 0)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    adding = context.Process(target=keep_adding, args=(to, stop, 0.02))
    adding.start()
    gone = []
    try:
        for change in range(3):
            assert adding.is_alive()
            rows = len(cachelib.open(to))
            gone.append((change * 7) % rows)
            pipelines.delete(to, rows=[(gone[-1], gone[-1] + 1)])
            pipelines.compact(to, shard_bytes=4096)
    finally:
        stop.set()
        adding.join(60)
    assert adding.exitcode == 0
    cache = cachelib.open(to)
    left = [row for row in range(len(cache)) if row not in gone]
    np.testing.assert_array_equal(cache.take(left)["label"], left)
    assert len(cache) % ROWS == 0
    assert len(cache) > 3 * ROWS
