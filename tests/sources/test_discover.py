"""Patterns to sources: what is taken, what is left out, and what each file is."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import socket
from pathlib import Path

import pytest

from cachelib.errors import SourceError
from cachelib.format.commit import commit_key
from pipelines.sources import Discovery, Source, discover, files, inspect, url_of
from pipelines.sources.discover import files_of

LINE = b'{"text": "a"}\n'


def fill(root: Path, *paths: str, data: bytes = LINE) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def names(found: Discovery) -> list[str]:
    return [source.name for source in found.sources]


def test_a_folder_gives_every_data_file_below_it(tmp_path: Path):
    kept = ["a.jsonl", "b/c.ndjson", "b/d.JSONL", "e.txt", "f.json", "g.jsonl.gz", "h.txt.zst"]
    fill(tmp_path, *kept)
    fill(tmp_path, "t.csv", "t.tsv", data=b"text\na\n")
    other = [
        "README.md",
        "x.py",
        "y.zip",
        ".hidden.jsonl",
        "_x.jsonl",
        ".git/a.jsonl",
        "_t/b.jsonl",
    ]
    fill(
        tmp_path, *other, "z.jsonl.tmp", "z.jsonl.part", "z.jsonl~", ".z.jsonl.crc", "z.crdownload"
    )
    found = discover([str(tmp_path)])
    assert names(found) == sorted([*kept, "t.csv", "t.tsv"])
    assert found.roots == (str(tmp_path),)
    why = {url.removeprefix(f"{tmp_path}/"): why for url, why in found.skipped}
    assert why == {
        "README.md": "unknown suffix",
        "x.py": "unknown suffix",
        "y.zip": "unknown suffix",
        ".hidden.jsonl": "hidden",
        "_x.jsonl": "hidden",
        ".git/": "hidden",
        "_t/": "hidden",
        ".z.jsonl.crc": "hidden",
        "z.jsonl.tmp": "temporary",
        "z.jsonl.part": "temporary",
        "z.jsonl~": "temporary",
        "z.crdownload": "temporary",
    }


def test_a_folder_with_a_format_gives_all_its_files(tmp_path: Path):
    fill(tmp_path, "a.py", "b/README", ".c.py", "d.jsonl", data=b"x = 1\n")
    found = discover([str(tmp_path)], format="text")
    assert names(found) == ["a.py", "b/README", "d.jsonl"]
    assert {source.format for source in found.sources} == {"text"}


def test_globs(tmp_path: Path):
    fill(tmp_path, "a.jsonl", "b/c.jsonl", "b/d/e.jsonl", "b/f.txt", "b/_g.jsonl", "b/.h/i.jsonl")
    fill(tmp_path, "b/x.jsonl.tmp")

    def got(pattern: str) -> tuple[list[str], str]:
        found = discover([str(tmp_path / pattern)])
        return names(found), found.roots[0].removeprefix(str(tmp_path))

    assert got("**/*.jsonl") == (["a.jsonl", "b/c.jsonl", "b/d/e.jsonl"], "")
    assert got("b/*.jsonl") == (["c.jsonl"], "/b")
    assert got("*/*.jsonl") == (["b/c.jsonl"], "")
    assert got("b/**") == (["c.jsonl", "d/e.jsonl", "f.txt"], "/b")
    assert got("b/[ce]*") == (["c.jsonl"], "/b")
    assert got("b/_*.jsonl") == (["_g.jsonl"], "/b")
    assert got("?.jsonl") == (["a.jsonl"], "")


def test_a_glob_takes_every_suffix_but_must_know_the_format(tmp_path: Path):
    fill(tmp_path, "a.data", "b.data")
    assert [s.format for s in discover([str(tmp_path / "*.data")]).sources] == ["jsonl", "jsonl"]
    fill(tmp_path, "c.data", data=b"hello")
    with pytest.raises(SourceError, match=r"c\.data: neither .* format: text \(--format text\)"):
        discover([str(tmp_path / "*.data")])
    assert len(discover([str(tmp_path / "*.data")], format="text-lines").sources) == 3


def test_single_files_and_names_with_magic(tmp_path: Path):
    fill(tmp_path, "a[1]*.jsonl", "_b.jsonl")
    found = discover([str(tmp_path / "a[1]*.jsonl"), str(tmp_path / "_b.jsonl")])
    assert names(found) == ["_b.jsonl", "a[1]*.jsonl"]
    assert url_of(found.roots[0], found.sources[0]) == str(tmp_path / "_b.jsonl")


def test_file_urls_are_local(tmp_path: Path):
    fill(tmp_path, "a b.jsonl")
    found = discover([f"file://{tmp_path}/a%20b.jsonl"])
    assert found == discover([str(tmp_path / "a b.jsonl")])


def test_relative_inputs_have_absolute_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(tmp_path, "x/a.jsonl")
    monkeypatch.chdir(tmp_path)
    assert discover(["x"]).roots == discover(["x/*.jsonl"]).roots == (str(tmp_path / "x"),)
    assert discover(["x/a.jsonl"]).roots == (str(tmp_path / "x"),)


def test_named_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(tmp_path, "x/a.jsonl", "y/a.jsonl", "date=2024/a.jsonl")
    with pytest.raises(SourceError, match=r"two files have the name 'a\.jsonl'.*NAME=PATTERN"):
        discover([str(tmp_path / "x"), str(tmp_path / "y")])
    found = discover([f"web={tmp_path}/x", f"code-1.0={tmp_path}/y"])
    assert names(found) == ["code-1.0/a.jsonl", "web/a.jsonl"]
    monkeypatch.chdir(tmp_path)
    assert names(discover(["date=2024/*.jsonl"])) == ["a.jsonl"]
    assert names(discover(["d=date=2024/*.jsonl"])) == ["d/a.jsonl"]


def test_the_same_file_twice(tmp_path: Path):
    fill(tmp_path, "x/a.jsonl", "x/b.jsonl")
    found = discover(
        [str(tmp_path / "x"), str(tmp_path / "x/*.jsonl"), str(tmp_path / "x/a.jsonl")]
    )
    assert names(found) == ["a.jsonl", "b.jsonl"]
    with pytest.raises(SourceError, match=r"a\.jsonl: is given twice, as 'a\.jsonl' and as 'x/a"):
        discover([str(tmp_path), str(tmp_path / "x/a.jsonl")])


def test_the_order_of_inputs_and_listings_does_not_matter(tmp_path: Path):
    fill(tmp_path, *(f"{folder}/{n}.jsonl" for folder in "xyz" for n in range(5)))
    inputs = [f"{folder}={tmp_path}/{folder}" for folder in "xyz"]
    first = discover(inputs)
    random.Random(0).shuffle(inputs)
    assert discover(inputs) == first
    assert names(first) == sorted(names(first))


def test_nothing_found(tmp_path: Path):
    fill(tmp_path, "a.md", ".b.jsonl")
    for pattern, message in [
        (str(tmp_path), r"no data file; left out: .b.jsonl \(hidden\), a.md \(unknown .*--format"),
        (str(tmp_path / "*.jsonl"), "matches no data file"),
        (str(tmp_path / "nothing.jsonl"), r"nothing\.jsonl: there is no such file"),
    ]:  # fmt: skip
        with pytest.raises(SourceError, match=message):
            discover([pattern])
    with pytest.raises(SourceError, match="no inputs"):
        discover([])
    with pytest.raises(TypeError, match="sequence of patterns"):
        discover("data")
    with pytest.raises(ValueError, match=r"format must be one of .*'jason'"):
        discover(["data"], format="jason")


def test_links(tmp_path: Path):
    fill(tmp_path, "x/a.jsonl")
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "link.jsonl").symlink_to(tmp_path / "x" / "a.jsonl")
    (tmp_path / "y" / "folder").symlink_to(tmp_path / "x")
    (tmp_path / "y" / "loop").symlink_to(tmp_path / "y")
    assert names(discover([str(tmp_path / "y")])) == ["folder/a.jsonl", "link.jsonl"]
    (tmp_path / "y" / "dangling.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceError, match=r"dangling\.jsonl: there is no such file"):
        discover([str(tmp_path / "y")])


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path):
    fill(tmp_path, "a.jsonl")
    os.mkfifo(tmp_path / "b.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "c.jsonl"))
    (tmp_path / "d.jsonl").symlink_to("/dev/null")
    for pattern in (tmp_path, tmp_path / "*.jsonl"):
        found = discover([str(pattern)])
        assert names(found) == ["a.jsonl"]
        assert found.skipped == tuple(
            (str(tmp_path / name), f"not a regular file ({kind})")
            for name, kind in [("b.jsonl", "FIFO"), ("c.jsonl", "socket"), ("d.jsonl", "device")]
        )
    with pytest.raises(SourceError, match=r"b\.jsonl: is not a regular file"):
        discover([str(tmp_path / "b.jsonl")])


@pytest.mark.parametrize("begun", [False, True], ids=["with commits", "without one yet"])
def test_files_of_a_cache_are_no_sources(tmp_path: Path, begun: bool):
    mark = "_plans/000000-ab.json" if begun else commit_key(0)
    inside = ("shards/12/manifest.json", "tokenizer/34/tokenizer.json", mark)
    fill(tmp_path, "a.jsonl", "shards/b.json", *(f"cache/{path}" for path in inside))
    fill(tmp_path, "cache/notes/c.jsonl")
    cache = str(tmp_path / "cache")
    left = {(f"{cache}/{part}/", "part of a Forebay cache") for part in ("shards", "tokenizer")}
    found = discover([str(tmp_path)])
    assert names(found) == ["a.jsonl", "cache/notes/c.jsonl", "shards/b.json"]
    assert left < set(found.skipped)
    found = discover([str(tmp_path / "**" / "*.json*")])
    assert names(found) == ["a.jsonl", "cache/notes/c.jsonl", "shards/b.json"]
    assert (f"{cache}/{inside[0]}", "part of a Forebay cache") in found.skipped
    shutil.rmtree(tmp_path / "cache" / "notes")
    for pattern in (cache, f"{cache}/shards", f"{cache}/shards/12/*.json"):
        with pytest.raises(SourceError, match=r"matches no data file.*part of a Forebay cache"):
            discover([pattern])
    # A file that is named is meant.
    assert len(discover([f"{cache}/{inside[1]}"]).sources) == 1


def test_names_are_unicode_in_one_form(tmp_path: Path):
    fill(tmp_path, "cafe\u0301.jsonl")
    (source,) = discover([str(tmp_path)]).sources
    assert (source.name, source.path) == ("caf\u00e9.jsonl", "cafe\u0301.jsonl")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_bytes(LINE)
    with pytest.raises(SourceError, match="not UTF-8: rename"):
        discover([str(tmp_path)])


def deny(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let a folder be one that may not be listed, also where root runs the tests."""
    real = os.scandir

    def scandir(path: str) -> object:
        if os.fspath(path) == str(folder):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_a_folder_that_cannot_be_listed_is_named_by_its_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fill(tmp_path, "a.jsonl", "d/b.jsonl", "d/e/c.jsonl")
    deny(monkeypatch, tmp_path / "d" / "e")
    with pytest.raises(SourceError, match=r"^[^ ]*/d/e: access is denied"):
        discover([str(tmp_path)])
    found = files_of(f"n={tmp_path}", any_suffix=False)
    assert [file.name for file in found.files] == ["n/a.jsonl", "n/d/b.jsonl"]
    assert [file.name for file, _ in found.faults] == ["n/d/e/"]
    deny(monkeypatch, tmp_path)
    with pytest.raises(SourceError, match="access is denied"):
        files_of(str(tmp_path), any_suffix=False)


