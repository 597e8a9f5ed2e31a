"""JSON of any depth: what Python's json refuses for its nesting, without using the stack."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(
    r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)|true|false|null|NaN|-?Infinity"
)
_CONSTANTS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_LONGEST_INT = 4000
"""Digits; Python refuses to parse integers of more than 4300."""


def parse_int(digits: str) -> float:
    """An integer of JSON; one with thousands of digits becomes infinity."""
    return int(digits) if len(digits) < _LONGEST_INT else float(digits)


_decoder = json.JSONDecoder(parse_int=parse_int)


def loads(text: str) -> Any:
    """What Python's ``json.loads`` gives, without its limits on depth and on digits.

    Where the depth is over the limit, containers inside the outermost one come back empty: only
    their kind is told.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        pass  # an integer of too many digits
    except RecursionError:
        return _loads_deep(text)
    try:
        return _decoder.decode(text)
    except RecursionError:
        return _loads_deep(text)


def _loads_deep(text: str) -> Any:
    outer: Any = None
    closers: list[str] = []  # of the open containers
    key: str | None = None
    at = _skip(text, 0)
    while True:
        # A value begins here.
        char = text[at : at + 1]
        value: Any
        if char in ("{", "["):
            value = {} if char == "{" else []
            closer = "}" if char == "{" else "]"
            inside = _skip(text, at + 1)
            if not text.startswith(closer, inside):
                if not closers:
                    outer = value
                elif len(closers) == 1:
                    _put(outer, key, value)
                closers.append(closer)
                at = inside
                if char == "{":
                    key, at = _key(text, at)
                continue
            at = inside + 1
        else:
            value, at = _scalar(text, at)
        if not closers:
            outer = value
        elif len(closers) == 1:
            _put(outer, key, value)
        # A value has ended here.
        while True:
            at = _skip(text, at)
            if not closers:
                if at != len(text):
                    raise json.JSONDecodeError("Extra data", text, at)
                return outer
            if text.startswith(closers[-1], at):
                closers.pop()
                at += 1
                continue
            if not text.startswith(",", at):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            at = _skip(text, at + 1)
            if closers[-1] == "}":
                key, at = _key(text, at)
            break


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _put(outer: Any, key: str | None, value: Any) -> None:
    if isinstance(outer, dict):
        outer[key] = value


def _key(text: str, at: int) -> tuple[str, int]:
    """The key that begins there, and where its value begins."""
    if not text.startswith('"', at):
        raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
    key, at = scanstring(text, at + 1, True)
    at = _skip(text, at)
    if not text.startswith(":", at):
        raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
    return key, _skip(text, at + 1)


def _scalar(text: str, at: int) -> tuple[Any, int]:
    if text.startswith('"', at):
        return scanstring(text, at + 1, True)
    found = _SCALAR.match(text, at)
    if not found:
        raise json.JSONDecodeError("Expecting value", text, at)
    if found[0] in _CONSTANTS:
        return _CONSTANTS[found[0]], found.end()
    whole = found[0].lstrip("-").isdigit()
    return (parse_int(found[0]) if whole else float(found[0])), found.end()
