"""Fixed-length windows over a stream of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Tail = Literal["drop", "short"]


@dataclass(frozen=True)
class WindowGrid:
    """Where the windows over a stream lie: window i starts at element i * stride.

    Attributes:
        elements: length of the stream, at least 0.
        length: elements of a window, at least 1.
        stride: distance of two starts, from 1 to ``length``; below it, windows overlap.
        tail: what becomes of elements that fill no whole window: "drop" leaves them out,
            "short" gives them one last window of fewer than ``length`` elements.
    """

    elements: int
    length: int
    stride: int
    tail: Tail = "drop"

    def __post_init__(self) -> None:
        if self.elements < 0:
            raise ValueError(f"a stream has 0 or more elements, got {self.elements}")
        if self.length < 1:
            raise ValueError(f"a window has 1 or more elements, got length={self.length}")
        if not 1 <= self.stride <= self.length:
            raise ValueError(
                f"stride must be from 1 to the length {self.length}, got {self.stride}: "
                "a longer one would skip elements"
            )
        if self.tail not in get_args(Tail):
            raise ValueError(f"tail must be one of {get_args(Tail)}, got {self.tail!r}")

    @property
    def full(self) -> int:
        """Number of windows of full length."""
        if self.elements < self.length:
            return 0
        return (self.elements - self.length) // self.stride + 1

    @property
    def left_over(self) -> int:
        """Elements after the last full window, which belong to no full one."""
        if self.full == 0:
            return self.elements
        return self.elements - ((self.full - 1) * self.stride + self.length)

    @property
    def count(self) -> int:
        """Number of windows."""
        return self.full + (1 if self.tail == "short" and self.left_over else 0)

    @property
    def dropped(self) -> int:
        """Elements that are in no window."""
        return self.left_over if self.tail == "drop" else 0

    def starts(self, indices: np.ndarray) -> np.ndarray:
        """First elements of the windows at int64 ``indices`` in [0, count), int64."""
        return indices * np.int64(self.stride)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Numbers of elements of the windows at int64 ``indices`` in [0, count), int64."""
        return np.minimum(self.elements - self.starts(indices), self.length)
