"""Content digest: a polynomial hash of rows that composes under concatenation.

With p = 2^61 - 1 and fixed bases r and q modulo p, a field's values in one row are read as words
w_0 .. w_{m-1} (little-endian unsigned integers of the item size; 8-byte items are two words, low
first) and hash to

    h = sum_j w_j * r^(j + 1) + n * s   (mod p)

where n is the number of values and s a fixed base. A row hashes to the sum over its fields of
h * k_field, with k_field drawn from the field's name, dtype and shape, and rows R_0 .. R_{n-1} to

    D = sum_i R_i * q^(n - 1 - i)       (mod p)

so that D(A + B) = D(A) * q^|B| + D(B): the digest of a whole follows from the digests and row
counts of its parts, however it was cut. Two different contents of n words collide for at most n of
the p choices of a base (Schwartz-Zippel).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from cachelib.format.schema import Field, Schema
from cachelib.ragged import Ragged

PRIME = (1 << 61) - 1
_P = np.uint64(PRIME)


def _base(label: str) -> int:
    """A number in [2, p) drawn from a label."""
    drawn = hashlib.blake2b(f"forebay digest 1: {label}".encode(), digest_size=16).digest()
    return 2 + int.from_bytes(drawn, "little") % (PRIME - 2)


_R, _Q, _S = _base("word"), _base("row"), _base("length")


def field_base(field: Field) -> int:
    """The factor of a field: its name, dtype and shape tell it from every other."""
    return _base(f"field {field.name} {field.dtype} {list(field.shape)}")


@dataclass(frozen=True)
class Digest:
    """The digest of a run of rows: their number and their value modulo 2^61 - 1."""

    rows: int
    value: int

    def then(self, after: Digest) -> Digest:
        """The digest of these rows followed by others."""
        return Digest(
            self.rows + after.rows,
            (self.value * pow(_Q, after.rows, PRIME) + after.value) % PRIME,
        )

    def __str__(self) -> str:
        return f"{self.rows}:{self.value:016x}"

    @classmethod
    def parse(cls, text: str) -> Digest:
        rows, _, value = text.partition(":")
        return cls(int(rows), int(value, 16))


EMPTY = Digest(0, 0)


def fold(parts: Iterable[Digest]) -> Digest:
    """The digest of parts put one after another."""
    whole = EMPTY
    for part in parts:
        whole = whole.then(part)
    return whole


def digest_rows(schema: Schema, columns: Mapping[str, np.ndarray | Ragged]) -> Digest:
    """The digest of rows given as one column a field of the schema, provenance left out."""
    rows = len(columns[schema.fields[0].name])
    total = np.zeros(rows, np.uint64)
    for field in schema.fields:
        hashes = _field_hashes(field, columns[field.name], rows)
        total = _reduce(total + _multiply(hashes, np.uint64(field_base(field))))
    return Digest(rows, _fold_rows(total))


# A block's words are multiplied by limbs of the powers of r and summed in 64 bits: three limbs of
# 21 bits for words of 32 bits, two of 31 for words of 22, which token ids are.
_BLOCK = 2048
_BLOCKS_AT_ONCE = 64
_SMALL_WORD = 1 << 22


def _powers(base: int, count: int) -> np.ndarray:
    powers = np.empty(count, np.uint64)
    value = 1
    for exponent in range(count):
        powers[exponent] = value
        value = value * base % PRIME
    return powers


_R_POWERS = _powers(_R, _BLOCK)
_R_LIMBS = {
    bits: tuple(
        (bits * i, (_R_POWERS >> np.uint64(bits * i)) & np.uint64((1 << bits) - 1))
        for i in range(count)
    )
    for bits, count in ((21, 3), (31, 2))
}
_R_BACK = pow(_R, PRIME - 1 - _BLOCK, PRIME)  # r^-BLOCK
_Q_POWERS = _powers(_Q, 4096)


def _reduce(x: np.ndarray) -> np.ndarray:
    """uint64 values modulo p."""
    x = (x & _P) + (x >> np.uint64(61))
    return np.minimum(x, x - _P)  # below p the difference wraps around to a larger number


def _rotate(x: np.ndarray, bits: int) -> np.ndarray:
    """x * 2^bits modulo p, for x below p."""
    return ((x << np.uint64(bits)) & _P) | (x >> np.uint64(61 - bits))


def _multiply(a: np.ndarray, b: np.ndarray | np.uint64) -> np.ndarray:
    """a * b modulo p for values below p, by 31-bit halves: 2^61 is 1 modulo p."""
    half, low31, low30 = np.uint64(31), np.uint64((1 << 31) - 1), np.uint64((1 << 30) - 1)
    a_high, a_low, b_high, b_low = a >> half, a & low31, b >> half, b & low31
    middle = a_high * b_low + a_low * b_high
    total = (
        ((a_high * b_high) << np.uint64(1))
        + (middle >> np.uint64(30))
        + ((middle & low30) << half)
        + a_low * b_low
    )
    return _reduce(total)


def _power(base: int, exponents: np.ndarray) -> np.ndarray:
    """base ** exponents modulo p, for int64 exponents from 0."""
    result = np.ones(len(exponents), np.uint64)
    square = base
    for bit in range(int(exponents.max(initial=0)).bit_length()):
        chosen = (exponents >> bit) & 1 == 1
        result[chosen] = _multiply(result[chosen], np.uint64(square))
        square = square * square % PRIME
    return result


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sums modulo p of the runs of values (below p) that begin at strictly increasing starts."""
    low = np.add.reduceat(values & np.uint64(0xFFFFFFFF), starts)
    high = np.add.reduceat(values >> np.uint64(32), starts)
    return _reduce(_reduce(low) + _rotate(_reduce(high), 32))


