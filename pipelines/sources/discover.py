"""Inputs to sources: patterns, folders and URLs are listed, and each file is inspected."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from cachelib.errors import SourceError
from cachelib.format.commit import commit_key
from cachelib.format.storage import not_utf8
from cachelib.words import legible
from pipelines.sources import files
from pipelines.sources.inspect import format_by_name, inspect, told_stamp
from pipelines.sources.records import FORMATS, Source

THREADS = 16
NAMED = re.compile(r"([\w.+-]+)=(.+)", re.S)
TEMPORARY = (
    "*.tmp",
    "*.temp",
    "*.part",
    "*.partial",
    "*.crc",
    "*.crdownload",
    "*.swp",
    "*~",
    "#*#",
)
CACHE_PARTS = ("shards", "tokenizer")
"""Folders of a Forebay cache that hold files which would look like sources; others are hidden."""

PART_OF_A_CACHE = "part of a Forebay cache"
HF_MARKS = ("state.json", "dataset_info.json")
HF_DATA = "data-*.arrow"


@dataclass(frozen=True)
class Discovery:
    """The sources of a request.

    Attributes:
        roots: folders or URLs, sorted; a source lies at ``url_of(roots[source.root], source)``.
        sources: sorted by name.
        skipped: (URL, why) of what lies in the folders and matches the globs, but is no source.
        inspected_ns: when they began to be looked for, in nanoseconds since the epoch.
    """

    roots: tuple[str, ...]
    sources: tuple[Source, ...]
    skipped: tuple[tuple[str, str], ...]
    inspected_ns: int = field(compare=False)


@dataclass(frozen=True)
class Listing:
    """What one input stands for.

    Attributes:
        root: folder or URL without a slash at the end.
        paths: the files, relative to the root.
        skipped: (path, why) of files that are left out; a folder ends with a slash.
        faults: (path, fault) of files and folders that cannot be used, but would be.
        stamps: what a remote store's listing says of a file's content, by path.
    """

    root: str
    paths: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    stamps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class File:
    """One file before it is inspected.

    Attributes:
        name: as of its source.
        url, root, path: where it lies.
        stamp: what its store's listing says of its content; "" where that is not known.
    """

    name: str
    url: str
    root: str
    path: str
    stamp: str = field(default="", compare=False)


@dataclass(frozen=True)
class Found:
    """The files that one input stands for.

    Attributes:
        files: in no order.
        faults: (file, fault) of files and folders that cannot be used, but would be.
        skipped: (URL, why) of what is left out.
    """

    files: tuple[File, ...]
    faults: tuple[tuple[File, str], ...]
    skipped: tuple[tuple[str, str], ...]


Why = str | SourceError | None
"""Why something that is listed is no file to read; an error where it should be one."""


def discover(inputs: Sequence[str], *, format: str | None = None) -> Discovery:
    """The sources that the inputs stand for.

    Args:
        inputs: "[NAME=]PATTERN" each. PATTERN is a file, a folder (every file below it of a known
            suffix) or a glob (every match), local or any URL that fsspec knows. NAME, of letters,
            digits and ``_.+-``, comes before the names of its files; a local PATTERN that exists
            as it is written has no NAME.
        format: of all files, in place of what content and name tell; folders then give all
            their files.

    Raises:
        SourceError: an input matches nothing; two files have one name, or one file two names; a
            file or a folder below an input cannot be read; the format of a file is not known.
    """
    if isinstance(inputs, str):
        raise TypeError(f"inputs must be a sequence of patterns, got the string {inputs!r}")
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if not inputs:
        raise SourceError("no inputs: name at least one file, folder or glob")
    inspected_ns = time.time_ns()
    found: set[File] = set()
    skipped: set[tuple[str, str]] = set()
    for given in inputs:
        there = files_of(given, any_suffix=format is not None)
        for _, fault in there.faults:
            raise SourceError(fault)
        found.update(there.files)
        skipped.update(there.skipped)
    ordered = sorted(found)
    for _, fault in clashes(ordered):
        raise SourceError(fault)
    roots = tuple(sorted({file.root for file in ordered}))
    with ThreadPoolExecutor(THREADS, "inspect") as pool:
        sources = pool.map(lambda file: inspect_file(file, roots, format), ordered)
        return Discovery(roots, tuple(sources), tuple(sorted(skipped)), inspected_ns)


def files_of(given: str, *, any_suffix: bool) -> Found:
    """The files that one input stands for.

    Raises:
        SourceError: it matches nothing, or cannot be listed, which is then the cause.
    """
    name, pattern = split_name(given)
    listing = list_files(pattern, any_suffix=any_suffix)
    if not listing.paths and not listing.faults:
        fault = files.fault_of_bucket(pattern)
        raise SourceError(_nothing(given, listing) if fault is None else f"{pattern}: {fault}")
    faults = dict(listing.faults)
    found, useless = [], []
    for path in (*listing.paths, *faults):
        url = files.join(listing.root, path)
        own, fault = _name(path, url)
        full = f"{name}/{own}" if name else own
        file = File(full, url, listing.root, path, listing.stamps.get(path, ""))
        fault = faults.get(path, fault)
        if fault is None:
            found.append(file)
        else:
            useless.append((file, fault))
    skipped = ((files.join(listing.root, path), why) for path, why in listing.skipped)
    return Found(tuple(found), tuple(useless), tuple(skipped))


def inspect_file(file: File, roots: Sequence[str], format: str | None) -> Source:
    """The source that a file is; `roots` are those of the request, the file's among them.

    Raises:
        SourceError: as of `inspect`.
    """
    return inspect(file.url, roots.index(file.root), file.name, file.path, format)


def split_name(given: str) -> tuple[str | None, str]:
    """The name and the pattern of "[NAME=]PATTERN"."""
    named = NAMED.fullmatch(given)
    # A folder may be called "date=2024".
    if named is None or os.path.lexists(given) or os.path.lexists(given.split("/", 1)[0]):
        return None, given
    return named[1], named[2]


def list_files(pattern: str, *, any_suffix: bool) -> Listing:
    """The files of a folder, a glob or a single file."""
    if files.is_local(pattern):
        return _list_local(
            os.path.abspath(os.path.expanduser(files.local_path(pattern))), any_suffix
        )
    with files.naming(pattern):
        return _list_remote(pattern, any_suffix)


def _list_local(path: str, any_suffix: bool) -> Listing:
    if os.path.isdir(path):
        root = path.rstrip("/") or "/"
        if _part_of_a_cache(f"{root}/"):
            return Listing(root, (), (("./", PART_OF_A_CACHE),))
        with files.naming(path):
            return _folder(root, _walk(root), any_suffix)
    if os.path.lexists(path) or not glob.has_magic(path):
        # One that is not there is named by the error of opening it.
        if not os.path.lexists(path):
            raise SourceError(f"{path}: there is no such file or folder; check the path")
        root, _, name = path.rpartition("/")
        why = _kind(path)
        if isinstance(why, SourceError):
            return Listing(root or "/", (), faults=((name, str(why)),))
        return Listing(root or "/", (name,))
    root, relative = split_glob(path)
    matches = glob.iglob(relative, root_dir=root or "/", recursive=True, include_hidden=True)
    present = ((match, _fault(os.path.join(root or "/", match))) for match in matches)
    return _matches(root or "/", relative, present)


def _fault(path: str) -> Why:
    """Why a match of a glob is not taken, but for its name, or None."""
    return PART_OF_A_CACHE if _part_of_a_cache(path) else _kind(path)


def _part_of_a_cache(path: str) -> bool:
    """Whether a local path lies in one of the folders of a Forebay cache."""
    parts = path.split("/")[:-1]
    return any(
        part in CACHE_PARTS and _is_cache("/".join(parts[:index]) or "/")
        for index, part in enumerate(parts)
    )


def _is_cache(folder: str) -> bool:
    """Whether a local folder is a Forebay cache, also one without a commit as yet."""
    begun = all(os.path.isdir(os.path.join(folder, name)) for name in ("_plans", "shards"))
    return begun or os.path.isfile(os.path.join(folder, commit_key(0)))


def _kind(path: str) -> Why:
    """Why a path of the local machine is no file to read, or None for a regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if not os.path.islink(path):
            return None  # it has gone meanwhile: opening it says so
        return SourceError(f"{path}: there is no such file where this link leads; check the link")
    except OSError as error:  # a link to itself, a folder that may be listed and not entered
        return SourceError(files.fault_of(path, error))
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return "folder"
    kinds = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    return f"not a regular file ({kinds.get(stat.S_IFMT(mode), 'device')})"


