"""Storage: a URL as a key-value store with put-if-absent, and the arrays below it.

Objects on this machine are read and put as files; all else goes through TensorStore. It is imported
when it is first used, since that takes as long as the rest of `cachelib`. What bounds its decode
cache and concurrency is shared by every store that one process opens here.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelib.errors import CorruptData, ForebayError, StorageError
from cachelib.format import endpoints, waiting
from cachelib.format.canonical import seal, unseal

if TYPE_CHECKING:
    import tensorstore as ts

DECODE_CACHE_BYTES = 256 << 20
"""Decoded chunks kept by all readers of this process together, in bytes."""

REQUESTS = 128
"""Requests that this process has under way at once with each of gs:// and s3://.

A shuffled window is one or two of them. With TensorStore's own limit of 32, at 50 ms each, they are
10 batches of 64 windows a second, whatever the bandwidth (bench/README.md).
"""

_used_in: set[int] = set()  # the processes in which TensorStore's threads were started


_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})

_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


def is_no_file(error: OSError) -> bool:
    """Whether an error of reading says that no file is there: nothing, a folder, or a link to
    itself. Others are about access.
    """
    return error.errno in _NO_FILE


def check_fork() -> None:
    """Refuse use in a forked child: TensorStore's threads do not survive a fork and it aborts.

    Raises:
        ForebayError: this process was forked from one that had used a store.
    """
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
    """The Context of reads through the decode cache ("cached") or of all other access ("direct").

    Both share retries, concurrency limits and what lies on memory://.
    """
    import tensorstore as ts

    if kind == "shared":
        shared = ("memory_key_value_store", "file_io_concurrency", "data_copy_concurrency")
        return ts.Context(
            {
                "gcs_request_retries": waiting.retries(),
                "s3_request_retries": waiting.retries(),
                "gcs_request_concurrency": {"limit": REQUESTS},
                "s3_request_concurrency": {"limit": REQUESTS},
                **{name: {} for name in shared},
            }
        )
    limit = DECODE_CACHE_BYTES if kind == "cached" else 0
    return ts.Context({"cache_pool": {"total_bytes_limit": limit}}, _context("shared"))


def canonical_url(location: str | os.PathLike[str]) -> str:
    """The location as a URL that ends in "/": local paths become absolute ``file://`` URLs without
    a host; ``file://localhost/`` is this machine as well.

    Raises:
        ValueError: it is empty or not UTF-8, its scheme is none of file, gs, s3, memory or is
            followed by one slash, or it is a ``file://`` URL of another host.
    """
    text = os.fspath(location)
    if not text:
        raise ValueError("expected the path or URL of a cache, got ''")
    if (mistyped := re.match(r"(file|gs|s3|memory|https?):/(?!/)", text)) is not None:
        raise ValueError(
            f"{text!r} has one slash where a URL has two: say {mistyped[1]}://..., or './{text}' "
            "for a folder of that name"
        )
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        local = _path_of(_checked(rest)) if separator else Path(_checked(text)).expanduser()
        path = str(local.resolve())
        return f"file://{_checked(path).rstrip('/')}/"
    if scheme not in ("gs", "s3", "memory"):
        raise ValueError(f"caches live on file://, gs:// or s3://, not on {text!r}")
    if scheme in ("gs", "s3") and not rest.strip("/"):
        raise ValueError(f"{text!r} names no bucket")
    _checked(text)
    return f"{scheme}://{rest.rstrip('/')}/"


def _path_of(rest: str) -> Path:
    """The absolute path in a file URL, given what comes after ``file://``."""
    host, _, path = rest.partition("/")
    if host.lower() not in ("", "localhost"):
        raise ValueError(
            f"file://{rest} names the host {host!r}, but files are read on this machine: say "
            f"file:///... with an absolute path, or {rest!r} for a path from the working directory"
        )
    return Path("/", path)


def _checked(name: str) -> str:
    fault = not_utf8(name)
    if fault is not None:
        raise ValueError(f"{name!r} {fault}")
    return name


def file_names_are_utf8() -> bool:
    """Whether this process takes names of files and arguments as UTF-8; its locale decides."""
    return sys.getfilesystemencoding() == "utf-8"


