"""Functions that datasets are made with: found again by name, and told apart by their source."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

from cachelib.format.canonical import digest_of


def identity(function: Callable[..., Any], version: str | None) -> dict[str, str]:
    """What tells a function of a module from others, as JSON: ``version`` or the digest of source.

    What the function calls is not part of its source: change the version with it.

    Raises:
        TypeError: it is no function that a module defines under its name, so that another process
            would not find it, or its source is not known and there is no version.
    """
    name = getattr(function, "__qualname__", repr(function))
    module = getattr(function, "__module__", None)
    there: Any = sys.modules.get(module or "")
    for part in name.split("."):
        there = getattr(there, part, None)
    if not isinstance(function, FunctionType) or there is not function:
        raise TypeError(
            f"{name} is not a function that a module defines under that name, so other processes "
            "would not find it: use no lambda, nested function, method or partial, but a function "
            "at the top level of a module"
        )
    if version is not None:
        if not isinstance(version, str):
            raise TypeError(f"version must be a string, got {version!r}")
        return {"version": version}
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise TypeError(
            f"the source of {name} is not known: say version='1', and change it with the function"
        ) from error
    return {"source": digest_of(textwrap.dedent(source))}
