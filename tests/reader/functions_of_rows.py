"""Functions that tests map and choose rows by: they must be found in a module."""

from __future__ import annotations

from typing import Any

import numpy as np


def doubled(row: dict[str, Any], key: int) -> dict[str, Any]:
    return {**row, "label": row["label"] * 2}


def drawn(row: dict[str, Any], key: int) -> dict[str, Any]:
    """The number of the row, and one that depends on the key."""
    return {"label": row["label"], "drawn": np.random.default_rng(key).random()}


def padded(row: dict[str, Any], key: int) -> dict[str, Any]:
    """Tokens to a length of 10, and how many there were."""
    tokens = row["tokens"][:10]
    return {"tokens": np.pad(tokens, (0, 10 - len(tokens))), "count": len(tokens)}


def lengthened(row: dict[str, Any], key: int) -> dict[str, Any]:
    """Tokens twice, and a mask beside them."""
    tokens = np.concatenate([row["tokens"], row["tokens"]])
    return {"tokens": tokens, "mask": np.ones(len(tokens), np.bool_)}


def unsteady(row: dict[str, Any], key: int) -> dict[str, Any]:
    """What gives other columns, dtypes or shapes for some rows."""
    number = int(row["label"]) // 10
    if number == 5:
        return {"other": 1}
    if number == 6:
        return {"value": 1.5}
    if number == 7:
        return {"value": np.ones(2, np.int64)}
    if number == 8:
        raise RuntimeError("no")
    return {"value": number}


def text(row: dict[str, Any], key: int) -> dict[str, Any]:
    return {"text": "a"}


def nothing(row: dict[str, Any], key: int) -> Any:
    return None


def thirds(columns: dict[str, Any]) -> Any:
    return columns["label"] // 10 % 3 == 0


def numbers(columns: dict[str, Any]) -> Any:
    return columns["label"]


class Scaler:
    def scaled(self, row: dict[str, Any], key: int) -> dict[str, Any]:
        return row