def _walk(root: str) -> Iterator[tuple[str, Why]]:
    """Every file below a folder as (path, why it cannot be read or None); links are followed.

    A folder that cannot be listed is one of them, with a slash at its end.
    """
    seen: set[tuple[int, int]] = set()
    failed: dict[str, OSError] = {}

    def fail(error: OSError) -> None:
        if error.filename == root:
            raise error
        if not isinstance(error, FileNotFoundError):  # else it has gone meanwhile
            failed[error.filename] = error

    for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
        try:
            status = os.stat(folder)
        except OSError as error:
            fail(error)
            folders.clear()
            continue
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        relative = os.path.relpath(folder, root)
        prefix = "" if relative == "." else relative + "/"
        left = {name: "hidden" for name in folders if is_hidden(name)}
        if not set(CACHE_PARTS).isdisjoint(folders) and _is_cache(folder):
            left |= dict.fromkeys(set(CACHE_PARTS).intersection(folders), PART_OF_A_CACHE)
        folders[:] = sorted(set(folders) - set(left))
        yield from ((f"{prefix}{name}/", why) for name, why in sorted(left.items()))
        yield from ((prefix + name, _kind(os.path.join(folder, name))) for name in names)
    for folder, cause in failed.items():
        yield f"{os.path.relpath(folder, root)}/", SourceError(files.fault_of(folder, cause))


