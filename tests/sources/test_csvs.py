"""CSV and TSV: quoting, rows that do not fit, typed cells."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelib.errors import SourceError
from pipelines.sources import Reading, csvs
from pipelines.sources.lines import Block
from tests.sources.helpers import check, outcome, read_file


def test_quotes_and_line_ends(tmp_path: Path):
    data = b'\xef\xbb\xbfid,text\r\n1,"a\nb\r\n"\r\n\r\n2,"say ""hi"", x"\r\n3,c'
    got = read_file(tmp_path / "a.csv", data)
    assert (got.texts, got.positions) == (["a\nb\r\n", 'say "hi", x', "c"], [0, 1, 2])


def test_cells_are_text_and_never_inferred(tmp_path: Path):
    got = read_file(tmp_path / "a.csv", b"id,text\n1,007\n2,NA\n3,1e5\n4,\n5,null\n6, x \n")
    assert got.texts == ["007", "NA", "1e5", "", "null", " x "]


def test_tabs(tmp_path: Path):
    assert read_file(tmp_path / "t.tsv", b"id\ttext\n1\ta, b\n2\tc\n").texts == ["a, b", "c"]


def test_ragged_rows_are_rejects(tmp_path: Path):
    got = read_file(tmp_path / "a.csv", b"id,text\n1,a\n2,b,c\n3\n4,d\n")
    assert (got.texts, got.positions) == (["a", "d"], [0, 3])
    assert got.reasons == ["wrong number of cells"] * 2
    assert [reject.position for reject in got.rejects] == [1, 2]
    assert got.rejects[0].detail == "3 cells where the header has 2"
    assert got.rejects[0].excerpt == "2,b,c\n"


def test_a_quote_in_a_wrong_place_is_a_reject(tmp_path: Path):
    got = read_file(tmp_path / "a.csv", b'id,text\n1,"a"b\n2,c\n3,say "hi"\n')
    assert (got.texts, got.reasons) == (["c", 'say "hi"'], ["not CSV"])


def test_a_quote_that_is_never_closed_is_an_error(tmp_path: Path):
    with pytest.raises(SourceError, match=r"a\.csv: row 1 has a quote that is never closed"):
        read_file(tmp_path / "a.csv", b'id,text\n1,a\n2,"b\n3,c\n')


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "no header row"),
        (b"\n\n", "no header row"),
        (b"id,body\n1,a\n", "no column is called 'text'; its columns are 'id', 'body'"),
        (b"text,text\n1,a\n", "two columns are called 'text'"),
        (b'"text\n1,a\n', "header row is not CSV"),
    ],
)
def test_headers_that_do_not_serve(tmp_path: Path, data: bytes, what: str):
    with pytest.raises(SourceError, match=rf"a\.csv: .*{what}"):
        read_file(tmp_path / "a.csv", data)


def test_only_a_header_gives_no_rows(tmp_path: Path):
    assert read_file(tmp_path / "a.csv", b"text").texts == []


def test_kept_cells(tmp_path: Path):
    reading = Reading(keep=(("n", "int32"), ("f", "float64"), ("b", "bool"), ("s", "str")))
    rows = [
        ("1,2.5,true,x", ""),
        (" -7 ,1e3,False,", ""),
        ("+3,nan,1,y", ""),
        ("1.0,1,0,x", "kept field 'n' is not a number"),
        ("1_0,1,0,x", "kept field 'n' is not a number"),
        ("2147483648,1,0,x", "kept field 'n' is out of range"),
        ("9" * 5000 + ",1,0,x", "kept field 'n' is out of range"),
        (",1,0,x", "kept field 'n' is empty"),
        ("1,1_0,0,x", "kept field 'f' is not a number"),
        ("1,1e999,0,x", "kept field 'f' is out of range"),
        ("1,1,yes,x", "kept field 'b' is not a boolean"),
    ]
    data = "n,f,b,s,text\n" + "".join(f"{row},t{index}\n" for index, (row, _) in enumerate(rows))
    got = read_file(tmp_path / "a.csv", data.encode(), reading)
    assert got.texts == ["t0", "t1", "t2"]
    assert got.reasons == [reason for _, reason in rows if reason]
    assert got.keep["n"] == [1, -7, 3]
    assert repr(got.keep["f"]) == "[2.5, 1000.0, nan]"
    assert got.keep["b"] == [True, False, True]
    assert got.keep["s"] == ["x", "", "y"]


def test_a_huge_cell(tmp_path: Path):
    text = 'line "1"\n' * 300_000
    data = io.StringIO()
    csv.writer(data).writerows([["text"], [text], ["b"]])
    assert read_file(tmp_path / "a.csv", data.getvalue().encode()).texts == [text, "b"]


def test_many_rows_come_in_several_runs(tmp_path: Path):
    data = b"text\n" + b"".join(b"%d %s\n" % (n, b"x" * 2000) for n in range(3000))
    got = read_file(tmp_path / "a.csv", data)
    assert got.positions == list(range(3000))


@given(
    rows=st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.text(max_size=3))),
    delimiter=st.sampled_from(["csv", "tsv"]),
    cuts=st.lists(st.integers(0, 100), max_size=3),
)
def test_what_csv_writes_is_read(rows: list[tuple[str, str]], delimiter: str, cuts: list[int]):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=csvs.DELIMITERS[delimiter], quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "id"), *rows])
    data = text.getvalue().encode("utf-8", "replace")
    lines = data.split(b"\n")
    whole = [line + b"\n" for line in lines[:-1]]
    edges = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    parts = [b"".join(whole[a:b]) for a, b in itertools.pairwise(edges)]
    blocks = (Block(part, 0, 0, len(part)) for part in parts)
    runs = list(csvs.read(blocks, delimiter, "x", 0, None, Reading()))
    for run in runs:
        check(run)
    got = outcome(runs)
    assert got.rejects == []
    assert got.texts == [cell for cell, _ in rows]
