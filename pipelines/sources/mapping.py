"""Mapping: records changed by a function of the user's, one by one."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cachelib.errors import BuildFailed, IncompatibleCache, SourceError
from cachelib.nodes.functions import identity
from pipelines.sources import kept, unicode
from pipelines.sources.assemble import unfit
from pipelines.sources.records import (
    EXCERPT,
    KEEP_TYPES,
    Mapped,
    Reading,
    Records,
    Reject,
    excerpt,
)

Function = Callable[[dict[str, Any]], Any]


def mapped(name: str, version: str | None) -> Mapped:
    """What a function is, given as MODULE:FUNCTION.

    Args:
        version: tells it from earlier ones of that name; None tells them by the digest of source.

    Raises:
        SourceError: there is no such function at the top level of a module.
    """
    return _told(name, _imported(name), version)


def name_of(function: Function) -> str:
    """A function as MODULE:FUNCTION.

    Raises:
        TypeError: other processes would not find it there.
    """
    identity(function, "any")
    if function.__module__ == "__main__":
        raise TypeError(
            f"{function.__qualname__} belongs to the script that runs, which other processes do "
            "not find: put it into a module of its own and import it"
        )
    return f"{function.__module__}:{function.__qualname__}"


def apply(records: Records, reading: Reading) -> Records:
    """The records of a run as a reading's function has them.

    What it gives is the text, or a dict of what changes, or None for a record that is left out. A
    record for which it raises is rejected.

    Raises:
        BuildFailed: it raised what is no Exception, such as SystemExit.
        IncompatibleCache: the function is no longer what it was when the build was planned.
    """
    assert reading.map is not None
    function = _checked(reading.map)
    names = [reading.text_field, *(name for name, _ in reading.keep)]
    columns = [records.text, *(records.keep[name] for name, _ in reading.keep)]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    made: list[list[Any]] = []
    places: list[int] = []
    omitted: list[int] = []
    rejects = list(records.rejects)
    for row, values in enumerate(rows):
        record = dict(zip(names, values, strict=True))
        position = int(records.positions[row])
        try:
            found = function(dict(record))
            if found is None:
                omitted.append(row)
                continue
            made.append(_values(record, found, reading))
            places.append(row)
        except _Unusable as error:
            text = excerpt(record[names[0]])
            rejects.append(Reject(position, error.reason, excerpt(error.detail), text))
        except Exception as error:
            text = excerpt(record[names[0]])
            rejects.append(Reject(position, "map failed", _told_of(error, function), text))
        except BaseException as error:
            # Python interrupts the main thread only; elsewhere it is the function that does so.
            at_main = threading.current_thread() is threading.main_thread()
            if isinstance(error, KeyboardInterrupt) and at_main:
                raise
            raise BuildFailed(
                f"map: {reading.map.function} raised {_told_of(error, function)}, at position "
                f"{position}, which ends a build: let it raise an Exception to have a record "
                "rejected, or give None to leave it out"
            ) from error
    kinds = [pa.large_string(), *(KEEP_TYPES[kind] for _, kind in reading.keep)]
    arrays = [
        pa.array([values[place] for values in made], kind) for place, kind in enumerate(kinds)
    ]
    return replace(
        records,
        text=arrays[0],
        keep={name: array for (name, _), array in zip(reading.keep, arrays[1:], strict=True)},
        positions=records.positions[np.array(places, np.int64)],
        rejects=tuple(sorted(rejects, key=lambda reject: reject.position)),
        omitted=records.positions[np.array(omitted, np.int64)],
    )


class _Unusable(Exception):
    """What a function gave cannot be a record; reason and detail are those of the reject."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def _told_of(error: BaseException, function: Function | None = None) -> str:
    """Type, text and place of what a function or its module raised, as the detail of a reject."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # it is the user's, too
        text = ""
    what = type(error).__name__ + (f": {text}" if text else "")
    place = _place(error, function)
    where = f" ({place})" if place else ""
    room = EXCERPT - len(where)
    what = what if len(what) <= room else what[: room - 1] + "…"
    return excerpt(what + where)


def _place(error: BaseException, function: Function | None) -> str:
    """The last line of the function's file that an error went through, or else of any."""
    code = getattr(inspect.unwrap(function), "__code__", None) if function else None
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename != __file__
    ]
    own = [(file, line) for file, line in lines if code is not None and file == code.co_filename]
    if not lines:
        return ""
    file, line = (own or lines)[-1]
    return f"{Path(file).name}, line {line}"


def _values(record: Mapping[str, Any], found: Any, reading: Reading) -> list[Any]:
    """The text and the kept fields of a record that a function has changed."""
    changed = {reading.text_field: found} if isinstance(found, str) else found
    if not isinstance(changed, Mapping):
        raise _Unusable("map gave no text, dict or None", f"it gave {type(found).__name__}")
    if not changed.keys() <= record.keys():
        more = sorted(str(name) for name in changed.keys() - record.keys())
        raise _Unusable("map gave fields that are not kept", f"it gave {', '.join(more)}")
    values = {**record, **changed}
    text = values[reading.text_field]
    if not isinstance(text, str):
        raise _Unusable(f"text is {kept.describe(text)}")
    result = [_clean(text, reading)]
    for name, kind in reading.keep:
        try:
            value = kept.from_json(values[name], kind)
        except kept.Unfit as error:
            raise _Unusable(unfit(name, str(error))) from error
        result.append(_clean(value, reading) if isinstance(value, str) else value)
    return result


def _clean(text: str, reading: Reading) -> str:
    if unicode.is_valid(text):
        return text
    if reading.invalid_unicode == "reject":
        raise _Unusable("invalid Unicode")
    return unicode.replace_surrogates(text)


@functools.lru_cache(maxsize=16)
def _checked(told: Mapped) -> Function:
    function = _imported(told.function)
    version = told.told if told.by == "version" else None
    found = _told(told.function, function, version)
    if found != told:
        raise IncompatibleCache(
            f"map function {told.function} has source {found.told}, but the build was planned with "
            f"{told.told}: build into a new cache, or restore the function"
        )
    return function


def _told(name: str, function: Function, version: str | None) -> Mapped:
    try:
        ((by, told),) = identity(function, version).items()
    except TypeError as error:
        raise SourceError(f"map: {error}") from error
    return Mapped(name, by, told)


def _imported(name: str) -> Function:
    """The function MODULE:FUNCTION; modules are also looked for in the working directory."""
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        found: Function = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SourceError(
            f"map: there is no function {name!r} ({error}); it is given as MODULE:FUNCTION, and "
            "modules are looked for where Python looks and in the working directory"
        ) from error
    except (Exception, SystemExit) as error:
        raise SourceError(
            f"map: module {module!r} cannot be imported: {_told_of(error)}"
        ) from error
    return found
