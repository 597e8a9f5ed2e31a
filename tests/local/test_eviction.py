"""Which entries go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachelib.local.eviction import Held, leaving

ENTRIES = st.lists(st.builds(Held, st.uuids().map(str), st.integers(0, 50), st.integers(0, 9)))


@given(ENTRIES, st.integers(-5, 400), st.one_of(st.integers(0, 10), st.just(float("inf"))))
def test_those_used_longest_ago_go_and_no_more_than_needed(
    held: list[Held], excess: int, spared: float
) -> None:
    may_go = [entry for entry in held if entry.used < spared]
    goes = leaving(held, excess, spared)
    if goes is None:
        assert sum(entry.size for entry in may_go) < excess
        return
    assert sum(entry.size for entry in goes) >= excess
    assert sum(entry.size for entry in goes[:-1]) < max(excess, 1)
    assert set(goes) <= set(may_go)
    stays = [entry.used for entry in held if entry not in goes]
    assert not goes or not stays or goes[-1].used <= min(stays)
    assert excess > 0 or not goes
