"""Functions that builds in the tests change records with."""

from __future__ import annotations

from typing import Any


def shout(record: dict[str, Any]) -> str:
    return str(record["text"]).upper()


def choose(record: dict[str, Any]) -> dict[str, Any] | None:
    """Leaves out every third record, and changes text and score of the others."""
    if int(record["id"][1:]) % 3 == 0:
        return None
    return {"text": f"{record['id']} {record['text']}", "score": record["score"] * 2}


def stumble(record: dict[str, Any]) -> Any:
    """Something else that is wrong with each of seven records."""
    return {
        0: lambda: 1 / 0,
        1: lambda: 7,
        2: lambda: {"text": None},
        3: lambda: {"other": "x"},
        4: lambda: {"score": "high"},
        5: lambda: "\ud800",
        6: lambda: "good",
    }[int(record["id"][1:]) % 7]()


def nothing(record: dict[str, Any]) -> None:
    return None
