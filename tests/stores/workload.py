"""What a process does with a cache whose store fails again and again, and with a sound one beside.

    python -m tests.stores.workload PHASE URL LOCAL TOKENIZER

URL and LOCAL hold the same sources, `in` and `more`, but for the last of `more`, and get the same
caches. Whatever ends by an error is done again, as a user would. Prints the errors; what is wrong
raises AssertionError.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import cachelib
import pipelines
from cachelib.errors import ForebayError
from cachelib.format import storage
from cachelib.format.storage import Storage
from pipelines.config import growing_config
from pipelines.launcher import build
from pipelines.maintenance.gc import gc
from pipelines.watching import watch

Result = TypeVar("Result")

TRIES = 60
"""How often a thing is done until it has to end well."""

LAST = "5.jsonl"
"""The source that comes while the others are watched."""

BATCHES, TAKES = 16, 24

ERRORS: list[str] = []


def persist(work: Callable[[], Result], scheme: str) -> Result:
    """What some work gives in the end; its errors must be of Forebay and name an object."""
    for _ in range(TRIES):
        try:
            return work()
        except ForebayError as error:
            ERRORS.append(f"{type(error).__name__}: {error}")
            if f"{scheme}://" not in str(error):
                raise AssertionError(f"names no object: {error}") from error
    raise AssertionError(f"{TRIES} errors, the last of them {ERRORS[-1]}")


def digest_of(cache: str) -> str:
    return str(cachelib.open(cache).snapshot.digest)


def build_both(url: str, local: str, tokenizer: str) -> None:
    options: dict[str, Any] = {"tokenizer": tokenizer, "split_bytes": 2048, "keep": {"id": "str"}}
    build(inputs=[f"{local}/in"], to=f"{local}/cache", **options)
    scheme = url.partition(":")[0]
    persist(lambda: build(inputs=[f"{url}/in"], to=f"{url}/cache", **options), scheme)
    found = persist(lambda: digest_of(f"{url}/cache"), scheme)
    assert found == digest_of(f"{local}/cache")


def read_both(url: str, local: str, tokenizer: str) -> None:
    """Random rows, shuffled batches, and those of a loader that goes on from a state."""
    storage.DECODE_CACHE_BYTES = 0  # so that each batch asks the store
    scheme = url.partition(":")[0]
    here = cachelib.open(f"{local}/cache")
    there = persist(lambda: cachelib.open(f"{url}/cache"), scheme)
    chance = np.random.default_rng(0)
    for _ in range(TAKES):
        rows = chance.permutation(len(here))[:64]
        expected, found = here.take(rows), persist(lambda: there.take(rows), scheme)  # noqa: B023
        for name in ("tokens", "id"):
            for one, other in zip(found[name], expected[name], strict=True):
                np.testing.assert_array_equal(one, other)

    def loader(cache: cachelib.Cache) -> Any:
        return cache.windows(16).shuffle(seed=1).repeat().loader(32, prefetch=2)

    with loader(here) as sound:
        expected_batches = [next(sound)["tokens"] for _ in range(BATCHES)]
    state: dict[str, Any] | None = None
    read = 0

    def go_on() -> None:
        nonlocal state, read
        with loader(there) as failing:
            if state is not None:
                failing.load_state_dict(state)
            while read < BATCHES:
                tokens = next(failing)["tokens"]
                np.testing.assert_array_equal(tokens, expected_batches[read])
                state, read = failing.state_dict(), read + 1
                if read % 8 == 0:
                    break

    while read < BATCHES:
        persist(go_on, scheme)


def change_both(url: str, local: str, tokenizer: str) -> None:
    """Delete, compact and collect."""
    scheme = url.partition(":")[0]
    for rows in ([(3, 9)], [(50, 90)]):
        pipelines.delete(f"{local}/cache", rows=rows)
        persist(lambda: pipelines.delete(f"{url}/cache", rows=rows), scheme)  # noqa: B023
    for cache, do in ((f"{local}/cache", lambda w: w()), (f"{url}/cache", None)):
        run = do or (lambda work: persist(work, scheme))
        run(lambda: pipelines.compact(cache, shard_bytes=8192))  # noqa: B023
        for _ in range(3):
            run(lambda: gc(cache, keep=1, younger=0))  # noqa: B023
    found = persist(lambda: digest_of(f"{url}/cache"), scheme)
    assert found == digest_of(f"{local}/cache")


def watch_both(url: str, local: str, tokenizer: str) -> None:
    """Take in objects that are there already, and one more that comes."""
    scheme = url.partition(":")[0]
    build(inputs=[f"{local}/more"], to=f"{local}/watched-cache", tokenizer=tokenizer)
    expected = cachelib.open(f"{local}/watched-cache")

    stopped = threading.Event()

    def stop() -> None:
        while not stopped.wait(0.2):
            with suppress(ForebayError):
                if len(cachelib.open(f"{url}/watched-cache")) == len(expected):
                    stopped.set()

    threading.Thread(target=stop, daemon=True).start()
    values = {"every": 0.05, "settle": 0.0, "inputs": [f"{url}/more"], "to": f"{url}/watched-cache"}
    configs = growing_config({**values, "tokenizer": tokenizer})
    store, last = Storage.at(url), (Path(local) / "more" / LAST).read_bytes()

    def tell(line: str) -> None:
        persist(lambda: store.write(f"more/{LAST}", last), scheme)

    persist(lambda: watch(*configs, stopped=stopped, tell=tell), scheme)
    assert persist(lambda: digest_of(f"{url}/watched-cache"), scheme) == str(
        expected.snapshot.digest
    )


PHASES = {"build": build_both, "read": read_both, "change": change_both, "watch": watch_both}

if __name__ == "__main__":
    PHASES[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(ERRORS))