@pytest.mark.parametrize("pattern", ["", "*.jsonl", "**"])
def test_what_cannot_be_used_does_not_hide_what_can(tmp_path: Path, pattern: str):
    fill(tmp_path, "a.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "loop.md").symlink_to("loop.md")  # would be no source anyway, but for a glob
    (tmp_path / "nowhere.jsonl").symlink_to("gone")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_bytes(LINE)
    found = files_of(str(tmp_path / pattern), any_suffix=False)
    assert [file.name for file in found.files] == ["a.jsonl"]
    faults = {file.name: fault for file, fault in found.faults}
    assert set(faults) - {"loop.md"} == {"loop.jsonl", "nowhere.jsonl", "\\xff.jsonl"}
    assert ("loop.md" in faults) == (pattern == "**")
    for name in ("loop.jsonl", "nowhere.jsonl"):
        assert faults[name].startswith(f"{tmp_path}/{name}: ")
        with pytest.raises(SourceError, match=name):
            discover([str(tmp_path / name)])


def test_unreadable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(tmp_path, "a.jsonl")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.os, "open", denied)
    with pytest.raises(SourceError, match=r"a\.jsonl: access is denied"):
        discover([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "data", "format"),
    [
        ("a.json", b' \n{"text": "a"}', "jsonl"),
        ("a.json", b'\xef\xbb\xbf [{"text": "a"}]', "json"),
        ("a.json", b"", "jsonl"),
        ("a.jsonl", b'["a"]', "jsonl"),
        ("a.txt", b'{"text": "a"}', "text"),
        ("a.json.gz", gzip.compress(b'[{"text": "a"}]'), "json"),
        ("a", b'{"text": "a"}', "jsonl"),
        ("a", b'[{"text": "a"}]', "json"),
        ("a.b.csv.bz2", b"text\na", "csv"),
    ],
)
def test_formats(tmp_path: Path, name: str, data: bytes, format: str):
    fill(tmp_path, name, data=data)
    (source,) = discover([str(tmp_path / name)]).sources
    assert source.format == format