def _field_hashes(field: Field, column: np.ndarray | Ragged, rows: int) -> np.ndarray:
    """The hash of one field in every row: uint64 of shape (rows,), below p."""
    if isinstance(column, Ragged):
        values, offsets = column.values, column.offsets
    else:
        values, offsets = column, np.arange(rows + 1, dtype=np.int64)
    each = int(np.prod(field.shape, dtype=np.int64))
    flat = np.ascontiguousarray(values, np.dtype(field.dtype).newbyteorder("<")).reshape(-1)
    size = flat.dtype.itemsize
    words = flat.view({1: "u1", 2: "<u2", 4: "<u4", 8: "<u4"}[size])
    word_offsets = offsets * (each * (2 if size == 8 else 1))
    lengths = (np.diff(offsets) * each).astype(np.uint64)
    return _reduce(_word_hashes(words, word_offsets) + _multiply(_reduce(lengths), np.uint64(_S)))


def _word_hashes(words: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """sum_j w_j * r^(j + 1) of every row of words: uint64 of shape (rows,), below p.

    The words are cut into segments at row starts and at multiples of a block; each segment is
    summed against one table of powers, counted from its block's start, and shifted to its row's.
    """
    rows = len(offsets) - 1
    hashes = np.zeros(rows, np.uint64)
    full = np.flatnonzero(offsets[1:] > offsets[:-1])
    if len(full) == 0:
        return hashes
    starts = offsets[full]
    segments = np.union1d(starts, np.arange(0, len(words), _BLOCK, dtype=np.int64))
    sums = np.empty(len(segments), np.uint64)
    step = _BLOCK * _BLOCKS_AT_ONCE
    for first in range(0, len(words), step):
        part = words[first : first + step]
        low, high = np.searchsorted(segments, (first, first + len(part)))
        sums[low:high] = _segment_sums(part, segments[low:high] - first)
    row = np.searchsorted(starts, segments, side="right") - 1
    shift = (segments // _BLOCK) * _BLOCK - starts[row] + 1 + _BLOCK  # from 2, undone by r^-BLOCK
    factor = _multiply(_R_POWERS[shift % _BLOCK], np.uint64(_R_BACK))
    blocks = shift // _BLOCK
    if blocks.max() > 0:
        factor = _multiply(factor, _power(pow(_R, _BLOCK, PRIME), blocks))
    sums = _multiply(sums, factor)
    hashes[full] = _sums(sums, np.searchsorted(segments, starts))
    return hashes


def _segment_sums(words: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sums of w_i * r^(i mod BLOCK) over the segments that begin at starts, modulo p."""
    blocks, rest = divmod(len(words), _BLOCK)
    total = np.zeros(len(starts), np.uint64)
    products = np.empty(len(words), np.uint64)
    body = blocks * _BLOCK
    for shift, limb in _R_LIMBS[31 if words.max() < _SMALL_WORD else 21]:
        np.multiply(
            words[:body].reshape(blocks, _BLOCK),
            limb,
            out=products[:body].reshape(blocks, _BLOCK),
            dtype=np.uint64,
        )
        np.multiply(words[body:], limb[:rest], out=products[body:], dtype=np.uint64)
        total = _reduce(total + _rotate(_reduce(np.add.reduceat(products, starts)), shift))
    return total


def _fold_rows(hashes: np.ndarray) -> int:
    """sum_i R_i * q^(n - 1 - i) modulo p."""
    value = 0
    for first in range(0, len(hashes), len(_Q_POWERS)):
        part = hashes[first : first + len(_Q_POWERS)]
        terms = _multiply(part, _Q_POWERS[: len(part)][::-1])
        total = int(_sums(terms, np.array([0]))[0])
        value = (value * pow(_Q, len(part), PRIME) + total) % PRIME
    return value
