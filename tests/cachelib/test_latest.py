"""What was used last is held up to a sum of sizes."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from cachelib.latest import Latest


def test_what_was_used_longest_ago_goes_first() -> None:
    latest: Latest[str, int] = Latest(2)
    made = count(1)
    assert [latest.get(key, made.__next__) for key in "abacab"] == [1, 2, 1, 3, 1, 4]
    assert latest.find("abc") == {"a": 1, "b": 4}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=30))
def test_sizes_never_exceed_the_limit(items: list[tuple[int, int]]) -> None:
    latest: Latest[int, bytes] = Latest(10, len)
    for key, size in items:
        latest.keep([(key, bytes(size))])
        held = latest.find(range(6))
        assert latest.room == 10 - sum(map(len, held.values())) >= 0
