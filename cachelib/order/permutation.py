"""A keyed pseudo-random permutation of [0, n): random access, exact inverse, constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np

LARGEST = 1 << 63
# A Feistel network over a few bits mixes badly, so small domains get an explicit table.
TABLE_LIMIT = 4096
# Eight 64-bit round keys are exactly one blake2b digest.
ROUNDS = 8
# Indices worked on at a time: the scratch arrays of a block stay in the processor's cache.
BLOCK = 1 << 13

_MULTIPLIER_1 = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_2 = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Permutation:
    """The permutation of [0, size) that belongs to a key; unrelated for different keys or sizes.

    Up to 4,096 it is the sorting order of keyed hashes, so that every permutation is equally
    likely. Above, it is the generalised Feistel cipher of Black and Rogaway, "Ciphers with
    arbitrary finite domains" (CT-RSA 2002): x is written as (left, right) in a grid of
    rows x columns >= size, both close to the square root of size, and each round adds a keyed hash
    of one half to the other, modulo its range. The cells outside [0, size), fewer than ``rows``,
    are walked over: the cipher is applied again until the result lies inside.

    Attributes:
        size: number of elements, 0 <= size <= 2**63.
        key: any bytes, as from ``seeds.derive``.
    """

    size: int
    key: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.size <= LARGEST:
            raise ValueError(f"a permutation has 0 to 2**63 elements, got {self.size}")

    def apply(self, positions: np.ndarray) -> np.ndarray:
        """Where the permutation sends each position.

        Args:
            positions: integers in [0, size), any shape.

        Returns:
            int64 of the same shape, in [0, size).

        Raises:
            IndexError: a position is outside [0, size).
            TypeError: positions are not integers.
        """
        positions = self._checked(positions)
        if self.size <= TABLE_LIMIT:
            return self._table[positions]
        return self._walk(positions, self._encrypt)

    def invert(self, images: np.ndarray) -> np.ndarray:
        """The positions that ``apply`` sends to ``images``; arguments and errors as there."""
        images = self._checked(images)
        if self.size <= TABLE_LIMIT:
            return np.argsort(self._table)[images]
        return self._walk(images, self._decrypt)

    def _checked(self, indices: np.ndarray) -> np.ndarray:
        if indices.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers, got {indices.dtype}")
        if indices.size:
            low, high = int(indices.min()), int(indices.max())
            if low < 0 or high >= self.size:
                bad = low if low < 0 else high
                raise IndexError(f"index {bad} is outside the permutation of {self.size} elements")
        return indices.astype(np.int64, copy=False)

    @cached_property
    def _table(self) -> np.ndarray:
        """The images of all positions, of a small domain."""
        hashes = np.arange(self.size, dtype=np.uint64)
        for key in self._keys:
            _scramble(hashes, key, hashes, np.empty_like(hashes))
        return np.argsort(hashes, kind="stable")

    @cached_property
    def _keys(self) -> np.ndarray:
        material = b"permutation" + self.size.to_bytes(8, "little") + self.key
        return np.frombuffer(blake2b(material, digest_size=8 * ROUNDS).digest(), "<u8")

    @cached_property
    def _grid(self) -> tuple[int, int]:
        """(rows, columns): the nearly square grid that the network works on."""
        rows = math.isqrt(self.size - 1) + 1
        return rows, -(-self.size // rows)

    def _walk(self, inputs: np.ndarray, cipher: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        flat = inputs.reshape(-1).view(np.uint64)
        outputs = np.empty_like(flat)
        for start in range(0, len(flat), BLOCK):
            block = cipher(flat[start : start + BLOCK])
            outside = np.flatnonzero(block >= self.size)
            while len(outside):
                block[outside] = cipher(block[outside])
                outside = outside[block[outside] >= self.size]
            outputs[start : start + BLOCK] = block
        return outputs.view(np.int64).reshape(inputs.shape)

    def _encrypt(self, block: np.ndarray) -> np.ndarray:
        rows, columns = self._grid
        left, right = _split(block, columns)
        amount, scratch = np.empty_like(block), np.empty_like(block)
        for key_of_left, key_of_right in self._keys.reshape(-1, 2):
            _draw(right, key_of_left, rows, amount, scratch)
            _add(left, amount, rows, scratch)
            _draw(left, key_of_right, columns, amount, scratch)
            _add(right, amount, columns, scratch)
        return _join(left, right, columns)

    def _decrypt(self, block: np.ndarray) -> np.ndarray:
        rows, columns = self._grid
        left, right = _split(block, columns)
        amount, scratch = np.empty_like(block), np.empty_like(block)
        for key_of_left, key_of_right in self._keys.reshape(-1, 2)[::-1]:
            _draw(left, key_of_right, columns, amount, scratch)
            _subtract(right, amount, columns, scratch)
            _draw(right, key_of_left, rows, amount, scratch)
            _subtract(left, amount, rows, scratch)
        return _join(left, right, columns)


def _split(block: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    left = block // np.uint64(columns)
    return left, block - left * np.uint64(columns)


def _join(left: np.ndarray, right: np.ndarray, columns: int) -> np.ndarray:
    left *= np.uint64(columns)
    left += right
    return left


def _scramble(values: np.ndarray, key: np.uint64, out: np.ndarray, scratch: np.ndarray) -> None:
    """A keyed bijection of 64 bits whose high bits depend on every bit below them."""
    np.add(values, key, out=out)
    np.multiply(out, _MULTIPLIER_1, out=out)
    np.right_shift(out, _HALF, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _MULTIPLIER_2, out=out)


def _draw(
    values: np.ndarray, key: np.uint64, modulus: int, out: np.ndarray, scratch: np.ndarray
) -> None:
    """A keyed hash of each value in [0, modulus), modulus <= 2**32: high part of a product.

    As many hash bits as fit beside the modulus take part, so that no amount is likelier than
    another by more than a part in 2**(64 - 2 * bits of the modulus).
    """
    bits = (modulus - 1).bit_length()
    _scramble(values, key, out, scratch)
    np.right_shift(out, np.uint64(bits), out=out)
    np.multiply(out, np.uint64(modulus), out=out)
    np.right_shift(out, np.uint64(64 - bits), out=out)


def _add(values: np.ndarray, amount: np.ndarray, modulus: int, scratch: np.ndarray) -> None:
    """values + amount modulo, in place; unsigned wrap-around makes the wrong choice huge."""
    np.add(values, amount, out=values)
    np.subtract(values, np.uint64(modulus), out=scratch)
    np.minimum(values, scratch, out=values)


def _subtract(values: np.ndarray, amount: np.ndarray, modulus: int, scratch: np.ndarray) -> None:
    """values - amount modulo, in place; the counterpart of ``_add``."""
    np.subtract(values, amount, out=values)
    np.add(values, np.uint64(modulus), out=scratch)
    np.minimum(values, scratch, out=values)
