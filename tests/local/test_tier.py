"""Caches read through a local tier: always the right rows, whatever lies in the folder."""

from __future__ import annotations

import pickle
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib.errors import CorruptData
from cachelib.format.storage import Storage
from cachelib.local import folder as folders
from cachelib.local import tier as tiers
from cachelib.local.entry import FORMS, Form
from cachelib.local.tier import Tier
from cachelib.ragged import Ragged
from cachelib.reading import kept
from tests.cachelib.helpers import (
    EVERY_KIND,
    Columns,
    assert_equal,
    random_columns,
    take,
    write_cache,
)
from tests.reader.stored import seal, write_commit

LENGTHS = [3, 0, 5, 1, 7] * 260  # tokens in several objects of 1,024 chunks
COMMITS = [[300, 0, 500], [500]]

SMALL = [3, 0, 5, 1]


@pytest.fixture(scope="module")
def columns() -> Columns:
    return random_columns(EVERY_KIND, LENGTHS, seed=1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, columns: Columns) -> Path:
    path = tmp_path_factory.mktemp("written") / "cache"
    write_cache(path, EVERY_KIND, columns, COMMITS)
    return path


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> str:
    """The cache on this machine, or as TensorStore reads what is elsewhere."""
    if request.param == "file":
        shutil.copytree(written, tmp_path / "cache")
        return str(tmp_path / "cache")
    storage = Storage.at(f"memory://{tmp_path.name}-{tmp_path.parent.name}/")
    objects = (path for path in written.rglob("*") if path.is_file())
    storage.write_many({str(path.relative_to(written)): path.read_bytes() for path in objects})
    return storage.url


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Any]:
    """A small cache of tokens t and labels 10 * row; opened with a tier."""
    write_commit(tmp_path / "small", [SMALL, SMALL])

    def opened(form: Form = "encoded", **options: Any) -> Any:
        tier = {"local": tmp_path / "tier", "local_format": form}
        return cachelib.open(tmp_path / "small", **{**tier, **options})

    return opened


def filled(cache: Any) -> Any:
    """A cache of which all is kept."""
    cache.take(range(len(cache)))
    cache.provenance([0])
    cache.local.wait()
    return cache


def forget() -> None:
    """Know as little of what is on disk as another process."""
    tiers._entries().clear()


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_right_whatever_is_kept(
    url: str, columns: Columns, tmp_path: Path, form: Form
) -> None:
    cache: Any = cachelib.open(url, local=tmp_path / "tier", local_format=form)
    rng = np.random.default_rng(0)
    values = columns["tokens"]
    assert isinstance(values, Ragged)
    for turn in range(12):
        rows = rng.integers(0, len(cache), 1 + 40 * (turn % 4))
        assert_equal(cache.take(rows), take(columns, rows))
        starts = rng.integers(0, len(values.values) - 200, 5)
        np.testing.assert_array_equal(
            cache.read_elements("tokens", starts, 200),
            [values.values[start : start + 200] for start in starts],
        )
        if turn % 3 == 2:
            cache.local.wait()
            for file in random.Random(turn).sample(sorted((tmp_path / "tier").iterdir()), 5):
                file.unlink()  # as another process evicts them
            cache = cachelib.open(url, local=tmp_path / "tier", local_format=form)
            forget()
    assert_equal(cache.take(range(1300)), columns)
    assert cache.local.counts.damaged == 0
    assert cache.local.counts.hits > 0


@pytest.mark.parametrize("form", FORMS)
def test_what_is_kept_is_not_asked_for_again(url: str, tmp_path: Path, form: Form) -> None:
    options: dict[str, Any] = {"local": tmp_path / "tier", "local_format": form}
    first = filled(cachelib.open(url, **options))
    assert first.local.counts.hits == 0
    assert first.local.counts.downloaded == len(list((tmp_path / "tier").iterdir()))
    expected = first.take(range(1300))
    Storage.at(url).delete_prefix("shards/")
    forget()
    again = cachelib.open(url, **options)
    assert_equal(again.take(range(1300)), expected)
    assert again.local.counts.misses == 0
    assert "0 misses, 0 objects of 0 bytes downloaded" in repr(again.local)


