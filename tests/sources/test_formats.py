"""What real files contain, and what must come of it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelib.errors import SourceChanged, SourceError
from pipelines.sources import Reading, Records, jsonarray, jsonl, lines, unicode
from tests.sources.helpers import outcome, read_file, read_range, source_of

REPLACE = Reading(invalid_unicode="replace")


def test_byte_order_mark_is_dropped(tmp_path: Path):
    got = read_file(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n')
    assert (got.texts, got.positions, got.rejects) == (["a", "b"], [0, 17], [])


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.csv", "a.json"])
def test_other_encodings_are_named(tmp_path: Path, codec: str, name: str):
    data = "\ufeff".encode(codec) if "be" in codec else b""
    data += '{"text": "a"}\n'.encode(codec)
    with pytest.raises(SourceError, match=r"a\.\w+: is UTF-(16|32) \((little|big) endian\)"):
        read_file(tmp_path / name, data)


def test_crlf_and_blank_lines(tmp_path: Path):
    got = read_file(
        tmp_path / "a.jsonl", b'\n  \n{"text": "a"}\r\n\r\n\n{"text": "b\\r\\n"}\r\n \t'
    )
    assert (got.texts, got.positions, got.rejects) == (["a", "b\r\n"], [4, 22], [])


def test_only_lf_ends_a_record(tmp_path: Path):
    text = "a\u2028b\u2029c\u0085d\x0b\x0ce"
    line = json.dumps({"text": text}, ensure_ascii=False).replace("\\u000b\\f", "\\u000b\\f")
    got = read_file(tmp_path / "a.jsonl", line.encode())
    assert got.texts == [text]
    got = read_file(tmp_path / "a.txt", f"{text}\rx\n".encode(), format="text-lines")
    assert got.texts == [f"{text}\rx"]


def test_nul_is_a_character(tmp_path: Path):
    assert read_file(tmp_path / "a.jsonl", b'{"text":"a\\u0000b"}\n').texts == ["a\0b"]
    assert read_file(tmp_path / "a.txt", b"a\0b").texts == ["a\0b"]
    assert read_file(tmp_path / "a.csv", b"text\na\0b\n").texts == ["a\0b"]


@pytest.mark.parametrize(
    ("line", "replaced"),
    [
        (b'{"text":"a\\ud800b"}', "a\ufffdb"),
        (b'{"text":"\\ude00\\ud83d"}', "\ufffd\ufffd"),
        (b'{"text":"caf\xe9"}', "caf\ufffd"),
        (b'{"text":"\xf0\x9f\x98"}', "\ufffd"),  # a maximal part is one character
        (b'{"text":"\xed\xa0\x80"}', "\ufffd\ufffd\ufffd"),
        (b'{"text":"\xc3\\udca9"}', "\ufffd\ufffd"),  # no byte comes of an escape
    ],
)
def test_invalid_unicode_in_jsonl(tmp_path: Path, line: bytes, replaced: str):
    data = b'{"text": "ok"}\n' + line + b'\n{"text": "ok2"}\n'
    got = read_file(tmp_path / "a.jsonl", data)
    assert (got.texts, got.reasons, got.replaced) == (["ok", "ok2"], ["invalid Unicode"], 0)
    assert got.rejects[0].position == 15
    got = read_file(tmp_path / "a.jsonl", data, REPLACE)
    assert (got.texts, got.rejects, got.replaced) == (["ok", replaced, "ok2"], [], 1)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "b.txt"])
def test_invalid_unicode_in_other_text(tmp_path: Path, name: str):
    data = b"text\nok\ncaf\xe9 \xf0\x9f\x98.\n" if name != "b.txt" else b"caf\xe9 \xf0\x9f\x98."
    format = {"a.txt": "text-lines", "b.txt": "text"}.get(name)
    expected = [] if name == "b.txt" else ["text", "ok"] if format else ["ok"]
    got = read_file(tmp_path / name, data, format=format)
    assert (got.texts, got.reasons) == (expected, ["invalid Unicode"])
    got = read_file(tmp_path / name, data, REPLACE, format)
    assert (got.texts, got.replaced) == ([*expected, "caf\ufffd \ufffd."], 1)


def test_invalid_unicode_elsewhere_does_not_matter(tmp_path: Path):
    data = b'{"text": "a", "x": "\xff"}\n{"text": "b", "x": "\\ud800"}\n'
    assert read_file(tmp_path / "a.jsonl", data).texts == ["a", "b"]
    assert read_file(tmp_path / "a.jsonl", data, REPLACE).replaced == 0


def test_invalid_unicode_in_a_kept_string(tmp_path: Path):
    data = b'{"text": "a", "x": "\xff"}\n{"text": "b", "x": "c"}\n'
    got = read_file(tmp_path / "a.jsonl", data, Reading(keep=(("x", "str"),)))
    assert (got.texts, got.reasons) == (["b"], ["invalid Unicode"])
    reading = Reading(keep=(("x", "str"),), invalid_unicode="replace")
    got = read_file(tmp_path / "a.jsonl", data, reading)
    assert (got.keep["x"], got.replaced) == (["\ufffd", "c"], 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text":null}', "text is null"),
        ('{"text":1}', "text is a number"),
        ('{"text":1.5}', "text is a number"),
        ('{"text":true}', "text is a boolean"),
        ('{"text":["a"]}', "text is a list"),
        ('{"text":{"a":"b"}}', "text is an object"),
        ('{"other":"x"}', "text is missing"),
        ("{}", "text is missing"),
        ('["a"]', "not a JSON object"),
        ('"a"', "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"text":"a"}{"text":"b"}', "not JSON"),
        ('{"text":"a"} {"text":"b"}', "not JSON"),
        ('{"text":"a"}\r{"text":"b"}', "not JSON"),
        ('{"text":"a"', "not JSON"),
        ('{"text":"a\tb"}', "not JSON"),
        ('{"text":"a",}', "not JSON"),
        ('{"text":"a","x":Inf}', "not JSON"),
        ('\ufeff{"text":"a"}', "not JSON"),
        ("x" * 1000, "not JSON"),
    ],
)
def test_reasons(tmp_path: Path, line: str, reason: str):
    data = b'{"text": "ok"}\n' + line.encode() + b'\n{"text": "ok2"}\n'
    got = read_file(tmp_path / "a.jsonl", data)
    assert (got.texts, got.reasons) == (["ok", "ok2"], [reason])
    assert got.rejects[0].position == 15
    assert got.rejects[0].excerpt[:199] == line[:199]
    assert got.rejects[0].detail


def test_an_object_over_two_lines_is_two_rejects(tmp_path: Path):
    got = read_file(tmp_path / "a.jsonl", b'{"text":\n"a"}\n{"text": "ok"}\n')
    assert (got.texts, got.reasons) == (["ok"], ["not JSON", "not JSON"])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"text":"a","text":"b"}', "b"),
        ('{"text":null,"text":"b"}', "b"),
        ('{"te\\u0078t":"a"}', "a"),
        ('{"text":"a","te\\u0078t":"b"}', "b"),
        ('{"text":"","x":NaN,"y":-Infinity,"z":1e999}', ""),
        ('{"text":"a","id":123456789012345678901234567890}', "a"),
        ('{"text":"a","id":' + "7" * 5000 + "}", "a"),
        ('{"text":"\\u00e9\\ud83d\\ude00\\/\\"\\\\"}', 'é😀/"\\'),
        ('{"text":"2024-01-01"}', "2024-01-01"),
        ('{"text":" \\n\\t","":{"text":"x"}}', " \n\t"),
    ],
)
def test_rows(tmp_path: Path, line: str, text: str):
    data = b'{"text": "ok"}\n' + line.encode() + b'\n{"text": "ok2"}\n'
    got = read_file(tmp_path / "a.jsonl", data)
    assert (got.texts, got.rejects) == (["ok", text, "ok2"], [])


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_deep_nesting_elsewhere(tmp_path: Path, opening: str, closing: str):
    depth = 20_000
    deep = opening * depth + "1" + closing * depth
    # The second line is one for the exact path, so that both see the depth.
    for extra in ("", '{"text":"b","x":Inf}\n'):
        data = f'{{"text":"a","x":{deep},"y":1}}\n{extra}{{"text": "ok"}}\n'.encode()
        got = read_file(tmp_path / "a.jsonl", data)
        assert got.texts == ["a", "ok"]
        assert len(got.rejects) == bool(extra)


def test_deep_nesting_of_what_is_used_or_broken(tmp_path: Path):
    deep = "[" * 5000 + "]" * 5000
    broken = "[" * 5000 + "]" * 4999
    data = (
        f'{{"text":{deep}}}\n{{"text":"a","x":{broken}}}\n{deep}\n{{"x":{deep},"text":"b"}}\n'
        f'{{"x":{deep},"text":"c",}}\n{{"x":{deep} "text":"c"}}\n{{"x":{deep},"text":"c"}}x\n'
        f'{{"x":{deep},1:"c"}}\n{{"x":{deep},"y"}}\n{{"x":{deep},"y":x}}\n'
    )
    got = read_file(tmp_path / "a.jsonl", data.encode())
    assert got.texts == ["b"]
    assert got.reasons == ["text is a list", "not JSON", "not a JSON object"] + ["not JSON"] * 6


def test_kept_fields(tmp_path: Path):
    keep = (("id", "str"), ("n", "int32"), ("score", "float32"), ("ok", "bool"), ("d", "float64"))
    good = {"text": "a", "id": "x", "n": -5, "score": 1.5, "ok": True, "d": 3}
    bad: list[tuple[str, Any, str]] = [
        ("id", 1, "is a number"),
        ("id", None, "is null"),
        ("n", 1.5, "is not a whole number"),
        ("n", 1 << 31, "is out of range"),
        ("n", True, "is a boolean"),
        ("n", "1", "is a string"),
        ("score", "1", "is a string"),
        ("score", 1e39, "is out of range"),
        ("d", 10**400, "is out of range"),
        ("ok", 1, "is a number"),
        ("ok", [], "is a list"),
    ]
    records = [{**good, name: value} for name, value, _ in bad]
    records.insert(3, good)
    records.append({name: value for name, value in good.items() if name != "id"})
    data = "\n".join(map(json.dumps, records)).encode()
    got = read_file(tmp_path / "a.jsonl", data, Reading(keep=keep))
    assert got.texts == ["a"]
    assert got.keep == {"id": ["x"], "n": [-5], "score": [1.5], "ok": [True], "d": [3.0]}
    reasons = [f"kept field {name!r} {what}" for name, _, what in bad]
    assert got.reasons == [*reasons, "kept field 'id' is missing"]


def test_whole_numbers_written_as_floats_are_integers(tmp_path: Path):
    data = b'{"text":"a","n":1.0}\n{"text":"b","n":1e3}\n{"text":"c","n":-0.0}\n'
    got = read_file(tmp_path / "a.jsonl", data, Reading(keep=(("n", "int64"),)))
    assert got.keep["n"] == [1, 1000, 0]


def test_another_text_field(tmp_path: Path):
    data = b'{"body":"a","text":5}\n{"text":"b"}\n'
    got = read_file(tmp_path / "a.jsonl", data, Reading(text_field="body"))
    assert (got.texts, got.reasons) == (["a"], ["text is missing"])
    assert "'body'" in got.rejects[0].detail


def test_empty_files(tmp_path: Path):
    for name, format in [("a.jsonl", None), ("a.json", None), ("b.txt", "text-lines")]:
        got = read_file(tmp_path / name, b"", format=format)
        assert (got.texts, got.rejects) == ([], [])
    assert read_file(tmp_path / "c.txt", b"").texts == [""]
    for name in ("a.csv", "a.parquet", "a.arrow"):
        with pytest.raises(SourceError, match=rf"{name}: .*(header|whole)"):
            read_file(tmp_path / name, b"")


def test_text_lines(tmp_path: Path):
    got = read_file(
        tmp_path / "a.txt", b"\xef\xbb\xbfa\r\n\nb\r\r\n \n\r\nc\r", format="text-lines"
    )
    assert got.texts == ["a", "b\r", " ", "c\r"]
    assert got.positions == [0, 7, 11, 15]


def test_text_file_is_kept_as_it_is(tmp_path: Path):
    got = read_file(tmp_path / "a.txt", b"\xef\xbb\xbfa\r\nb\n\n")
    assert (got.texts, got.positions) == (["a\r\nb\n\n"], [0])


def test_text_has_no_fields_to_keep(tmp_path: Path):
    with pytest.raises(SourceError, match=r"a\.txt: .*no fields to keep"):
        read_file(tmp_path / "a.txt", b"a", Reading(keep=(("id", "str"),)))


@pytest.mark.parametrize(
    ("data", "texts", "reasons"),
    [
        ('[{"text":"a"},\n {"text":"b"}]\n', ["a", "b"], []),
        ("[]", [], []),
        (" [ ] ", [], []),
        ('[{"text":"a","x":[1,{"y":"]"}]}]', ["a"], []),
        ('[{"text":"\\"],["},{"text":\n"b"}]', ['"],[', "b"], []),
        ('["x",{"text":"a"},"]","y"]', ["a"], ["not a JSON object"] * 3),
        ('[{"text":"a"},5,null,["x"]]', ["a"], ["not a JSON object"] * 3),
        ('[{"text":"a\nb"},{"text":"c"}]', ["c"], ["not JSON"]),
        ('[{"text":"a"},x{"text":"b"},{"text":"c"}]', ["a", "c"], ["not JSON"]),
        ('[{"text":"a"},{"text":"\\ud800"}]', ["a"], ["invalid Unicode"]),
    ],
)  # fmt: skip
def test_json_array(tmp_path: Path, data: str, texts: list[str], reasons: list[str]):
    got = read_file(tmp_path / "a.json", data.encode())
    assert (got.texts, got.reasons) == (texts, reasons)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ('[{"text":"a"}', "cut short"),
        ('[{"text":"a"},{"text":"b', "cut short"),
        ('[{"text":"a"}]\n[{"text":"b"}]', "more than one JSON array"),
        ("[1,,2]", "a value is missing"),
        ('[{"text":"a"},]', "a value is missing"),
        ("[1}", "bracket"),
    ],
)
def test_damaged_json_array(tmp_path: Path, data: str, what: str):
    with pytest.raises(SourceError, match=rf"a\.json: .*{what}"):
        read_file(tmp_path / "a.json", data.encode())


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.fixed_dictionaries({"text": st.text()}),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    items=st.lists(VALUES, max_size=5),
    indent=st.sampled_from([None, 1]),
    size=st.integers(1, 9),
    changes=st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from(b'[]{},:"\\ \n1a\xff')), max_size=2
    ),
)
def test_json_arrays_give_what_json_gives(
    items: list[Any], indent: int | None, size: int, changes: list[tuple[int, int]]
):
    data = bytearray(json.dumps(items, indent=indent).encode())
    for at, octet in changes:
        if at < len(data):
            data[at] = octet
    chunks = (bytes(data[at : at + size]) for at in range(0, len(data), size))
    try:
        expected = json.loads(data.decode("utf-8", "surrogateescape"))
    except ValueError:
        expected = None
    if not isinstance(expected, list):
        with contextlib.suppress(SourceError):  # or some elements are rejects
            list(jsonarray.read(chunks, "x", 0, None, Reading()))
        return
    got = outcome(list(jsonarray.read(chunks, "x", 0, None, Reading())))
    texts = [item.get("text") for item in expected if isinstance(item, dict)]
    texts = [text for text in texts if isinstance(text, str) and unicode.is_valid(text)]
    assert got.texts == texts
    assert len(got.texts) + len(got.rejects) == len(expected)


def test_json_file_of_lines_is_jsonl(tmp_path: Path):
    got = read_file(tmp_path / "a.json", b'{"text":"a"}\n{"text":"b"}\n')
    assert got.texts == ["a", "b"]


def test_a_large_json_array_streams(tmp_path: Path):
    texts = [f"{n} " + "[{x}]" * 600 for n in range(2000)]
    data = json.dumps([{"text": text} for text in texts]).encode()
    assert len(data) > 2 * lines.BLOCK
    assert read_file(tmp_path / "a.json", data).texts == texts


def test_pathological_texts(tmp_path: Path):
    texts = ["a" * 1_000_000, "x" * 3_000_000, "ab" * 500_000, "\n" * 100_000, "é" * 2_000_000]
    data = "\n".join(json.dumps({"text": text}) for text in texts).encode()
    assert read_file(tmp_path / "a.jsonl", data).texts == texts
    assert read_file(tmp_path / "a.json", b"[" + data.replace(b"\n", b",") + b"]").texts == texts


def test_a_huge_record(tmp_path: Path):
    huge = b"y" * (20 << 20)
    data = b'{"text":"a"}\n{"text":"' + huge + b'"}\n{"text":"b"}\n'
    url, source = source_of(tmp_path / "a.jsonl", data)
    whole = read_range(url, source)
    assert [len(text) for text in whole.texts] == [1, len(huge), 1]
    assert read_range(url, source, 14, 10 << 20).texts == []
    assert read_range(url, source, 13, 14).positions == [13]
    assert read_range(url, source, 10 << 20, None).texts == ["b"]


def test_a_line_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "RECORD_LIMIT", 3 << 20)
    data = b'{"text":"a"}\n' + b"y" * (9 << 20)
    with pytest.raises(
        SourceError, match=r"a\.jsonl: a line of more than 3145728 bytes begins at byte 13"
    ):
        read_file(tmp_path / "a.jsonl", data)


def test_a_changed_file_is_refused(tmp_path: Path):
    for name, data in [("a.jsonl", b'{"text":"a"}\n'), ("a.txt", b"a"), ("a.csv", b"text\na\n")]:
        url, source = source_of(tmp_path / name, data)
        Path(url).write_bytes(data + b" ")
        with pytest.raises(
            SourceChanged, match=f"{name}: has {len(data) + 1} bytes, but had {len(data)}"
        ):
            read_range(url, source)
        Path(url).unlink()
        with pytest.raises(SourceError, match=f"{name}: there is no such file"):
            read_range(url, source)


def test_a_bad_line_does_not_slow_its_whole_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    exact = jsonl.decode_exact

    def counted(lines: jsonl.Lines, *rest: Any) -> Records:
        seen.append(len(lines))
        return exact(lines, *rest)

    monkeypatch.setattr(jsonl, "decode_exact", counted)
    good = b'{"text":"' + b"x" * 1000 + b'"}\n'
    got = read_file(tmp_path / "a.jsonl", good * 700 + b"bad\n" + good * 700)
    assert (len(got.texts), got.reasons) == (1400, ["not JSON"])
    assert sum(seen) < 100


def test_replaced_text_is_valid_everywhere(tmp_path: Path):
    column = pa.array([b"a", b"\xff", None, b"\xc3"], pa.binary())
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    got = read_file(tmp_path / "a.parquet", None, REPLACE)
    assert (got.texts, got.reasons, got.replaced) == (
        ["a", "\ufffd", "\ufffd"],
        ["text is null"],
        2,
    )
