"""Fingerprints: the facts that an order depends on, small enough to travel in a loader's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachelib.canonical import canonical, digest_of

Fingerprint = dict[str, Any]

LARGEST = 640
"""Bytes of JSON above which the parts of a fingerprint become one digest."""

_LONGEST_VALUE = 40


def fingerprint(description: Mapping[str, Any]) -> Fingerprint:
    """The parts of a description, each under a name such as ``shuffle.seed``.

    Args:
        description: JSON with ``kind``, facts, and the description of what lies below as ``of``,
            or of several things below by name as ``parts``.

    Returns:
        Short facts as they are, others and each of several ``parts`` as the first 16 digits of
        their digest after a "#". Where all together would be too long, one digest for all
        ``parts``, or one named ``order`` for everything.
    """
    for apart in (True, False):
        found = _facts(description, apart)
        if len(canonical(found)) <= LARGEST:
            return found
    return {"order": _digest(found)}


def _facts(description: Mapping[str, Any], apart: bool) -> Fingerprint:
    """The facts of a chain by name; what it branches into ``apart``, or as one."""
    parts: Fingerprint = {}
    kinds: list[str] = []
    link: Mapping[str, Any] | None = description
    while link is not None:
        kinds.append(link["kind"])
        nth = kinds.count(link["kind"])
        name = link["kind"] if nth == 1 else f"{link['kind']}{nth}"
        for fact, value in link.items():
            if fact == "parts" and apart:
                parts |= {f"{name}[{part}]": _digest(below) for part, below in value.items()}
            elif fact not in ("kind", "of"):
                parts[f"{name}.{fact}"] = _short(value)
        link = link.get("of")
    return parts


def differences(saved: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, one line a part; empty if they are the same."""
    names = [*here, *(name for name in saved if name not in here)]
    return [
        f"{name} is {_shown(saved, name)} in the state, but {_shown(here, name)} here"
        for name in names
        if name not in saved or name not in here or saved[name] != here[name]
    ]


def _shown(parts: Mapping[str, Any], name: str) -> str:
    return repr(parts[name]) if name in parts else "missing"


def _short(value: Any) -> Any:
    if isinstance(value, (dict, list)) or len(canonical(value)) > _LONGEST_VALUE:
        return _digest(value)
    return value


def _digest(value: Any) -> str:
    return "#" + digest_of(value)[:16]