@pytest.mark.parametrize("form", FORMS)
def test_damage_anywhere_gives_the_right_rows_and_is_mended(small: Any, form: Form) -> None:
    cache = filled(small(form))
    cache.provenance(range(8))
    cache.local.wait()
    files = sorted(Path(cache.local.folder).iterdir())
    whole = {file: file.read_bytes() for file in files}
    expected = cache.take(range(8))
    sources = cache.provenance(range(8))
    damage: list[Callable[[bytes], bytes]] = [
        lambda data: b"",
        lambda data: bytes(len(data)),
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
        lambda data: whole[files[0]] if data != whole[files[0]] else whole[files[1]],
    ]
    for at in range(max(map(len, whole.values()))):
        damage.append(lambda data, at=at: flipped(data, at))  # type: ignore[misc]
    for change in damage:
        for file, data in whole.items():
            # Put in the place of the other: who has that mapped may go on.
            file.with_name("new").write_bytes(change(data))
            file.with_name("new").replace(file)
        forget()
        kept.chunks._files().clear()
        kept.chunks._indices().clear()
        kept.chunks._kept().clear()
        cache = small(form)
        for _ in range(2):
            assert_equal(cache.take(range(8)), expected)
            assert cache.provenance(range(8)) == sources
            cache.local.wait()
            forget()
        assert cache.local.counts.damaged == cache.local.counts.downloaded
        assert {file: file.read_bytes() for file in files} == whole


def flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_damaged_where_the_cache_lies_is_not_kept(
    small: Any, tmp_path: Path, form: Form
) -> None:
    path = next((tmp_path / "small").glob("shards/0-0/*/tokens/data/c/0"))
    good = path.read_bytes()
    path.write_bytes(flipped(good, 3))
    cache = small(form)
    with pytest.raises(CorruptData, match="tokens/data"):
        cache.take([0], ["tokens"])
    cache.local.wait()
    path.write_bytes(good)
    assert filled(small(form)).take([0])["tokens"][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_a_cache_made_anew_in_its_place_is_never_mixed_with_it(
    small: Any, tmp_path: Path, form: Form
) -> None:
    filled(small(form))
    shutil.rmtree(tmp_path / "small")
    write_commit(tmp_path / "small", [[5, 1], SMALL])
    cache = small(form)
    assert cache.take([0, 1])["tokens"].lengths.tolist() == [5, 1]
    cache.local.wait()
    assert cache.take(range(6))["label"].tolist() == [0, 10, 20, 30, 40, 50]
    assert cache.local.counts.damaged == 0


def test_copies_of_a_cache_share_what_is_kept(small: Any, tmp_path: Path) -> None:
    filled(small())
    shutil.copytree(tmp_path / "small", tmp_path / "copy")
    forget()
    copy: Any = cachelib.open(tmp_path / "copy", local=tmp_path / "tier")
    copy.take(range(8))
    assert copy.local.counts.misses == 0


@pytest.mark.parametrize("form", FORMS)
def test_new_commits_and_eras_are_seen(small: Any, tmp_path: Path, form: Form) -> None:
    followed = small(form, follow=True)
    filled(small(form))
    assert filled(small(form)).take([-1])["label"].tolist() == [70]
    write_commit(tmp_path / "small", [SMALL])
    seal(tmp_path / "small", finished=True)
    assert small(form).take([-1])["label"].tolist() == [110]
    time.sleep(1.1)  # `following.LOOK_SECONDS`
    rows = followed.dataset().take([11])
    assert rows["label"].tolist() == [110]
    assert followed.local.counts.hits > 0
    assert small(form).at(0).local is not None


def test_only_bytes_of_arrays_are_kept(small: Any) -> None:
    cache = filled(small())
    assert (
        len(list(Path(cache.local.folder).iterdir())) == 8
    )  # tokens, offsets and labels of two shards, and the provenance of one


@pytest.mark.parametrize("form", FORMS)
def test_loaders_mixtures_and_pickled_readers_read_through_it(small: Any, form: Form) -> None:
    plain = small(local=None, local_format="encoded")

    def batches(cache: Any) -> list[list[list[int]]]:
        windows = cache.windows(4).shuffle(seed=0).repeat()
        mixed = cachelib.mix(
            {"a": windows, "b": cache.windows(4).repeat()}, {"a": 1, "b": 1}, seed=1
        )
        with mixed.loader(batch_size=4, prefetch=2) as loader:
            return [next(loader)["tokens"].tolist() for _ in range(6)]

    cache = small(form)
    assert batches(cache) == batches(plain)
    cache.local.wait()
    again = pickle.loads(pickle.dumps(cache))
    assert (again.local.folder, again.local.form) == (cache.local.folder, form)
    assert batches(again) == batches(plain)
    assert again.local.counts.misses == 0
    assert plain.local is None
    dataset = pickle.loads(pickle.dumps(cache.windows(4)))
    assert dataset.take([1])["tokens"].tolist() == [[4, 5, 6, 7]]


def test_a_full_folder_is_not_churned(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read elsewhere pays for what is downloaded in the place of other entries."""
    filled(small())
    folder = Path(small().local.folder)
    held = sum(file.stat().st_size for file in folder.iterdir())
    for file in folder.iterdir():
        file.unlink()
    monkeypatch.setattr(folders, "SPARED_SECONDS", -1.0)
    monkeypatch.setattr(tiers, "FULL_SECONDS", 0.0)
    cache = small(local_bytes=held // 2)
    for _ in range(40):
        cache.take(range(8))
        cache.local.wait()
        assert sum(file.stat().st_size for file in folder.iterdir()) <= held // 2
    counts = cache.local.counts
    assert counts.evicted > 0
    values = cache.nbytes() + 8 * 12 + 8 * (4 + 8)  # and provenance, and offsets of two shards
    assert counts.downloaded_bytes < held + 40 * values * 40


def test_a_folder_that_is_too_small_does_no_harm(small: Any, tmp_path: Path) -> None:
    cache = filled(small(local_bytes=0))
    assert cache.take([2])["label"].tolist() == [20]
    assert not list((tmp_path / "tier").iterdir())
    assert cache.local.counts.downloaded == 0


def test_where_nothing_can_be_written_reading_goes_on(small: Any, tmp_path: Path) -> None:
    (tmp_path / "tier").write_bytes(b"a file")
    with pytest.warns(UserWarning, match="nothing is kept in"):
        cache = small()
    assert cache.take([2])["label"].tolist() == [20]
    assert cache.take([2])["label"].tolist() == [20]
    assert cache.local.counts.misses > 0


def test_a_relative_path_is_taken_from_where_it_was_opened(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cache = small(local="tier")
    monkeypatch.chdir(tmp_path)
    filled(cache)
    assert cache.local.folder == str(tmp_path / "here" / "tier")
    assert list((tmp_path / "here" / "tier").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local": "gs://bucket/tier"}, "local must be the path of a folder on this machine"),
        ({"local": 3}, "local must be the path of a folder on this machine"),
        ({"local_format": "zip"}, "local_format must be one of encoded, raw"),
        ({"local_bytes": -1}, "local_bytes must be 0 or more"),
        ({"local_bytes": 1.5}, "local_bytes must be a number of bytes"),
        ({"local": None, "local_bytes": 5}, "need local"),
        ({"local": None, "local_format": "raw"}, "need local"),
    ],
)
def test_what_cannot_be_is_refused(small: Any, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        small(**options)


def test_deleted_rows_stay_deleted(tmp_path: Path) -> None:
    from pipelines import delete

    write_commit(tmp_path / "small", [SMALL, SMALL])
    options: dict[str, Any] = {"local": tmp_path / "tier", "local_format": "raw"}
    filled(cachelib.open(tmp_path / "small", **options))
    delete(tmp_path / "small", rows=[(2, 3)])
    cache: Any = cachelib.open(tmp_path / "small", **options)
    assert cache.dataset().take([2])["label"].tolist() == [30]
    assert cache.local.counts.misses == 0
    with pytest.raises(cachelib.RowDeleted):
        cache.take([2])


def test_a_tier_is_told_by_its_repr(tmp_path: Path) -> None:
    assert repr(Tier(tmp_path, "raw")) == (
        f"Tier({str(tmp_path)!r}, 'raw': 0 hits, 0 misses, 0 objects of 0 bytes downloaded, "
        "0 damaged, 0 evicted)"
    )