def not_utf8(text: str) -> str | None:
    """Why a file name or argument cannot be used, or None: its bytes are to be UTF-8."""
    with suppress(UnicodeEncodeError):
        if os.fsencode(text) == text.encode("utf-8"):
            return None
    if file_names_are_utf8():
        return "is not UTF-8: rename it"
    return (
        f"is not ASCII, and Python takes file names as {sys.getfilesystemencoding()} here: set a "
        "UTF-8 locale, such as LC_ALL=C.UTF-8, or PYTHONUTF8=1"
    )


def _kvstore_spec(url: str) -> dict[str, Any]:
    scheme, _, rest = url.partition("://")
    if scheme in ("file", "memory"):
        return {"driver": scheme, "path": rest}
    bucket, _, path = rest.partition("/")
    if scheme == "gs":
        endpoints.agree()
        return {"driver": "gcs", "bucket": bucket, "path": path}
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": path}
    if (endpoint := endpoints.s3_endpoint()) is not None:
        spec |= {"endpoint": endpoint, "aws_region": endpoints.s3_region()}
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

    @classmethod
    def of_object(cls, location: str | os.PathLike[str]) -> tuple[Storage, str]:
        """The storage that holds the object at a local path or URL, and its key there.

        Raises:
            ValueError: as of `canonical_url`, or it names no object but the root of a store.
        """
        folder, _, key = canonical_url(location).rstrip("/").rpartition("/")
        if not key or key.endswith(":"):
            raise ValueError(f"{os.fspath(location)!r} names no object")
        return cls.at(f"{folder}/"), key

    @property
    def local_path(self) -> Path | None:
        """The folder on this machine, or None for other stores."""
        scheme, _, rest = self.url.partition("://")
        return Path(rest) if scheme == "file" else None

    def fault(self) -> str | None:
        """Why nothing can be here: there is no such bucket, or no server. None where neither is
        known.
        """
        return endpoints.fault_of(self.url)

    def where(self, key: str) -> str:
        """The full URL of a key, for messages."""
        return self.url + key

    def read(self, key: str) -> bytes | None:
        """The object's bytes, or None if there is none."""
        return self.read_many([key])[0]

    def read_many(self, keys: Iterable[str]) -> list[bytes | None]:
        """The bytes of several objects, read concurrently where that helps."""
        if self.local_path is not None:
            check_fork()
            return [self._file(key) for key in keys]
        store = _open_store(self.url)
        reads = [(key, store.read(key)) for key in keys]
        results = [result_of(future, self.where(key)) for key, future in reads]
        return [bytes(r.value) if r.state == "value" else None for r in results]

    def _file(self, key: str) -> bytes | None:
        assert self.local_path is not None
        try:
            return (self.local_path / key).read_bytes()
        except OSError as error:
            if is_no_file(error):
                return None
            raise StorageError(f"{self.where(key)}: {error}") from error

    def write(self, key: str, data: bytes) -> None:
        """Write an object, replacing what is there.

        On local disk this takes no lock, unlike TensorStore, whose lock everybody waits for if its
        holder was stopped.
        """
        if self.local_path is None:
            self.write_many({key: data})
            return
        path = self.local_path / key
        try:
            with _written_beside(path, data) as written:
                written.replace(path)
        except OSError as error:
            raise StorageError(f"{self.where(key)}: {error}") from error

    def write_many(self, objects: Mapping[str, bytes]) -> None:
        """Write several objects concurrently, replacing what is there."""
        store = _open_store(self.url)
        writes = [(key, store.write(key, data)) for key, data in objects.items()]
        for key, future in writes:
            result_of(future, self.where(key))

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """Create an object; never replace one. Returns the bytes that are there afterwards.

        Equal bytes mean that the object says what the caller wanted, whoever wrote it. A write
        that was reported as lost or failed is read back: it may have taken place.

        Raises:
            StorageError: the write was reported as lost or failed, and nothing is there.
        """
        linked = self._link_if_absent(key, data)
        if linked is not None:
            return linked
        store, where = _open_store(self.url), self.where(key)
        failed: StorageError | None = None
        for _ in range(5):
            seen = result_of(store.read(key), where)
            if seen.state == "value":
                return bytes(seen.value)
            if failed is not None:
                raise failed
            try:
                stamp = result_of(store.write(key, data, if_equal=seen.stamp.generation), where)
            except StorageError as error:
                failed = error
                continue
            if stamp.generation:
                return data
        lost = "five conditional writes lost, yet nothing is there"
        raise StorageError(f"{where}: {self.fault() or lost}")

    def _link_if_absent(self, key: str, data: bytes) -> bytes | None:
        """`put_if_absent` of a local file by a hard link; None where the store has no links.

        A link is made or not made in one step and needs no lock, while TensorStore's conditional
        write holds one, on which everybody waits if its holder was stopped.
        """
        if self.local_path is None:
            return None
        path = self.local_path / key
        try:
            with _written_beside(path, data) as written:
                try:
                    os.link(written, path)
                except FileExistsError:
                    return path.read_bytes()
            _sync_folder(path.parent)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return None
            raise StorageError(f"{self.where(key)}: {error}") from error
        return data

    def put_json(self, key: str, value: Any) -> Any:
        """`put_if_absent` of a sealed JSON value; returns the value that is there afterwards."""
        data = seal(value)
        there = self.put_if_absent(key, data)
        return value if there == data else self.unsealed(key, there)

    def read_json(self, key: str) -> Any | None:
        """The value of a sealed JSON object, or None if there is none."""
        return self.unsealed(key, self.read(key))

    def unsealed(self, key: str, data: bytes | None) -> Any | None:
        """The value of a sealed JSON object of which these bytes were read, None for none.

        What is damaged is read once more: it may have been on its way.

        Raises:
            CorruptData: it is damaged again.
        """
        if data is None:
            return None
        try:
            return unseal(data, self.where(key))
        except CorruptData:
            data = self.read(key)
            return None if data is None else unseal(data, self.where(key))

    def list(self, prefix: str) -> list[str]:
        """Keys below a prefix, sorted, relative to this storage's URL."""
        import tensorstore as ts

        keys = _open_store(self.url).list(ts.KvStore.KeyRange(prefix, _after(prefix)))
        found = sorted(key.decode() for key in result_of(keys, self.where(prefix)))
        if not found and self.url.startswith("gs://"):
            # TensorStore takes a listing that is denied for an empty one. Who may not list is not
            # told either that there is no object.
            self.read(f"{prefix}-")
        return found

    def delete_prefix(self, prefix: str) -> None:
        """Delete every object below a prefix."""
        import tensorstore as ts

        if self.url.startswith("gs://") and not self.list(prefix):
            return  # what is denied is an error of listing only, as above
        keys = ts.KvStore.KeyRange(prefix, _after(prefix))
        result_of(_open_store(self.url).delete_range(keys), self.where(prefix))

    def delete(self, key: str) -> None:
        """Delete an object, if it is there; of files also one that was not written to its end."""
        if self.local_path is None:
            result_of(_open_store(self.url).write(key, None), self.where(key))
            return
        try:
            (self.local_path / key).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{self.where(key)}: {error}") from error

    def delete_folder(self, prefix: str, first: str) -> None:
        """Delete all that lies below a prefix that ends in "/", unfinished writes included.

        Args:
            first: the key below it that is deleted before all others.
        """
        folder = self.local_path
        if folder is None:
            self.delete(prefix + first)
            self.delete_prefix(prefix)
            return
        try:
            (folder / prefix / first).unlink(missing_ok=True)
            for path, folders, files in os.walk(folder / prefix, topdown=False):
                for file in files:
                    (Path(path) / file).unlink(missing_ok=True)
                for name in folders:
                    _remove_empty(Path(path) / name)
            _remove_empty(folder / prefix)
            _remove_empty((folder / prefix).parent)
        except NotADirectoryError:
            return  # something else is there
        except OSError as error:
            raise StorageError(f"{self.where(prefix)}: {error}") from error

    def open_array(
        self, key: str, metadata: Mapping[str, Any], *, write: bool, cached: bool = True
    ) -> ts.TensorStore:
        """The Zarr v3 array at a key, opened without a request from metadata known beforehand.

        Args:
            write: for writing only, else for reading only.
            cached: reads go through the decode cache of this process, else to the store.
        """
        import tensorstore as ts

        check_fork()
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
        with _opening:
            context = _context("cached" if cached and not write else "direct")
        array = ts.open(
            spec, open=True, assume_metadata=True, read=not write, write=write, context=context
        )
        return _opened(array, self.where(key))