def _list_remote(url: str, any_suffix: bool) -> Listing:
    store, path = files.filesystem(url)
    base, _, query = url.partition("?")
    is_http = url.startswith(files.HTTP)
    if "*" not in base and ("[" not in base or store.exists(path)) and (is_http or not query):
        if base.endswith("/") or (not is_http and store.isdir(path)):
            root = base.rstrip("/")
            found = store.find(path, detail=True)
            if is_http and not found:
                _check_there(store, path, url)  # a listing that fails is none, too
            listing = _folder(root, _outside_caches(_below(store, root, found)), any_suffix)
            return replace(listing, stamps=_stamps(root, found))
        _check_there(store, path, url)
        root, _, name = base.rpartition("/")
        return Listing(root, (f"{name}?{query}" if query else name,))
    root, relative = split_glob(url)
    found = store.glob(path, detail=True)
    listing = _matches(root, relative, _below(store, root, found))
    return replace(listing, stamps=_stamps(root, found))


def _stamps(root: str, found: dict[str, dict]) -> dict[str, str]:
    """What a listing says of the content of files, by their paths below the root."""
    prefix = files.filesystem(root)[1].rstrip("/") + "/"
    return {path.removeprefix(prefix): told_stamp(info) for path, info in found.items()}


def _check_there(store: Any, path: str, url: str) -> None:
    """SourceError unless a remote file or folder exists; errors of the network are raised as is."""
    # Unless it is strict, this store takes every failure for a file that is not there.
    there = store.exists(path, strict=True) if url.startswith(files.HTTP) else store.exists(path)
    if not there:
        fault = files.fault_of_bucket(url) or "there is no such file or folder; check the URL"
        raise SourceError(f"{url}: {fault}")


def _below(store: object, root: str, found: dict[str, dict]) -> Iterator[tuple[str, str | None]]:
    """Paths relative to the root of what a remote store lists, with why they are no files."""
    prefix = files.filesystem(root)[1].rstrip("/") + "/"
    for path, info in found.items():
        if not path.startswith(prefix):
            raise SourceError(f"{path}: is listed below {prefix}, but is not there")
        if path != prefix:
            yield path.removeprefix(prefix), "folder" if info["type"] == "directory" else None


def _outside_caches(
    found: Iterable[tuple[str, str | None]],
) -> Iterator[tuple[str, str | None]]:
    """The files of a remote folder, those of Forebay caches below it as one for each part."""
    listed = list(found)
    first = commit_key(0)
    caches = {path.removesuffix(first) for path, _ in listed if f"/{path}".endswith(f"/{first}")}
    begun = [
        {f"/{path}".partition(f"/{part}/")[0] for path, _ in listed if f"/{part}/" in f"/{path}"}
        for part in ("_plans", "shards")
    ]
    caches |= {f"{cache}/".lstrip("/") for cache in set.intersection(*begun)}
    parts = tuple(f"{cache}{part}/" for cache in sorted(caches) for part in CACHE_PARTS)
    yield from ((path, why) for path, why in listed if not path.startswith(parts))
    present = {part for path, _ in listed for part in parts if path.startswith(part)}
    yield from ((part, PART_OF_A_CACHE) for part in sorted(present))


def split_glob(pattern: str) -> tuple[str, str]:
    """The longest prefix of whole parts without magic, and the rest of a glob."""
    scheme, slashes, rest = pattern.rpartition("://")
    parts = rest.split("/")
    first = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return scheme + slashes + "/".join(parts[:first]), "/".join(parts[first:])


