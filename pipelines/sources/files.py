"""Files by path or URL: opened, checked against the plan, read in chunks."""

from __future__ import annotations

import functools
import io
import os
import re
import socket
import ssl
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from cachelib.errors import ForebayError, SourceChanged, SourceError
from cachelib.format import endpoints
from cachelib.format.storage import Storage
from pipelines.sources import compression
from pipelines.sources.records import Source

CHUNK = 2 << 20
"""Bytes read at a time."""

REMOTE_BLOCK = 4 << 20
"""Bytes of one range request."""

HTTP = ("http://", "https://")

STORES = ("gs://", "gcs://", "s3://", "s3a://")
"""Object stores: they show an object only when all of it is there, and tell its checksum."""


def is_local(url: str) -> bool:
    """Whether a path or URL names a file of this machine."""
    return "://" not in url or url.startswith("file://")


def local_path(url: str) -> str:
    """The path of a local file, given by path or by a file:// URL."""
    return unquote(urlsplit(url).path) if url.startswith("file://") else url


def join(root: str, path: str) -> str:
    """The URL of a file below a root."""
    return f"{root.rstrip('/')}/{path}"


def lies_in(url: str, storage: Storage) -> bool:
    """Whether a file lies in a cache, by their URLs."""
    place = storage.local_path
    if place is not None:
        return is_local(url) and local_path(url).startswith(f"{place}{os.sep}")
    return _as_gs_or_s3(url).startswith(storage.url)


def _as_gs_or_s3(url: str) -> str:
    """A URL of an object store by the scheme that caches have there."""
    scheme, separator, rest = url.partition("://")
    return {"gcs": "gs", "s3a": "s3"}.get(scheme, scheme) + separator + rest


def url_of(root: str, source: Source) -> str:
    """Where a source lies, given the root that its index names."""
    return join(root, source.path)


@contextmanager
def naming(url: str) -> Iterator[None]:
    """What goes wrong inside becomes a SourceError that names the file."""
    try:
        yield
    except (ForebayError, MemoryError):
        raise
    except Exception as error:  # each remote file system has exceptions of its own
        raise SourceError(fault_of(url, error)) from error


def fault_of(url: str, error: Exception) -> str:
    """What an error says of a file or folder, and what to do."""
    absent = isinstance(error, FileNotFoundError)
    if (absent or url.startswith(HTTP)) and (reason := _unreached(error)) is not None:
        return _no_server(url, reason)
    if absent:
        return f"{url}: {fault_of_bucket(url) or 'there is no such file; check the path'}"
    if isinstance(error, PermissionError):
        return f"{url}: access is denied; check its permissions"
    if url.startswith(STORES) and (fault := _fault_of_access(url, error)) is not None:
        return f"{url}: {fault}"
    return (
        f"{url}: cannot be read: {type(error).__name__}: {error}; "
        "check that it is there, whole and readable"
    )


def fault_of_bucket(url: str) -> str | None:
    """Why nothing of a remote URL's bucket can be had, or None; as of `endpoints.fault_of`."""
    return endpoints.fault_of(_as_gs_or_s3(url))


def _fault_of_access(url: str, error: Exception) -> str | None:
    """What keeps an object from being read, by the exceptions of gcsfs and s3fs, or None."""
    told = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "NoCredentialsError":
        return "no credentials are found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if re.match(r"OSError: Forbidden|HttpError: .*\b40[13]\b|.*Anonymous caller", told):
        return f"access is denied; check the credentials and what they may do there ({error})"
    return fault_of_bucket(url)


def _unreached(error: BaseException | None) -> BaseException | None:
    """What of the network, by the causes of an error, kept a server from being reached, or None."""
    found = None
    while error is not None:
        if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError)):
            found = error
        error = error.__cause__ or error.__context__
    return found


