"""Plans of packs kept as objects: made once, read by every later start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from cachelib.canonical import canonical
from cachelib.errors import StateMismatch
from cachelib.order.fingerprint import differences, fingerprint
from cachelib.order.packing import Accounts, Plan, Rule, Tally
from cachelib.storage import Storage

FORMAT = 1


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
        location: the path or URL of a JSON object of its own, as `cachelib.canonical.seal` makes.
        order: what the plan depends on, as nodes describe it.
        rule, seed: of the plan.
        make: makes the plan.

    Raises:
        TypeError: the location is of another type.
        StateMismatch: what is there is no plan, or the plan of another order; names what differs.
        CorruptData: it is damaged.
    """
    if not isinstance(location, (str, os.PathLike)):
        raise TypeError(f"plan must be the path or URL of a file, got {location!r}")
    storage, key = Storage.of_object(location)
    where = storage.where(key)
    found = storage.read_json(key)
    if found is None:
        plan = make()
        found = storage.put_json(
            key,
            {
                "kind": "plan of packs",
                "format": FORMAT,
                "order": order,
                "accounts": asdict(plan.accounts),
                "packs": plan.packs.tolist(),
            },
        )
    _check(found, order, where)
    accounts = found["accounts"]
    tallies = {field: Tally(**tally) for field, tally in accounts["values"].items()}
    packs = np.array(found["packs"], np.int64)
    return Plan(rule, seed, packs, Accounts(**{**accounts, "values": tallies}))


def _check(found: Any, order: Mapping[str, Any], where: str) -> None:
    if not isinstance(found, dict) or found.get("kind") != "plan of packs":
        raise StateMismatch(f"{where} is no plan of packs: name another place for the plan")
    if found.get("format") != FORMAT:
        raise StateMismatch(
            f"{where} is a plan of format {found.get('format')!r}, and this code reads format "
            f"{FORMAT}: name another place for the plan"
        )
    saved = found["order"]
    if canonical(saved) != canonical(order):
        parts = fingerprint(saved), fingerprint(order)
        differs = differences(*parts, (saved, order), "the plan")
        raise StateMismatch(
            f"{where} is the plan of other packs: {'; '.join(differs)}; name another place for "
            "the plan, or delete this one"
        )
