"""Options: values that several commands take."""

from __future__ import annotations

import argparse


def at_least_one(text: str) -> int:
    """A whole number, from 1 on.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)
