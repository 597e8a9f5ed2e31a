"""A folder of entries: what is kept there, what goes, and what is never touched."""

from __future__ import annotations

import errno
import os
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachelib.errors import CorruptData
from cachelib.local import folder as folders
from cachelib.local.entry import END_BYTES, checks_of, name_of
from cachelib.local.folder import Folder

BODY = bytes(range(250)) * 4
SIZE = len(BODY) + END_BYTES
NO_CHECKS = np.empty(0, np.uint32)


def name(number: int) -> str:
    return name_of(str(number), "encoded")


def put(folder: Folder, number: int, age: float = 0) -> bool:
    """Keep an entry that was used so many seconds ago."""
    kept = folder.put(name(number), BODY, NO_CHECKS)
    if kept and age:
        os.utime(Path(folder.path, name(number)), (time.time() - age,) * 2)
    return kept


def test_an_entry_is_found_by_other_folders_of_the_same_path(tmp_path: Path) -> None:
    raw = name_of("0", "raw")
    assert Folder(str(tmp_path / "new" / "folder"), None).put(raw, BODY, checks_of(BODY, 64))
    other = Folder(str(tmp_path / "new" / "folder"), None)
    entry = other.open(raw, 16)
    assert entry is not None
    assert bytes(entry.view) == BODY
    os.unlink(entry.path)  # evicted by another process
    assert bytes(entry.view) == BODY
    assert not other.touch(entry)
    assert other.open(raw, 16) is None


def test_an_entry_of_another_layout_is_damaged(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), None)
    folder.put(name(0), BODY, NO_CHECKS)
    with pytest.raises(CorruptData, match="0 checks, expected 16"):
        folder.open(name(0), 16)


def test_the_bound_holds_and_what_was_used_last_stays(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), 3 * SIZE)
    for number, age in enumerate((2000, 4000, 3000)):
        assert put(folder, number, age)
    assert Folder(str(tmp_path), 3 * SIZE).room(SIZE) == "evicting"
    later = Folder(str(tmp_path), 3 * SIZE)
    assert put(later, 3)
    assert {file.name for file in tmp_path.iterdir()} == {name(n) for n in (0, 2, 3)}
    assert later.evicted == 1


def test_what_is_in_use_is_not_evicted_for_what_is_to_come(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), 2 * SIZE)
    assert put(folder, 0)
    assert put(folder, 1)
    assert folder.room(SIZE) == "none"
    assert not put(folder, 2)
    assert folder.room(3 * SIZE) == "none"
    assert {file.name for file in tmp_path.iterdir()} == {name(0), name(1)}


def test_a_smaller_bound_is_kept_to_at_once(tmp_path: Path) -> None:
    for number in range(4):
        put(Folder(str(tmp_path), None), number, 100 - number)
    assert Folder(str(tmp_path), 2 * SIZE).room(1) == "none"
    assert {file.name for file in tmp_path.iterdir()} == {name(2), name(3)}


def test_nothing_else_is_counted_or_removed(tmp_path: Path) -> None:
    foreign = {"notes.txt": b"x" * 9000, "forebay-1.raw": b"y", "forebay-x.part": b"z"}
    for other, data in foreign.items():
        (tmp_path / other).write_bytes(data)
    (tmp_path / name(7)).mkdir()
    (tmp_path / "away").write_bytes(b"a")
    (tmp_path / name(8)).symlink_to(tmp_path / "away")
    for file in tmp_path.iterdir():
        os.utime(file, (0, 0))
    folder = Folder(str(tmp_path), SIZE)
    for number in range(3):
        put(folder, number, 2000)
        folder = Folder(str(tmp_path), SIZE)
    assert {file.name for file in tmp_path.iterdir()} == {
        *foreign, "away", name(2), name(7), name(8)
    }  # fmt: skip
    assert not put(folder, 7)
    assert not list(tmp_path.glob("*.part.*"))


def test_what_killed_processes_leave_is_removed_after_a_while(tmp_path: Path) -> None:
    fresh, left = (tmp_path / f"{name(0)}.{c * 16}.part" for c in "ab")
    for part in (fresh, left):
        part.write_bytes(BODY)
    os.utime(left, (time.time() - folders.LEFT_SECONDS - 9,) * 2)
    assert Folder(str(tmp_path), 2 * len(BODY)).room(len(BODY)) == "free"
    assert [*tmp_path.iterdir()] == [fresh]
    assert Folder(str(tmp_path), 2 * len(BODY)).room(len(BODY) + 1) == "none"  # it counts


def test_a_tenth_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(Folder(str(tmp_path), None), 0, 2000)

    def usage(_: str) -> Any:
        return type("Usage", (), {"total": 100_000, "free": 10_000 + 2 * SIZE})

    monkeypatch.setattr(folders.shutil, "disk_usage", usage)
    assert Folder(str(tmp_path), None).room(2 * SIZE) == "free"
    assert Folder(str(tmp_path), None).room(2 * SIZE + 1) == "evicting"
    assert Folder(str(tmp_path), None).room(3 * SIZE + 1) == "none"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_folder_that_takes_nothing_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = Folder(str(tmp_path), None)
    put(folder, 0)

    def refused(self: Folder, *_: Any) -> bool:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Folder, "_write", refused)
    with pytest.warns(UserWarning, match=os.strerror(number)):
        assert not put(folder, 1)
    assert not folder.takes
    assert folder.room(1) == "none"
    assert folder.open(name(0), None) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not put(folder, 2)
    monkeypatch.undo()
    monkeypatch.setattr(folders, "time", Later)
    assert folder.takes == (number in (errno.ENOSPC, errno.EDQUOT))


class Later:
    """The clock, some time from now."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() + 2 * folders.PAUSE_SECONDS


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    folder = Folder(str(tmp_path), None)
    monkeypatch.setattr(folders.os, "replace", refused)
    with pytest.warns(UserWarning, match="broken"):
        assert not put(folder, 0)
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_cannot_be_made_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.warns(UserWarning, match="nothing is kept in"):
        folder = Folder(str(tmp_path / "file" / "below"), None)
    assert folder.open(name(0), None) is None
    assert not put(folder, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_users_share_a_folder_as_far_as_they_may(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    mine = Folder(str(shared), 3 * SIZE)
    put(mine, 0, 4000)
    put(mine, 1, 4000)
    (shared / name(1)).chmod(0o600)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setuid(65534)
            theirs = Folder(str(shared), 3 * SIZE)
            assert theirs.open(name(0), None) is not None
            assert theirs.open(name(1), None) is None
            assert not theirs.put(name(1), BODY, NO_CHECKS)
            assert theirs.takes
            assert put(theirs, 2, 4000)
            theirs = Folder(str(shared), 3 * SIZE)
            assert put(theirs, 3)  # only its own may go for it
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {file.name for file in shared.iterdir()} == {name(n) for n in (0, 1, 3)}
    assert mine.open(name(3), None) is not None
