"""The fast path of JSON Lines gives what the exact path gives, or gives way to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.sources import Reading, jsonl
from pipelines.sources.lines import Block
from tests.sources.helpers import Outcome, check, outcome

KEEP = (
    ("s", "str"),
    ("i", "int32"),
    ("l", "int64"),
    ("f", "float32"),
    ("d", "float64"),
    ("b", "bool"),
)
PLAIN = Reading()
KEEPING = Reading(keep=KEEP)

# Values in source form: what is JSON, what is nearly JSON, and what parsers like to differ on.
SOURCES = r"""
    "a" "" "é" "\u00e9" "\ud83d\ude00" "\ud83d" "\ude00" "\ud83d\u0041" "\u0000" "\q" "\x41" "\u12"
    "a\"b" "\\" "\/" "2024-01-01" "12" "text" 'a' null true false tru True None undefined nan
    0 -0 1 -1 01 1. .5 +5 1.0 1e0 1e3 1.5 1e-3 -1.5E+2 0.1 0x10 1_0 2147483647 2147483648
    -2147483648 -2147483649 9223372036854775807 9223372036854775808 -9223372036854775808
    -9223372036854775809 123456789012345678901234567890 16777217 9007199254740993
    1e38 3.5e38 1e308 1e309 -1e309 1e-400 NaN Infinity -Infinity -NaN Inf -Inf ["Inf"] [Inf]
    [NaN,-Infinity] {"x":-NaN} [] {} [1,2] [1,] {"a":1} {"text":"q"} {"a":1,"a":2} {"a":} [[[[]]]]
    /*c*/1
"""
LONG = [
    '" Inf "',
    '": Inf,"',
    '" -NaN "',
    '"\u2028\u2029\u0085"',
    "1" * 400,
    "1" * 5000,
    "[" * 1200,
]
VALUES = st.sampled_from(SOURCES.split() + LONG)
KEYS = st.sampled_from(
    ["text", "text", "text", "s", "i", "l", "f", "d", "b", "x", "", r"te\u0078t", r"\ud800", "é"]
)
SPACES = st.sampled_from(["", "", "", "", " ", "\t", "\r", "  ", "\x0c", "\x0b", "\xa0", "\ufeff"])


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    members = draw(st.lists(st.tuples(KEYS, SPACES, VALUES, SPACES), max_size=4))
    body = ",".join(f'"{key}"{a}:{a}{value}{b}' for key, a, value, b in members)
    return (draw(SPACES) + "{" + body + "}" + draw(SPACES)).encode()


@st.composite
def good_objects(draw: st.DrawFn) -> bytes:
    record = {
        "text": draw(st.text()),
        "s": draw(st.text(max_size=5)),
        "i": draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        "l": draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        "f": draw(st.floats(width=32) | st.integers(-(1 << 70), 1 << 70)),
        "d": draw(st.floats() | st.integers(-(1 << 70), 1 << 70)),
        "b": draw(st.booleans()),
        "x": draw(st.none() | st.booleans() | st.floats() | st.text(max_size=3)),
    }
    return json.dumps(record, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


LINES = st.one_of(
    objects(),
    good_objects(),
    st.sampled_from(
        [b"", b" ", b"\r", b"[1]", b'"a"', b"{", b"}", b'{"text":"a"}{"text":"b"}', b'{"text":',
         b'"a"}', b'{"text":"a"},',
         b'{"text":"a\\u', b'{"text":"\xe9"}', b'{"text":"a","x":"\xff"}',
         b'{"text":"\xed\xa0\x80"}', b"\x00", b'{"text":"a\x00"}']
    ),
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(b"\n".join(draw(st.lists(LINES, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        octet = draw(st.sampled_from(b'{}[]:,"\\ \n\r\t\x00\x1f\x7f\x80\xff0-.eEuaNIt'))
        kind = draw(st.sampled_from(["insert", "replace", "delete"]))
        if kind == "insert":
            data.insert(at, octet)
        elif at < len(data):
            data[at : at + 1] = bytes([octet]) if kind == "replace" else b""
    return bytes(data)


def lines_of(data: bytes) -> jsonl.Lines:
    block = Block(data, 0, 0, len(data))
    begins, ends = block.bounds()
    return jsonl.Lines(data, begins, ends, block.positions(begins))


def exact(data: bytes, reading: Reading) -> Outcome:
    run = jsonl.decode_exact(lines_of(data), reading, 0, len(data))
    check(run)
    return outcome([run])


def same(data: bytes, reading: Reading) -> bool:
    """Whether the fast path took it; fails where it then gave anything else."""
    run = jsonl.decode_fast(lines_of(data), reading, 0, len(data))
    if run is None:
        return False
    check(run)
    # Compared by repr, since NaN is not equal to itself.
    assert repr(outcome([run])) == repr(exact(data, reading))
    return True


@settings(max_examples=500, deadline=None)
@given(data=mutated(), reading=st.sampled_from([PLAIN, KEEPING]))
@example(b'{"text":"a","x":Inf}', PLAIN)
@example(b'{"text":"a","x":-NaN}', PLAIN)
@example(b'{"text":"a","x":-Inf}\n', PLAIN)
@example(b'{"text":"a"}{"text":"b"}\n{"text":\n"c"}', PLAIN)
@example(b'{"x":{}\n{"text":"a"}}', PLAIN)
def test_fast_equals_exact(data: bytes, reading: Reading):
    same(data, reading)


@settings(max_examples=200, deadline=None)
@given(st.lists(good_objects(), min_size=1, max_size=5), st.sampled_from([PLAIN, KEEPING]))
def test_fast_equals_exact_on_what_json_writes(lines: list[bytes], reading: Reading):
    same(b"\n".join(lines), reading)


@pytest.mark.parametrize("reading", [PLAIN, KEEPING])
def test_the_fast_path_takes_ordinary_lines(reading: Reading):
    record = {"text": "a Inf b -NaN c", "s": "x", "i": 1, "l": 2, "f": 3.5, "d": 4, "b": True}
    line = json.dumps({**record, "x": [1, {"y": None}], "z": float("nan")}).encode()
    assert same(line + b"\r\n\n" + line + b"\n  \n", reading)


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=12), st.integers(1, 200), st.data())
def test_halving_an_irregular_block_changes_nothing(lines: list[bytes], exact_size: int, data):
    whole = b"\n".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "EXACT", exact_size)
        run = jsonl.decode(lines_of(whole), PLAIN, 0, len(whole))
    check(run)
    assert repr(outcome([run])) == repr(exact(whole, PLAIN))
    assert (run.start, run.stop) == (0, len(whole))