def test_versions_follow_the_content(tmp_path: Path):
    fill(tmp_path, "x/a.jsonl", "y/a.jsonl")
    fill(tmp_path, "x/b.jsonl", data=LINE.replace(b"a", b"b"))
    a, b = discover([str(tmp_path / "x")]).sources
    (copied,) = discover([str(tmp_path / "y")]).sources
    assert a == copied
    assert a.version != b.version
    assert a.version.startswith(f"{len(LINE)}-")


def test_versions_of_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inspect, "HASHED_WHOLE", 1 << 20)
    data = bytearray(random.Random(1).randbytes(5 << 20))
    fill(tmp_path, "a.txt", data=bytes(data))

    def version() -> str:
        return discover([str(tmp_path / "a.txt")]).sources[0].version

    first = version()
    for at in (0, len(data) - 1, len(data) // 2):
        # The middle may lie between two samples.
        starts = inspect.sample_starts(len(data))
        seen = any(start <= at < start + inspect.SAMPLE for start in starts)
        changed = bytearray(data)
        changed[at] ^= 1
        (tmp_path / "a.txt").write_bytes(changed)
        assert (version() != first) == seen
    assert starts[0] == 0
    assert starts[-1] == len(data) - inspect.SAMPLE


def test_sources_go_through_json(tmp_path: Path):
    source = Source(1, "x/é.jsonl", "é.jsonl", 5, "5-ab", "jsonl", "gz", None, (3, 4))
    assert Source.from_json(source.to_json()) == source
    with pytest.raises(ValueError, match=r"format must be one of .* got 'xml'"):
        Source(0, "a", "a", 0, "", "xml", None, None)
    with pytest.raises(ValueError, match=r"compression must be .* got 'lz4'"):
        Source(0, "a", "a", 0, "", "jsonl", "lz4", None)


def test_many_small_files(tmp_path: Path):
    for number in range(500):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * number)
    found = discover([str(tmp_path)])
    assert sorted(source.size for source in found.sources) == list(range(500))
