"""Choice: a share of all rows, by a hash of their source's name and their position.

The same ones in every run, under every split, and in whatever order sources are given.
"""

from __future__ import annotations

import hashlib

import numpy as np


def chosen(
    purpose: str, seed: int, source_name: str, positions: np.ndarray, rate: float
) -> np.ndarray:
    """Which rows are chosen.

    Args:
        purpose: what for, at most 16 bytes; choices for two purposes have nothing to do with one
            another.
        seed: from 0 to 2**64 - 1; likewise.
        source_name: the source's name.
        positions: int64 (rows,), where each record begins in its source.
        rate: the expected share of rows, 0 to 1.

    Returns:
        bool (rows,): whether a hash of (source name, position) lies under the rate.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie between 0 and 1, got {rate}")
    name = hashlib.blake2b(
        source_name.encode(),
        digest_size=8,
        person=purpose.encode(),
        salt=seed.to_bytes(8, "little"),
    ).digest()
    hashes = mix(positions.astype(np.uint64) ^ np.uint64(int.from_bytes(name, "little")))
    # 53 bits, as a float64 holds exactly, in [0, 1).
    return (hashes >> np.uint64(11)) * 2.0**-53 < rate


def mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele, Lea and Flood, 2014): a well-mixed bijection of uint64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
