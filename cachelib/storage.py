"""Storage: a URL as a key-value store with put-if-absent, and the arrays below it.

All access goes through TensorStore. One Context for the whole process bounds the decode cache and
the concurrency of every store opened here.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorstore as ts

from cachelib.canonical import seal, unseal
from cachelib.errors import CorruptData, ForebayError

DECODE_CACHE_BYTES = 256 << 20
"""Decoded chunks kept by all readers of this process together, in bytes."""

_used_in: set[int] = set()  # the processes in which TensorStore's threads were started


_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


def _check_fork() -> None:
    """Refuse use in a forked child: TensorStore's threads do not survive a fork and it aborts."""
    pid = os.getpid()
    if pid in _used_in:
        return
    if _used_in:
        raise ForebayError(
            f"process {pid} was forked from process {max(_used_in)}, which had already opened a "
            "Forebay cache; TensorStore cannot be used after a fork. Start worker processes with "
            "the 'spawn' or 'forkserver' method, or open the cache only in the workers"
        )
    _used_in.add(pid)


@functools.cache
def _context(kind: str) -> ts.Context:
    """The shared Context of readers ("read": with a decode cache) or writers ("write": none)."""
    retries = {"max_retries": 12, "initial_delay": "250ms", "max_delay": "8s"}
    return ts.Context(
        {
            "cache_pool": {"total_bytes_limit": DECODE_CACHE_BYTES if kind == "read" else 0},
            "gcs_request_retries": retries,
            "s3_request_retries": retries,
        }
    )


def canonical_url(location: str | os.PathLike[str]) -> str:
    """The location as a URL that ends in "/": local paths become absolute ``file://`` URLs.

    Raises:
        ValueError: the scheme is none of file, gs, s3, memory.
    """
    text = os.fspath(location)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return "file://" + str(Path(text).expanduser().resolve()) + "/"
    if scheme not in ("file", "gs", "s3", "memory"):
        raise ValueError(f"{text!r}: caches live on file://, gs:// or s3://, not {scheme}://")
    return f"{scheme}://{rest.rstrip('/')}/"


def _kvstore_spec(url: str) -> dict[str, Any]:
    scheme, _, rest = url.partition("://")
    if scheme in ("file", "memory"):
        return {"driver": scheme, "path": rest}
    bucket, _, path = rest.partition("/")
    if scheme == "gs":
        return {"driver": "gcs", "bucket": bucket, "path": path}
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": path}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        spec["endpoint"] = endpoint
        spec["aws_region"] = os.environ.get("AWS_REGION", "us-east-1")
    return spec


