"""Fingerprints: the facts that an order depends on, small enough to travel in a loader's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cachelib.format.canonical import canonical, digest_of

Fingerprint = dict[str, Any]

LARGEST = 640
"""Bytes of JSON above which the parts of a fingerprint become one digest."""

LINES = 20
"""Differences that are named one by one."""

_LONGEST_VALUE = 40

_LONGEST_SHOWN = 200


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
    for name, link in _chain(description):
        for fact, value in link.items():
            if fact == "parts" and apart:
                parts |= {f"{name}[{part}]": _digest(below) for part, below in value.items()}
            else:
                parts[f"{name}.{fact}"] = _short(value)
    return parts


def _chain(description: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The links of a description from the top down, each by its name and with its facts."""
    kinds: list[str] = []
    link: Mapping[str, Any] | None = description
    while link is not None:
        kinds.append(link["kind"])
        nth = kinds.count(link["kind"])
        facts = {fact: value for fact, value in link.items() if fact not in ("kind", "of")}
        yield link["kind"] if nth == 1 else f"{link['kind']}{nth}", facts
        link = link.get("of")


def differences(
    saved: Mapping[str, Any],
    here: Mapping[str, Any],
    described: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
    where: str = "the state",
) -> list[str]:
    """What differs between two fingerprints, one line a fact; empty if they are the same.

    Args:
        saved, here: the fingerprints.
        described: the descriptions of both, if known: then digests are told by the values behind
            them. That of ``saved`` may tell of more than ``saved`` was made of, such as stages
            that come later; what it does not agree on with ``saved`` is said to be its own.
        where: what ``saved`` was saved in.
    """
    lines: list[str] = []
    for name in _differing(saved, here):
        known = described is not None and name in saved and name in here
        found = _values(name, saved[name], *described, where) if described and known else []
        lines += found or [_line(name, saved, where, here)]
    more = len(lines) - LINES
    return lines if more <= 0 else [*lines[:LINES], f"and {more} more"]


def _differing(saved: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for name in [*here, *(name for name in saved if name not in here)]:
        if name not in saved or name not in here or saved[name] != here[name]:
            yield name


def _values(
    part: str, saved: Any, then: Mapping[str, Any], now: Mapping[str, Any], where: str
) -> list[str]:
    """What differs between two descriptions in a part of their fingerprints."""
    whole = _facts(then, apart=False)
    known = {**_facts(then, apart=True), **whole, "order": _digest(whole)}
    if known.get(part) != saved:
        where = "its description"
    before, after = _leaves(then), _leaves(now)
    return [
        _line(name, before, where, after)
        for name in _differing(before, after)
        if _within(name, part)
    ]


def _leaves(description: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """All facts of a description by name, none of them shortened."""
    found: dict[str, Any] = {}
    for name, link in _chain(description):
        for fact, value in link.items():
            if fact == "parts":
                for part, below in value.items():
                    found |= _leaves(below, f"{above}{name}[{part}].")
            elif isinstance(value, Mapping):
                found |= {f"{above}{name}.{fact}[{key}]": each for key, each in value.items()}
            else:
                found[f"{above}{name}.{fact}"] = value
    return found


def _within(leaf: str, part: str) -> bool:
    """Whether a fact is one of those that a part of a fingerprint stands for."""
    return (
        part == "order"
        or leaf == part
        or leaf.startswith((f"{part}[", f"{part}."))
        or (part.endswith(".parts") and leaf.startswith(f"{part.removesuffix('.parts')}["))
    )


def _line(name: str, saved: Mapping[str, Any], where: str, here: Mapping[str, Any]) -> str:
    return f"{name} is {_shown(saved, name)} in {where}, but {_shown(here, name)} here"


def _shown(parts: Mapping[str, Any], name: str) -> str:
    text = repr(parts[name]) if name in parts else "missing"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _short(value: Any) -> Any:
    if isinstance(value, (dict, list)) or len(canonical(value)) > _LONGEST_VALUE:
        return _digest(value)
    return value


def _digest(value: Any) -> str:
    return "#" + digest_of(value)[:16]
