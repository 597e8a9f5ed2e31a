"""Counts and sizes as people read them."""

from __future__ import annotations

import pytest

from cachelib.words import about, counted, size


def test_one_is_singular() -> None:
    assert [counted(n, "split") for n in (0, 1, 2, 1234)] == [
        "0 splits",
        "1 split",
        "2 splits",
        "1,234 splits",
    ]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (999.6, "1.0 KB"),
        (1000, "1.0 KB"),
        (99_949, "99.9 KB"),
        (123_456, "123 KB"),
        (999_499, "999 KB"),
        (999_500, "1.0 MB"),
        (2_500_000, "2.5 MB"),
        (1_234_000_000, "1.2 GB"),
        (5_000_000_000_000, "5,000 GB"),
    ],
)
def test_sizes_have_the_unit_that_fits(count: float, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0"), (8640, "8,600"), (1.234e9, "1,200,000,000")]
)
def test_estimates_have_two_digits(count: float, words: str) -> None:
    assert about(count) == words
