"""Plans kept as objects: packs and chosen rows, found once and read by every later start."""

from __future__ import annotations

import base64
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cachelib.errors import CorruptData, StateMismatch
from cachelib.format.canonical import canonical
from cachelib.format.storage import Storage
from cachelib.order.bitmap import Bitmap
from cachelib.order.fingerprint import differences, fingerprint
from cachelib.order.packing import Accounts, Plan, Rule, Tally

FORMAT = 1

PACKS = "plan of packs"
CHOICE = "plan of chosen rows"

_ANEW = "delete it, and the plan is made anew, the same"


def kept(
    location: str | os.PathLike[str],
    order: Mapping[str, Any],
    rule: Rule,
    seed: int,
    make: Callable[[], Plan],
) -> Plan:
    """The plan that is kept at a place; where nothing is, it is made and kept there.

    Of several processes that find nothing each makes the plan, and the first one's stays.

    Args:
        location: the path or URL of a JSON object of its own, as `canonical.seal` makes it.
        order: what the plan depends on, as nodes describe it.
        rule, seed: of the plan.
        make: makes the plan.

    Raises:
        TypeError: the location is of another type.
        StateMismatch: what is there is no plan, or the plan of another order; names what differs.
        CorruptData: it is damaged.
    """
    _check_location(location, "a file")
    storage, key = Storage.of_object(location)
    where = storage.where(key)
    found = _read(storage, key)
    if found is None:
        plan = make()
        found = storage.put_json(
            key,
            {
                "kind": PACKS,
                "format": FORMAT,
                "order": order,
                "accounts": asdict(plan.accounts),
                "packs": plan.packs.tolist(),
            },
        )
    _check_kind(found, PACKS, where)
    _check_order(found["order"], order, where)
    accounts = found["accounts"]
    tallies = {field: Tally(**tally) for field, tally in accounts["values"].items()}
    packs = np.array(found["packs"], np.int64)
    return Plan(rule, seed, packs, Accounts(**{**accounts, "values": tallies}))


def kept_choice(
    location: str | os.PathLike[str],
    order: Mapping[str, Any],
    version: int,
    beginnings: Callable[[], Sequence[str]],
    ask: Callable[[int], Iterator[np.ndarray]],
) -> Bitmap:
    """Which rows of a cache a condition holds for, as kept in a folder for this version of it.

    Where there is none for this version, rows up to the newest version before it that is kept are
    taken from there, and only later ones are asked; then all are kept for this version.

    Args:
        location: the path or URL of a folder of its own.
        order: what the choice depends on: the condition, and as ``of`` the rows of the cache.
        version: of the cache.
        beginnings: gives the content digests of the beginnings of the rows.
        ask: gives bools (n,) that follow one another, of all rows from one on.

    Raises:
        TypeError: the location is of another type.
        StateMismatch: what is there is no such plan, or is of another condition or of rows that are
            no beginning of these; names what differs.
        CorruptData: it is damaged.
    """
    _check_location(location, "a folder")
    storage, total = Storage.at(location), order["of"]["rows"]
    key = _choice_key(version)
    found = _read(storage, key)
    if found is None:
        known = _chosen_before(storage, order, version, beginnings)
        chosen = Bitmap.of(itertools.chain([known], ask(len(known))), total)
        bits = chosen.bits.reshape(-1)[: -(-total // 8)]
        kept_bits = base64.b64encode(bits.tobytes()).decode("ascii")
        found = storage.put_json(
            key, {"kind": CHOICE, "format": FORMAT, "order": order, "bits": kept_bits}
        )
    where = storage.where(key)
    _check_kind(found, CHOICE, where)
    _check_order(found["order"], order, where)
    return Bitmap.of([_truths(found, where)], total)


def _read(storage: Storage, key: str) -> Any:
    """What is kept as an object, or None if nothing is.

    Raises:
        CorruptData: it is damaged; says what to do.
    """
    try:
        return storage.read_json(key)
    except CorruptData as error:
        raise CorruptData(f"{error}; {_ANEW}") from error


def _chosen_before(
    storage: Storage,
    order: Mapping[str, Any],
    version: int,
    beginnings: Callable[[], Sequence[str]],
) -> np.ndarray:
    """Which of the first rows are chosen, as kept for the newest version before one.

    Returns:
        bool (n,), n a multiple of 8; of no rows where nothing is kept.
    """
    keys = [key for key in storage.list("") if re.fullmatch(r"\d{20}\.json", key)]
    before = max((key for key in keys if key < _choice_key(version)), default=None)
    found = None if before is None else _read(storage, before)
    if before is None or found is None:
        return np.empty(0, np.bool_)
    where = storage.where(before)
    _check_kind(found, CHOICE, where)
    saved = found["order"]
    _check_order(_question(saved), _question(order), where)
    if saved["of"].get("digest") not in beginnings():
        raise StateMismatch(
            f"{where} is of {saved['of']['rows']} rows that are no beginning of the "
            f"{order['of']['rows']} rows here: name another place for the plan"
        )
    truths = _truths(found, where)
    return truths[: len(truths) // 8 * 8]


def _question(order: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked, whatever rows there are."""
    return {**order, "of": {"kind": "cache", "schema": order["of"].get("schema")}}


def _choice_key(version: int) -> str:
    return f"{version:020d}.json"


def _truths(found: Mapping[str, Any], where: str) -> np.ndarray:
    """Whether each row is chosen, bool (rows,)."""
    total = found["order"]["of"]["rows"]
    bits = np.frombuffer(base64.b64decode(found["bits"]), np.uint8)
    if len(bits) != -(-total // 8):
        raise CorruptData(
            f"{where} has {len(bits)} bytes of bits, which are not {total} rows; {_ANEW}"
        )
    return np.unpackbits(bits, count=total, bitorder="little").view(np.bool_)


def _check_location(location: object, kind: str) -> None:
    if not isinstance(location, (str, os.PathLike)):
        raise TypeError(f"plan must be the path or URL of {kind}, got {location!r}")


def _check_kind(found: Any, kind: str, where: str) -> None:
    if not isinstance(found, dict) or found.get("kind") != kind:
        raise StateMismatch(f"{where} is no {kind}: name another place for the plan")
    if found.get("format") != FORMAT:
        raise StateMismatch(
            f"{where} is a plan of format {found.get('format')!r}, and this code reads format "
            f"{FORMAT}: name another place for the plan"
        )


def _check_order(saved: Mapping[str, Any], order: Mapping[str, Any], where: str) -> None:
    if canonical(saved) != canonical(order):
        parts = fingerprint(saved), fingerprint(order)
        differs = differences(*parts, (saved, order), "the plan")
        what = {"pack": "packs", "where": "chosen rows"}[order["kind"]]
        raise StateMismatch(
            f"{where} is the plan of other {what}: {'; '.join(differs)}; name another place for "
            "the plan, or delete this one"
        )