@dataclass(frozen=True)
class Storage:
    """The objects below one URL. Cheap to make, picklable; connections are opened on first use.

    Attributes:
        url: as `canonical_url` gives it.
    """

    url: str

    @classmethod
    def at(cls, location: str | os.PathLike[str]) -> Storage:
        """The storage at a local path or URL."""
        return cls(canonical_url(location))

    @property
    def local_path(self) -> Path | None:
        """The folder on this machine, or None for other stores."""
        scheme, _, rest = self.url.partition("://")
        return Path(rest) if scheme == "file" else None

    def where(self, key: str) -> str:
        """The full URL of a key, for messages."""
        return self.url + key

    def read(self, key: str) -> bytes | None:
        """The object's bytes, or None if there is none."""
        _check_fork()
        result = _open_store(self.url).read(key).result()
        return bytes(result.value) if result.state == "value" else None

    def read_many(self, keys: Iterable[str]) -> list[bytes | None]:
        """The bytes of several objects, read concurrently."""
        _check_fork()
        store = _open_store(self.url)
        results = [future.result() for future in [store.read(key) for key in keys]]
        return [bytes(r.value) if r.state == "value" else None for r in results]

    def write(self, key: str, data: bytes) -> None:
        """Write an object, replacing what is there."""
        _check_fork()
        _open_store(self.url).write(key, data).result()

    def write_many(self, objects: Mapping[str, bytes]) -> None:
        """Write several objects concurrently, replacing what is there."""
        _check_fork()
        store = _open_store(self.url)
        for future in [store.write(key, data) for key, data in objects.items()]:
            future.result()

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """Create an object; never replace one. Returns the bytes that are there afterwards.

        Equal bytes mean that the object says what the caller wanted, whoever wrote it. A write
        whose answer was lost is recognised by reading back.

        Raises:
            ForebayError: the write was reported as lost again and again, but nothing is there.
        """
        linked = self._link_if_absent(key, data)
        if linked is not None:
            return linked
        _check_fork()
        store = _open_store(self.url)
        for _ in range(5):
            seen = store.read(key).result()
            if seen.state == "value":
                return bytes(seen.value)
            stamp = store.write(key, data, if_equal=seen.stamp.generation).result()
            if stamp.generation:
                return data
        raise ForebayError(f"{self.where(key)}: five conditional writes lost, yet nothing is there")

    def _link_if_absent(self, key: str, data: bytes) -> bytes | None:
        """`put_if_absent` of a local file by a hard link; None where the store has no links.

        A link is made or not made in one step and needs no lock, while TensorStore's conditional
        write holds one, on which everybody waits if its holder was stopped.
        """
        if self.local_path is None:
            return None
        path = self.local_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f"{path.name}.__{os.urandom(8).hex()}.__lock")
        try:
            with written.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(written, path)
        except FileExistsError:
            return path.read_bytes()
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return None
        finally:
            written.unlink(missing_ok=True)
        return data

    def put_json(self, key: str, value: Any) -> Any:
        """`put_if_absent` of a sealed JSON value; returns the value that is there afterwards."""
        data = seal(value)
        there = self.put_if_absent(key, data)
        return value if there == data else unseal(there, self.where(key))

    def read_json(self, key: str) -> Any | None:
        """The value of a sealed JSON object, or None if there is none."""
        data = self.read(key)
        return None if data is None else unseal(data, self.where(key))

    def list(self, prefix: str) -> list[str]:
        """Keys below a prefix, sorted, relative to this storage's URL."""
        _check_fork()
        keys = _open_store(self.url).list(ts.KvStore.KeyRange(prefix, _after(prefix))).result()
        return sorted(key.decode() for key in keys)

    def delete_prefix(self, prefix: str) -> None:
        """Delete every object below a prefix."""
        _check_fork()
        _open_store(self.url).delete_range(ts.KvStore.KeyRange(prefix, _after(prefix))).result()

    def open_array(self, key: str, metadata: Mapping[str, Any], *, write: bool) -> ts.TensorStore:
        """The Zarr v3 array at a key, opened without a request from metadata known beforehand."""
        _check_fork()
        spec: dict[str, Any] = {
            "driver": "zarr3",
            "kvstore": _kvstore_spec(self.url + key + "/"),
            "metadata": dict(metadata),
            "recheck_cached_metadata": False,
            "recheck_cached_data": False,
        }
        if write:
            spec["store_data_equal_to_fill_value"] = True
        else:
            spec["fill_missing_data_reads"] = False
        return ts.open(
            spec,
            open=True,
            assume_metadata=True,
            read=not write,
            write=write,
            context=_context("write" if write else "read"),
        ).result()


def _after(prefix: str) -> str:
    """The first key after all keys that begin with the ASCII prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""


_stores_lock = threading.Lock()


@functools.cache
def _store(url: str) -> ts.KvStore:
    return ts.KvStore.open(_kvstore_spec(url), context=_context("write")).result()


def _open_store(url: str) -> ts.KvStore:
    with _stores_lock:
        return _store(url)


_SHORT_OF_DATA = re.compile(r"NOT_FOUND|DATA_LOSS|CRC|Digest|checksum|chunk .* is missing", re.I)


def read_error(error: Exception, what: str) -> Exception:
    """The error of an array read as the user should see it, naming what was read."""
    text = str(error)
    kind = CorruptData if _SHORT_OF_DATA.search(text) else ForebayError
    return kind(f"{what}: {text}")
