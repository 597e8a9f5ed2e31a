"""Integers as callers give them, and indices counted from either end."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from typing import SupportsIndex

import numpy as np

LARGEST = np.iinfo(np.int64).max


def as_integer(name: str, value: SupportsIndex) -> int:
    """An integer of any type as an int; TypeError naming what is not one (a bool, a float)."""
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an integer, got {value!r}")


def as_indices(
    indices: Iterable[SupportsIndex] | np.ndarray, size: int | None, *, grows: bool = False
) -> np.ndarray:
    """Indices into ``size`` things as int64 of shape (n,), negative ones counted from the end.

    Args:
        indices: a one-dimensional array of any integer type, or an iterable of integers.
        size: how many there are; None for endless, which has no end to count from.
        grows: whether a size of None means that the end is to come.

    Raises:
        TypeError: bools, floats, or anything else that is no integer; a set or a mapping.
        IndexError: an index outside [-size, size).
    """
    array = indices if isinstance(indices, np.ndarray) else _array_of(indices, size, grows)
    if array.ndim != 1:
        raise TypeError(f"indices must be one-dimensional, got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, got {array.dtype}")
    if len(array) == 0:
        return np.empty(0, np.int64)
    first, last = (0, LARGEST) if size is None else (-size, size - 1)
    low, high = int(array.min()), int(array.max())
    for index in (low, high):
        if not first <= index <= last:
            raise outside(index, size, grows)
    result = array.astype(np.int64, copy=False)
    return np.where(result < 0, result + np.int64(size or 0), result) if low < 0 else result


def as_positions(name: str, values: Iterable[SupportsIndex] | np.ndarray) -> np.ndarray:
    """Integers of any type, none above 2**63 - 1, as int64 of the same shape.

    Raises:
        TypeError: bools, floats, or anything else that is no integers; names their dtype.
        IndexError: one is too large.
    """
    array = np.asarray(values)
    if array.size == 0 and not isinstance(values, np.ndarray):
        return array.astype(np.int64)  # an empty list is one of floats to numpy
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    if array.dtype == np.uint64 and array.size and array.max() > LARGEST:
        raise IndexError(f"{name} must be at most {LARGEST}, got {array.max()}")
    return array.astype(np.int64, copy=False)


def outside(index: int, size: int | None, grows: bool = False) -> IndexError:
    """The error for an index that is not there."""
    if size is None and grows and index < 0:
        return IndexError(
            f"index {index} counts from the end, which a followed cache has once it is complete: "
            "use indices from 0 on, or open it without follow, at a version"
        )
    if size is None:
        return IndexError(f"index {index} is outside an endless dataset: use 0 to {LARGEST}")
    return IndexError(f"index {index} is outside the {size} rows")


def _array_of(indices: Iterable[SupportsIndex], size: int | None, grows: bool) -> np.ndarray:
    # One by one, since numpy makes a list of mixed integer types floats, and of bools and
    # integers integers.
    if isinstance(indices, Set | Mapping):
        kind = type(indices).__name__
        raise TypeError(f"indices must be integers in an order, got a {kind}: make it a list")
    if isinstance(indices, (str, bytes)) or not isinstance(indices, Iterable):
        raise TypeError(f"indices must be a sequence of integers, got {indices!r}")
    exact = [as_integer("an index", index) for index in indices]
    for index in exact:
        if not -LARGEST <= index <= LARGEST:
            raise outside(index, size, grows)
    return np.array(exact, np.int64)
