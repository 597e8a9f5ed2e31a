"""Agreement: whether all that read an order together read the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cachelib
from cachelib.cache import Cache
from cachelib.errors import ForebayError, StateMismatch

State = Mapping[str, Any]

Begin = tuple[State, Sequence[int]] | str
"""How a process begins: the state of its loader and its ranks; or why it cannot."""


def open_as_first(
    path: str | os.PathLike[str],
    version: int | None,
    partial: bool,
    first: bool,
    broadcast: Callable[[Any], Any],
    **local: Any,
) -> Cache:
    """Open a cache in all processes at the version that the first one opens.

    Args:
        path, version, partial: as of `cachelib.open`.
        first: whether this is the first process.
        broadcast: gives in all processes the JSON that it is called with in the first.
        local: ``local``, ``local_format`` and ``local_bytes``, as of `cachelib.open`.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        ForebayError: the first process could not open it.
    """
    told: Any = None
    cache = None
    try:
        if first:
            cache = cachelib.open(path, version, partial=partial, **local)
            told = {"version": cache.version}
    except Exception as error:
        told = {"error": str(error)}
        raise
    finally:
        told = broadcast(told)
    if "error" in told:
        raise ForebayError(f"rank 0 could not open the cache: {told['error']}")
    return cache or cachelib.open(path, told["version"], **local)


def check_processes(begun: Sequence[Begin]) -> None:
    """Compare how the processes begin, in the order of their numbers.

    Raises:
        StateMismatch: orders or positions differ, or the ranks are not all there.
        ForebayError: a process cannot begin.
    """
    states, ranks = [], []
    for process, begin in enumerate(begun):
        if isinstance(begin, str):
            raise ForebayError(f"process {process} could not begin to read: {begin}")
        states.append(begin[0])
        ranks.append(list(begin[1]))
    check_same(states, "process")
    world = states[0]["world"]
    missing = sorted(set(range(world)).difference(*ranks))
    if missing:
        raise StateMismatch(
            f"no process reads the part of dp_rank {', '.join(map(str, missing))} of {world}: "
            f"the processes have dp_rank {', '.join(map(str, ranks))}"
        )


def check_same(states: Sequence[State], reader: str) -> None:
    """StateMismatch unless all states are of one order and position; readers are numbered."""
    # Of a followed cache, the pass may be known in one process a moment before it is in another.
    first, *others = ({**state, **state["order"], "order": None, "epoch": 0} for state in states)
    for number, other in enumerate(others, 1):
        found = [
            f"{name} is {first.get(name)!r} in {reader} 0 and {other.get(name)!r} in {reader} "
            f"{number}"
            for name in first | other
            if first.get(name) != other.get(name)
        ]
        if found:
            raise StateMismatch(
                f"not every {reader} reads the same: {'; '.join(found)}; open one version of the "
                "cache, with one seed and batch size, from one state everywhere"
            )