def _no_server(url: str, reason: BaseException) -> str:
    server = urlsplit(url).netloc.rpartition("@")[2]
    return (
        f"{url}: the server {server} could not be reached: {reason}; check the URL and the network"
    )


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a remote URL, and the path within it."""
    endpoints.agree()
    if url.startswith(STORES):
        bucket = "/".join(_as_gs_or_s3(url).split("/", 3)[:3])
        if (server := endpoints.server_of(bucket)) is not None:
            _reach(server, bucket)
    import fsspec.core

    # A remembered listing would hide that a file has changed.
    options = {"use_listings_cache": False} if url.startswith(STORES) else {}
    return fsspec.core.url_to_fs(url, **options)


@functools.cache
def _reach(server: str, bucket: str) -> None:
    """Check once that a bucket is there: gcsfs looks for a server that is not for a minute."""
    if (fault := endpoints.fault_of(bucket)) is not None:
        raise SourceError(f"{bucket}: {fault}") from ConnectionError(server)


def check_size(url: str, found: int | None, expected: int) -> None:
    """SourceChanged unless the file has the size that it was planned with."""
    if found != expected:
        raise SourceChanged(
            f"{url}: has {found} bytes, but had {expected} when it was planned; "
            "plan again, or put back the file as it was"
        )


@contextmanager
def open_stored(url: str, size: int | None, position: int = 0) -> Iterator[BinaryIO]:
    """The bytes as stored, from a position on; seekable wherever the store is.

    Args:
        url: path or URL.
        size: the bytes it must have, or None not to check.
        position: where reading begins.
    """
    with naming(url):
        file = _open_local(url, size) if is_local(url) else _open_remote(url, size)
        try:
            _seek(file, position)
        except BaseException:
            file.close()
            raise
    try:
        yield file
    finally:
        file.close()


def _open_local(url: str, size: int | None) -> BinaryIO:
    # Opening a pipe would wait for a writer; on regular files the flag means nothing.
    descriptor = os.open(local_path(url), os.O_RDONLY | os.O_NONBLOCK)
    file = os.fdopen(descriptor, "rb", buffering=0)
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise SourceError(f"{url}: is not a regular file")
    if size is not None and status.st_size != size:
        file.close()
        check_size(url, status.st_size, size)
    return file


def _open_remote(url: str, size: int | None) -> BinaryIO:
    files, path = filesystem(url)
    if url.startswith(STORES):
        file = files.open(path, "rb", block_size=REMOTE_BLOCK, cache_type="readahead")
        if size is not None:
            check_size(url, file.size, size)
        return file
    info = files.info(path)
    if size is not None:
        check_size(url, info.get("size"), size)
    if url.startswith(HTTP) and not _has_ranges(files, path, info):
        return io.BufferedReader(_Stream(files.open(path, "rb", block_size=0)))
    return files.open(path, "rb", block_size=REMOTE_BLOCK, cache_type="readahead")


def _has_ranges(files: Any, path: str, info: dict[str, Any]) -> bool:
    """Whether an HTTP server gives parts of a file; found by asking for its second byte."""
    if info.get("partial") is False or (info.get("size") or 0) < 2:
        return False
    with files.open(path, "rb", cache_type="none") as file:
        try:
            file.seek(1)
            return len(file.read(1)) == 1
        except ValueError:  # fsspec found that the answer is the whole file
            return False


class _Stream(io.RawIOBase):
    """A file of fsspec that can only be read from its beginning, and says so."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.file.close()
        super().close()


def _seek(file: BinaryIO, position: int) -> None:
    if position == 0:
        return
    if file.seekable():
        file.seek(position)
        return
    left = position
    while left and (skipped := len(file.read(min(left, CHUNK)))):
        left -= skipped


def stored_chunks(
    url: str, size: int, position: int = 0, until: int | None = None
) -> Iterator[bytes]:
    """The bytes from a position to the end of the file, as they are stored.

    Up to ``until`` they come in chunks of at most `CHUNK`; a reader that needs a little more than
    that goes on in small ones. Remote files are read one chunk ahead.

    Raises:
        SourceChanged: the file does not have ``size`` bytes.
    """
    chunks = _stored_chunks(url, size, position, until)
    return chunks if is_local(url) else ahead(chunks)


def _stored_chunks(url: str, size: int, position: int, until: int | None) -> Iterator[bytes]:
    with open_stored(url, size, position) as file:
        while position < size:
            wanted = CHUNK if until is None else min(CHUNK, max(until - position, CHUNK >> 4))
            with naming(url):
                chunk = file.read(min(wanted, size - position))
            if not chunk:
                check_size(url, position, size)
            position += len(chunk)
            yield chunk


def plain_chunks(
    url: str, source: Source, position: int = 0, until: int | None = None
) -> Iterator[bytes]:
    """The decompressed bytes from a position on; for a compressed source by reading up to it."""
    if source.compression is None:
        yield from stored_chunks(url, source.size, position, until)
        return
    skip = position
    stored = stored_chunks(url, source.size)
    for chunk in compression.decompress(stored, source.compression, url):
        if skip >= len(chunk):
            skip -= len(chunk)
            continue
        yield chunk[skip:] if skip else chunk
        skip = 0


def ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks, the next one being fetched while one is in use."""
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        upcoming = pool.submit(next, chunks, None)
        while (chunk := upcoming.result()) is not None:
            upcoming = pool.submit(next, chunks, None)
            yield chunk


@contextmanager
def open_plain(url: str, source: Source) -> Iterator[BinaryIO]:
    """The decompressed content as a seekable file; by a temporary copy where it must be."""
    if source.compression is None:
        with open_stored(url, source.size) as file:
            if file.seekable():
                yield file
                return
    with tempfile.TemporaryFile() as copy:
        for chunk in plain_chunks(url, source):
            copy.write(chunk)
        copy.seek(0)
        yield copy


@contextmanager
def open_mapped(url: str, source: Source) -> Iterator[Any]:
    """As `open_plain`, but a local file is mapped: what is not looked at takes no memory."""
    if source.compression is not None or not is_local(url):
        with open_plain(url, source) as file:
            yield file
        return
    with open_stored(url, source.size):
        pass  # it is there, and has its size
    with naming(url):
        mapped = pa.memory_map(local_path(url))
    with mapped:
        yield mapped
