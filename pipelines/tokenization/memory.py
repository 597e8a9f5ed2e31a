"""Memory: what was found out about a tokenizer, in a folder of this user."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson


def remembered(kind: str, about: bytes, find: Callable[[], Any], folder: Path | None = None) -> Any:
    """What ``find`` gives, a JSON value; it is called only where nothing is remembered.

    Args:
        kind: of what is found; names files.
        about: all that the result depends on.
        folder: where results are kept; by default ``$XDG_CACHE_HOME/forebay`` or
            ``~/.cache/forebay``. What a damaged file held is found again; a folder that cannot be
            written is done without.
    """
    path = (folder or _user_folder()) / f"{kind}-{_digest(about)}.json"
    known = _read(path)
    if known is None:
        known = orjson.dumps(find())
        _write(path, known)
    return orjson.loads(known)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _user_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "forebay"


def _read(path: Path) -> bytes | None:
    try:
        body, digest = path.read_bytes().split(b"\n")[:2]
    except (OSError, ValueError):
        return None
    return body if _digest(body).encode() == digest else None


def _write(path: Path, body: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body + b"\n" + _digest(body).encode() + b"\n")
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
