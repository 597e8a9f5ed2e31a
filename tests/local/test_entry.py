"""The end of an entry proves what the file is, and that it is whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.errors import CorruptData
from cachelib.local.entry import (
    Tail,
    checks_of,
    is_entry,
    is_part,
    name_of,
    read_tail,
    tail_bytes,
    tail_of,
)

NAME = name_of("shards/a/b/tokens/data/0", "raw")


@given(st.binary(max_size=100), st.integers(1, 40))
def test_what_is_written_is_read(body: bytes, block: int) -> None:
    checks = checks_of(body, block)
    assert len(checks) == -(-len(body) // block)
    end = tail_of(NAME, Tail(len(body), checks))
    assert len(end) == tail_bytes(len(checks))
    found = read_tail(NAME, (body + end)[-len(end) :], len(body) + len(end))
    assert found.size == len(body)
    np.testing.assert_array_equal(found.checks, checks)


def test_every_damage_is_found() -> None:
    body = b"values" * 9
    whole = body + tail_of(NAME, Tail(len(body), checks_of(body, 16)))
    for at in range(len(body), len(whole)):
        for mask in (1, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= mask
            with pytest.raises(CorruptData):
                read_tail(NAME, bytes(damaged[len(body) :]), len(whole))
    for size in range(len(whole)):
        with pytest.raises(CorruptData):
            read_tail(NAME, whole[:size][-tail_bytes(4) :], size)
    with pytest.raises(CorruptData):
        read_tail(NAME, bytes(len(whole)), len(whole))


def test_an_entry_in_the_place_of_another_is_none() -> None:
    end = tail_of(NAME, Tail(3, np.empty(0, np.uint32)))
    with pytest.raises(CorruptData, match="does not end as the entry of that name"):
        read_tail(name_of("shards/a/c/tokens/data/0", "raw"), end, 3 + len(end))


def test_names_are_known_again() -> None:
    assert is_entry(NAME)
    assert is_entry(name_of("x", "encoded"))
    assert not is_part(NAME)
    assert is_part(f"{NAME}.0123456789abcdef.part")
    assert not is_entry(f"{NAME}.0123456789abcdef.part")
    for other in (
        "model.raw",
        f"x{NAME}",
        f"{NAME}x",
        NAME.upper(),
        "forebay-1.raw",
        f"{NAME}.part",
    ):
        assert not is_entry(other)
        assert not is_part(other)
