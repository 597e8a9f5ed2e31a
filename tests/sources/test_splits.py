"""Any cut of a file into ranges gives every record once, at the same position."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.sources import Reading, Source, read
from pipelines.sources.lines import Block, blocks
from tests.sources.helpers import joined, read_range, source_of

JSONL = (
    '\ufeff{"text": "a\\r\\nb"}\r\n'
    '\r\n  \n{"text": "é€😀 \\" quote"}\n'
    "not JSON\r\n"
    '{"text": "\u2028"}\n\n{"text":"last"}'
).encode()
LINES = "\ufeffa\r\n\r\n\n é€😀\r\r\n\u2028x\u0085\nlast\r".encode()
CSV = 'id,text\r\n1,"a\r\nb ""q"" é"\r\n\r\n2,x\n3,"€\n\n😀"\n4,b,c\n5,""\n6,z'.encode()
ARRAY = '\ufeff[ {"text": "a],é"} ,\n{"text":\n"€[\\"😀"}, 7,{"text":"x"}\t] \n'.encode()


def sweep(url: str, source: Source, end: int) -> None:
    """Two ranges cut at every offset, many ranges of every small size, and resumes."""
    whole = read_range(url, source)
    assert len(whole.texts) > 2
    for cut in range(end + 3):
        parts = [read_range(url, source, 0, cut), read_range(url, source, cut, None)]
        assert joined(parts) == whole, cut
    for size in range(1, 8):
        edges = [*range(0, end, size), end]
        pairs = itertools.pairwise(edges)
        assert joined([read_range(url, source, *pair) for pair in pairs]) == whole, size


@pytest.mark.parametrize(
    ("name", "data", "format"),
    [
        ("a.jsonl", JSONL, "jsonl"),
        ("a.jsonl", JSONL.replace(b"\xef\xbb\xbf", b"") + b"\n", "jsonl"),
        ("a.jsonl.gz", gzip.compress(JSONL[:40]) + gzip.compress(JSONL[40:]), "jsonl"),
        ("a.txt", LINES, "text-lines"),
        ("a.txt", LINES.removeprefix(b"\xef\xbb\xbf") + b"\n", "text-lines"),
        ("a.txt.bz2", bz2.compress(LINES), "text-lines"),
        ("a.json", ARRAY, "json"),
    ],
)
def test_every_byte_offset(tmp_path: Path, name: str, data: bytes, format: str):
    url, source = source_of(tmp_path / name, data, format)
    sweep(url, source, max(len(JSONL), len(LINES), len(ARRAY)))


def test_every_row_of_csv(tmp_path: Path):
    url, source = source_of(tmp_path / "a.csv", CSV)
    sweep(url, source, 6)


def test_every_row_of_parquet_and_arrow(tmp_path: Path):
    table = pa.table({"text": ["a", None, "b", "c", "", "d", "e"]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=2)
    with pa.ipc.new_stream(tmp_path / "c.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
    for name in ("a.parquet", "b.arrow", "c.arrow"):
        url, source = source_of(tmp_path / name)
        assert source.extent == 7
        sweep(url, source, 7)


def test_a_whole_file_of_text_is_one_position(tmp_path: Path):
    url, source = source_of(tmp_path / "a.txt", b"x\ny")
    assert source.extent == 1
    assert read_range(url, source, 0, 1).texts == ["x\ny"]
    assert read_range(url, source, 1, None).texts == []
    assert read_range(url, source, 0, 0).texts == []


def test_resume_from_the_stop_of_any_run(tmp_path: Path):
    data = b"".join(b'{"text": "%d%s"}\n' % (n, b"x" * 3000) for n in range(3000))
    url, source = source_of(tmp_path / "a.jsonl", data)
    runs = list(read(url, source, 0, None, Reading()))
    assert len(runs) > 3
    whole = read_range(url, source)
    for run in runs:
        before, after = read_range(url, source, 0, run.stop), read_range(url, source, run.stop)
        assert joined([before, after]) == whole


def chunked(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    file = io.BytesIO(data)
    for size in [*sizes, *([7] * len(data))]:
        if not (chunk := file.read(size)):
            return
        yield chunk


@given(
    lines=st.lists(st.sampled_from([b"", b"a", b"bcd\r", b"\xef\xbb\xbf", b"efghijk"])),
    closed=st.booleans(),
    sizes=st.lists(st.integers(1, 6), max_size=20),
    block=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
def test_blocks_are_whole_lines_once(
    lines: list[bytes], closed: bool, sizes: list[int], block: int, cuts: list[int]
):
    data = b"\n".join(lines) + (b"\n" if closed else b"")
    mark = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    begins = [0] + [at + 1 for at in range(len(data)) if data[at] == 10]
    # A record is a line with its end; the mark is of none, but its line begins before it.
    expected = [
        (begin, data[max(begin, mark if begin == 0 else 0) : end])
        for begin, end in zip(begins, [*begins[1:], len(data)], strict=True)
        if begin < len(data)
    ]
    expected = [(begin, line) for begin, line in expected if line]
    found: list[tuple[int, bytes]] = []
    edges: list[int | None] = [0, *sorted(cuts), None]
    for start, stop in itertools.pairwise(edges):
        assert start is not None
        run: list[Block] = list(
            blocks(lambda at, until: chunked(data[at:], sizes), start, stop, "x", block)
        )
        assert run[0].start == start
        assert run[-1].stop == (max(len(data), start) if stop is None else stop)
        for one in run:
            firsts, ends = one.bounds()
            positions = one.positions(firsts).tolist()
            texts = [one.data[a : b + 1] for a, b in zip(firsts, ends, strict=True)]
            found += zip(positions, texts, strict=True)
            assert all(one.start <= position < one.stop for position in positions)
        for before, after in itertools.pairwise(run):
            assert before.stop == after.start
    assert found == expected
