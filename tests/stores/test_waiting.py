"""For how long requests are tried again, and what is said meanwhile; no server is needed."""

from __future__ import annotations

import warnings

import pytest

from cachelib.errors import StorageError, StoreSlow
from cachelib.format import waiting

PLACE = "s3://bucket/cache/_ledger/head"


class Future:
    """An answer that comes after so many waits in vain."""

    def __init__(self, waits: int) -> None:
        self._waits = waits

    def done(self) -> bool:
        return self._waits <= 0

    def result(self, timeout: float | None = None) -> str:
        self._waits -= 1
        if self._waits >= 0:
            raise TimeoutError
        return "answer"


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket has answered before, and nobody was told that it is slow."""
    monkeypatch.setattr(waiting, "_answered", {"s3://bucket"})
    monkeypatch.setattr(waiting, "_told", {})
    monkeypatch.setattr(waiting, "sent_again", lambda bucket: 7)


def seconds(delays: dict[str, object]) -> float:
    """For how long requests are tried again in all."""
    first, most = (float(str(delays[f"{name}_delay"])[:-1]) for name in ("initial", "max"))
    count = delays["max_retries"]
    assert isinstance(count, int)
    return sum(min(first * 2**number, most) for number in range(count))


@pytest.mark.parametrize(("told", "expected"), [("", 60), ("2", 2), ("0.5", 0.5), ("600", 600)])
def test_requests_are_tried_again_for_as_long_as_is_said(
    monkeypatch: pytest.MonkeyPatch, told: str, expected: float
) -> None:
    monkeypatch.setenv(waiting.VARIABLE, told)
    found = waiting.retries()
    assert expected <= seconds(found) <= expected + waiting.MOST
    assert seconds(found) <= 2 * expected


@pytest.mark.parametrize("told", ["0", "-1", "nan", "inf", "a minute"])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(waiting.VARIABLE, told)
    with pytest.raises(StorageError, match=f"FOREBAY_RETRY_SECONDS is '{told}', expected"):
        waiting.retries()


@pytest.mark.usefixtures("answering")
def test_a_store_that_does_not_answer_is_told_once_at_a_time() -> None:
    with pytest.warns(StoreSlow, match="still trying; requests sent again so far: 7") as told:
        assert waiting.wait(Future(3), PLACE) == "answer"
    assert len(told) == 1
    assert PLACE in str(told[0].message)


@pytest.mark.usefixtures("answering")
def test_an_answer_in_time_is_given_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert waiting.wait(Future(0), PLACE) == "answer"
