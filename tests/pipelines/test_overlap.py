"""Reading ahead and writing behind: order kept, errors in place, nothing after a failure."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from pipelines.overlap import AtOnce, WriteBehind, read_ahead


def test_items_come_in_order_and_a_few_ahead() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(50):
            made.append(item)
            yield item

    ahead = read_ahead(items(), 3)
    assert next(ahead) == 0
    time.sleep(0.2)
    assert len(made) <= 6
    assert list(ahead) == list(range(1, 50))


def test_an_error_comes_where_its_item_would_have() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    ahead = read_ahead(items(), 3)
    assert next(ahead) == 1
    with pytest.raises(OSError, match="gone"):
        next(ahead)


def test_closing_stops_the_thread_and_closes_the_iterator() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.set()

    ahead = read_ahead(items(), 2)
    assert next(ahead) == 0
    ahead.close()  # type: ignore[attr-defined]
    assert closed.wait(10)


def test_tasks_are_done_in_order_in_the_background() -> None:
    done: list[int] = []

    def task(number: int) -> int:
        done.append(number)
        return number

    with WriteBehind(2) as behind:
        futures = [behind.do(partial(task, number)) for number in range(20)]
    assert done == list(range(20))
    assert [future.result() for future in futures] == done


def test_after_a_failure_nothing_is_done() -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError("disk full")

    with WriteBehind(5) as behind:
        first = behind.do(fail)
        second = behind.do(lambda: done.append("second"))
    for future in (first, second):
        with pytest.raises(OSError, match="disk full"):
            future.result()
    assert done == []


def test_a_failure_is_raised_for_who_gives_more() -> None:
    def fail() -> None:
        raise OSError("disk full")

    with WriteBehind(1) as behind:
        behind.do(fail)
        with pytest.raises(OSError, match="disk full"):
            behind.do(fail)


def test_at_once_raises_at_once() -> None:
    assert AtOnce().do(lambda: 3).result() == 3
    with pytest.raises(ZeroDivisionError):
        AtOnce().do(lambda: 1 // 0)