def is_hidden(name: str) -> bool:
    """Whether a file or folder of that name is left out of folders and globs."""
    return name.startswith((".", "_"))


def why_left_out(path: str) -> str | None:
    """Why a file below a root is left out by its name, or None."""
    *folders, name = path.split("/")
    if any(map(is_hidden, [*folders, name])):
        return "hidden"
    if any(fnmatch.fnmatch(name.lower(), pattern) for pattern in TEMPORARY):
        return "temporary"
    return None


def _parted(why: Why) -> tuple[SourceError | None, str | None]:
    """The error that a reason is, or the reason that it is otherwise."""
    return (why, None) if isinstance(why, SourceError) else (None, why)


def _folder(root: str, found: Iterable[tuple[str, Why]], any_suffix: bool) -> Listing:
    """The data files of a folder."""
    listed = [(path, why) for path, why in found if why != "folder"]
    names = {path for path, _ in listed}
    saved = {
        path.removesuffix(HF_MARKS[0])
        for path in names
        if path.rpartition("/")[2] == HF_MARKS[0]
        and path.removesuffix(HF_MARKS[0]) + HF_MARKS[1] in names
    }
    paths, skipped, faults = [], [], []
    for path, fault in listed:
        folder, slash, name = path.rpartition("/")
        error, why = _parted(fault)
        why = why or why_left_out(path)
        if why is None and folder + slash in saved and not fnmatch.fnmatchcase(name, HF_DATA):
            why = "not data of save_to_disk"
        if why is None and name == "dataset_dict.json":
            why = "not data of save_to_disk"
        if why is None and name and not any_suffix and format_by_name(name) is None:
            why = "unknown suffix"
        if why is not None:
            skipped.append((path, why))
        elif error is not None:
            faults.append((path, str(error)))
        else:
            paths.append(path)
    return Listing(root, tuple(sorted(paths)), tuple(sorted(skipped)), faults=tuple(sorted(faults)))


def _matches(root: str, pattern: str, found: Iterable[tuple[str, Why]]) -> Listing:
    """The files that match a glob; hidden ones only where the pattern spells out the mark."""
    spelled = any(is_hidden(part) for part in pattern.split("/"))
    paths, skipped, faults = set(), set(), set()
    for path, fault in found:
        error, why = _parted(fault)
        why = why or why_left_out(path)
        if why == "folder" or path in ("", "."):
            continue
        if why is not None and not (why == "hidden" and spelled):
            skipped.add((path, why))
        elif error is not None:
            faults.add((path, str(error)))
        else:
            paths.add(path)
    return Listing(root, tuple(sorted(paths)), tuple(sorted(skipped)), faults=tuple(sorted(faults)))


def _name(path: str, url: str) -> tuple[str, str | None]:
    """The name of a file, from its path below the root, and why it cannot be one, or None."""
    if not files.is_local(url):
        return unicodedata.normalize("NFC", urlsplit(path).path), None
    if (fault := not_utf8(path)) is not None:
        return legible(path), f"{legible(url)}: the name of the file {fault}"
    return unicodedata.normalize("NFC", path), None


def clashes(ordered: Iterable[File]) -> Iterator[tuple[File, str]]:
    """The files that have another one's name, or another name than before, each with the fault."""
    names: dict[str, File] = {}
    urls: dict[str, File] = {}
    for file in ordered:
        other = names.setdefault(file.name, file)
        if other.url != file.url:
            yield (
                file,
                (
                    f"two files have the name {file.name!r}: {other.url} and {file.url}; "
                    "give their inputs names, as in NAME=PATTERN"
                ),
            )
            continue
        other = urls.setdefault(file.url, file)
        if other.name != file.name:
            yield (
                file,
                (
                    f"{file.url}: is given twice, as {other.name!r} and as {file.name!r}; "
                    "leave one of the inputs out"
                ),
            )


def _nothing(given: str, listing: Listing) -> str:
    message = f"{given}: matches no data file"
    if listing.skipped:
        shown = ", ".join(f"{path} ({why})" for path, why in listing.skipped[:5])
        more = len(listing.skipped) - 5
        message += f"; left out: {shown}" + (f" and {more} more" if more > 0 else "")
        if any(why == "unknown suffix" for _, why in listing.skipped):
            message += "; name their format (--format) to take these"
    return message + "; check the pattern"