def _remove_empty(folder: Path) -> None:
    """Remove a folder, unless somebody writes into it or has removed it."""
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """A file of these bytes, on disk, in the folder of a path; gone afterwards if still there.

    TensorStore takes names that end like this for its own and does not list them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.__{os.urandom(8).hex()}.__lock")
    try:
        with written.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield written
    finally:
        with suppress(OSError):
            written.unlink()


def _sync_folder(folder: Path) -> None:
    """Let a new name in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _after(prefix: str) -> str:
    """The first key after all keys that begin with the ASCII prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""


_opening = threading.Lock()  # functools.cache may call a function twice at once


@functools.cache
def _store(url: str) -> ts.KvStore:
    import tensorstore as ts

    try:
        opening = ts.KvStore.open(_kvstore_spec(url), context=_context("direct"))
    except Exception as error:  # a name that cannot be
        raise StorageError(f"{url}: {error}") from error
    return _opened(opening, url)


def _open_store(url: str) -> ts.KvStore:
    check_fork()
    with _opening:
        return _store(url)


def _opened(future: Any, where: str) -> Any:
    """What TensorStore opens without a request; errors as `StorageError`, naming the place."""
    try:
        return future.result()
    except Exception as error:
        raise StorageError(f"{where}: {_in_words(error)}") from error


def result_of(future: Any, where: str) -> Any:
    """What a request of TensorStore gives; errors as `StorageError`, naming the place."""
    try:
        return waiting.wait(future, where)
    except ForebayError:
        raise
    except Exception as error:
        missing = str(error).startswith("NOT_FOUND: ")
        fault = endpoints.fault_of(where) if missing else None
        raise StorageError(f"{where}: {fault or _in_words(error)}") from error


def _in_words(error: Exception) -> str:
    """An error of TensorStore with what it means, without the text of the answer."""
    text = str(error).partition(" [")[0]
    if text.startswith(("PERMISSION_DENIED: ", "UNAUTHENTICATED: ")):
        return f"access is denied; check the credentials and what they may do there ({text})"
    if " retry attempts failed: " in text:
        tried = f"it was tried again for {waiting.retry_seconds():g} s ({waiting.VARIABLE})"
        return f"the store is too busy or cannot be reached; {tried}: try again later ({text})"
    return text


# What damaged or missing objects lead to; other kinds are about access to the store.
_SHORT_OF_DATA = re.compile(
    r"^(NOT_FOUND|DATA_LOSS|FAILED_PRECONDITION|OUT_OF_RANGE|INVALID_ARGUMENT): "
)


def values_of(part: Any, read: Any, where: str, what: Callable[[], str]) -> np.ndarray:
    """The values of a part of an array that are being read.

    What is damaged is read once more: it may have been on its way.

    Args:
        part: a view of TensorStore.
        read: the future of reading it.
        where: the URL that is asked for.
        what: names what is read, for messages.

    Raises:
        CorruptData: stored bytes are missing or damaged, and were so again.
        StorageError: they could not be had.
    """
    for future in (lambda: read, part.read):
        try:
            return np.asarray(waiting.wait(future(), where))
        except ForebayError:
            raise
        except Exception as error:
            failed = read_error(error, what())
            failed.__cause__ = error
        if not isinstance(failed, CorruptData):
            break
    raise failed


def read_error(error: Exception, what: str) -> ForebayError:
    """The error of an array read as the user should see it, naming what was read."""
    kind = CorruptData if _SHORT_OF_DATA.search(str(error)) else StorageError
    return kind(f"{what}: {_in_words(error)}")
