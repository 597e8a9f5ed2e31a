"""Waiting: for how long requests to object stores are tried again, and what is said meanwhile.

TensorStore sends again what failed for reasons that may pass. Whoever waits hears nothing of that,
so what takes long is told here, as is a bucket that cannot answer at all.
"""

from __future__ import annotations

import os
import time
import warnings
from contextlib import suppress
from typing import Any

from cachelib.errors import StorageError, StoreSlow
from cachelib.format import endpoints

VARIABLE = "FOREBAY_RETRY_SECONDS"
"""Names for how many seconds a request is tried again."""

SECONDS = 60.0
"""For how long, where nothing is said."""

INITIAL, MOST = 0.25, 8.0
"""Seconds before a request is sent again for the first time, and at most; each time twice as many.

Where one is tried again for less than `SECONDS`, they are less by as much.
"""

SILENT_SECONDS = 30
"""A request of which no byte comes or goes for as long counts as broken."""

SLOW_SECONDS = 10.0
"""After how long without an answer that is told, and how often."""

FIRST_SECONDS, LOOKS = 3.0, 2
"""For how long, and how often, the first answer of a bucket is waited for before it is asked from
outside why there is none. TensorStore tries on, also where no server is.
"""

_answered: set[str] = set()  # the buckets that have answered this process

_told: dict[str, float] = {}  # when each bucket was last told to be slow


def retry_seconds() -> float:
    """For how long a request is tried again.

    Raises:
        StorageError: `VARIABLE` names no number of seconds above 0.
    """
    told = os.environ.get(VARIABLE, "")
    if not told:
        return SECONDS
    with suppress(ValueError):
        if 0 < (seconds := float(told)) < float("inf"):
            return seconds
    raise StorageError(f"{VARIABLE} is {told!r}, expected a number of seconds above 0, such as 60")


def retries() -> dict[str, Any]:
    """The same in TensorStore's terms; lets it give up requests of which nothing is heard."""
    seconds = retry_seconds()
    silent = str(max(1, round(min(SILENT_SECONDS, seconds))))
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", silent)
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    part = min(1.0, seconds / SECONDS)
    count, waited = 0, 0.0
    while waited < seconds:
        waited += part * min(INITIAL * 2**count, MOST)
        count += 1
    return {
        "max_retries": count,
        "initial_delay": f"{INITIAL * part:.6f}s",
        "max_delay": f"{MOST * part:.6f}s",
    }


def wait(future: Any, where: str) -> Any:
    """What a future of TensorStore gives; its errors are raised as they are.

    Warns (StoreSlow) again and again while a store does not answer.

    Args:
        where: the URL that is asked for.

    Raises:
        StorageError: the bucket never answered, and cannot: its server or it is not there.
    """
    if not where.startswith(("gs://", "s3://")):
        return future.result()
    began = time.monotonic()
    bucket = "/".join(where.split("/", 3)[:3])
    if bucket not in _answered:
        _wait_for_first(future, where, bucket)
    while True:
        slow = SLOW_SECONDS - (time.monotonic() - began) % SLOW_SECONDS
        try:
            return future.result(timeout=slow)
        except TimeoutError:
            if future.done():  # of which that is the error
                return future.result()
            _tell(bucket, where, time.monotonic() - began)


def _wait_for_first(future: Any, where: str, bucket: str) -> None:
    fault = None
    for _ in range(LOOKS):
        try:
            future.result(timeout=FIRST_SECONDS)
        except TimeoutError:
            fault = None if future.done() else endpoints.fault_of(where)
            continue
        except Exception:
            return  # raised where it is waited for
        _answered.add(bucket)
        return
    if fault is not None:
        raise StorageError(f"{where}: {fault}")


def _tell(bucket: str, where: str, seconds: float) -> None:
    """Warn that a bucket is slow, unless somebody else has."""
    now = time.monotonic()
    if now - _told.get(bucket, -SLOW_SECONDS) < SLOW_SECONDS - 1:
        return
    _told[bucket] = now
    warnings.warn(
        f"{where}: no answer for {seconds:.0f} s, still trying; requests sent again so far: "
        f"{sent_again(bucket)} (each is for {retry_seconds():g} s, {VARIABLE})",
        StoreSlow,
        stacklevel=4,
    )


def sent_again(bucket: str) -> int:
    """Requests to the kind of store of a bucket that this process has sent again so far."""
    import tensorstore as ts

    driver = {"gs": "gcs", "s3": "s3"}[bucket.partition("://")[0]]
    found = ts.experimental_collect_matching_metrics(f"/tensorstore/kvstore/{driver}/retries")
    return sum(int(value["value"]) for metric in found for value in metric["values"])
