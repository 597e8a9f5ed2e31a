"""Functions that builds in the tests change records with."""

from __future__ import annotations

import sys
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


def fail(record: dict[str, Any]) -> str:
    return str(record["no such field"])


def leave(record: dict[str, Any]) -> str:
    """Ends the process, as functions of records should not; some way into them."""
    if record["id"] == "r150":
        sys.exit(3)
    return str(record["text"])


def interrupt(record: dict[str, Any]) -> str:
    """Likewise, by what Ctrl-C raises."""
    if record["id"] == "r150":
        raise KeyboardInterrupt
    return str(record["text"])


def babble(record: dict[str, Any]) -> str:
    """Prints, and then fails."""
    print("out of the function", flush=True)
    print("beside the function", file=sys.stderr, flush=True)
    raise ValueError("no text")
