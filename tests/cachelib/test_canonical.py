"""Sealed JSON: one encoding of a value, and no damage to it goes unseen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.errors import CorruptData
from cachelib.format.canonical import canonical, digest, digest_of, seal, unseal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
SAMPLE = {"b": [1, -0.5, None, True], "a": {"ü\n": "\u2028\ud800"}}


@given(JSON)
def test_values_round_trip(value: Any) -> None:
    data = seal(value)
    assert unseal(data, "here") == value
    assert data.count(b"\n") == 2
    assert data.isascii()


def test_key_order_does_not_matter() -> None:
    assert canonical({"b": 1, "a": [2]}) == canonical({"a": [2], "b": 1}) == b'{"a":[2],"b":1}'
    assert digest_of({"b": 1, "a": [2]}) == digest(b'{"a":[2],"b":1}')


def test_bytes_are_pinned() -> None:
    assert seal(SAMPLE) == (
        rb'{"a":{"\u00fc\n":"\u2028\ud800"},"b":[1,-0.5,null,true]}'
        + b"\ncf6b5a8efa218e28b2fd6f4b4e6c4b2b\n"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_lacks_is_refused(value: float) -> None:
    with pytest.raises(ValueError):
        seal({"x": value})


def test_every_truncation_is_seen() -> None:
    data = seal(SAMPLE)
    for size in range(len(data)):
        with pytest.raises(CorruptData, match="here"):
            unseal(data[:size], "here")


def test_every_flipped_bit_is_seen() -> None:
    data = seal(SAMPLE)
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptData, match="here"):
                unseal(bytes(damaged), "here")


def test_more_bytes_are_seen() -> None:
    with pytest.raises(CorruptData):
        unseal(seal(SAMPLE) + b"\n", "here")
    with pytest.raises(CorruptData):
        unseal(b"\n" + seal(SAMPLE), "here")
