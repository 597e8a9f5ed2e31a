"""Datasets made again from the description that a loader gave of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachelib.dataset import Dataset
from cachelib.errors import StateMismatch
from cachelib.format.canonical import canonical
from cachelib.nodes.base import Rows
from cachelib.opening import open
from cachelib.order.fingerprint import differences, fingerprint
from cachelib.recipe import made


def rebuild(description: Mapping[str, Any]) -> Dataset:
    """The dataset that ``loader.description()`` tells of, its caches opened where it says.

    Packs are planned anew, which reads the lengths of all documents, and conditions are asked of
    all rows again. Functions are not found again: a `map`, or a `where` by a function, is not made.

    Raises:
        StateMismatch: it is no description, it holds a kind of dataset that cannot be made again
            (names it), or the caches have other rows than it says (names what differs).
        CacheNotFound: a cache is not there, or not that version of it.
    """
    caches: dict[tuple[str, int | None], Rows] = {}

    def opened(url: str, version: int | None) -> Rows:
        if (url, version) not in caches:
            caches[url, version] = open(url, follow=True) if version is None else open(url, version)
        return caches[url, version]

    try:
        order, recipe = description["order"], description["dataset"]
        found = Dataset(made(recipe, opened))
    except LookupError as error:
        if isinstance(error, KeyError):
            raise StateMismatch(f"this is no description of a loader: no {error} in it") from error
        raise StateMismatch(str(error)) from error
    except (TypeError, ValueError) as error:
        raise StateMismatch(f"this is no description of a loader: {error}") from error
    here = found.describe()
    if canonical(here) != canonical(order):
        parts = fingerprint(order), fingerprint(here)
        differs = differences(*parts, (order, here), "the description")
        raise StateMismatch(f"the description tells of another order: {'; '.join(differs)}")
    return found
