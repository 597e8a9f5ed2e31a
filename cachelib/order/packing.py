"""Whole documents packed into rows: pieces, pools, best-fit decreasing, and the plan of it all.

Documents are put in an order by a seed and cut into pools, each of which is packed by itself, so
that a row is found by packing one pool and not all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property
from operator import le, sub
from typing import Literal, get_args

import numpy as np

from cachelib.order import seeds
from cachelib.order.permutation import Permutation
from cachelib.ragged import offsets_of, ranges

Overlong = Literal["split", "truncate_left", "truncate_right", "drop", "error"]
"""What becomes of a document that is longer than a pack: pieces of it, its end ("truncate_left"
cuts the beginning off), its beginning, nothing, or an error."""

Progress = Callable[[int, int], object]
"""Is told how much is done, and of how much."""

POOL_PACKS = 2000
"""Packs whose worth of values is in a pool, about: 0.05 % is lost where the last pack is empty."""

POOL_PIECES = 10_000
"""Pieces in a pool, about and at least: fewer leave gaps that no piece is short enough to fill."""

LONGEST = (1 << 32) - 1
"""Values a document may have: lengths are held as uint32 while a plan is made."""

_UNIT = 1 << 40


@dataclass(frozen=True)
class Rule:
    """What a pack holds.

    Attributes:
        limits: values of each field that a pack holds, 1 or more; (name, values) pairs.
        overlong: what becomes of documents that are longer. Several fields belong together, and
            cannot be cut apart: with several limits it is "drop" or "error".
        max_segments: pieces of documents in a pack, at most; None for any number.
    """

    limits: tuple[tuple[str, int], ...]
    overlong: Overlong = "split"
    max_segments: int | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise ValueError("a pack needs a length")
        for name, length in self.limits:
            if not 1 <= length < LONGEST:
                raise ValueError(
                    f"a pack holds 1 to {LONGEST - 1} values of {name!r}, got length={length}"
                )
        if self.overlong not in get_args(Overlong):
            raise ValueError(f"overlong must be one of {get_args(Overlong)}, got {self.overlong!r}")
        if len(self.limits) > 1 and self.overlong not in ("drop", "error"):
            raise ValueError(
                f"a document of several fields cannot be cut: with lengths for {self.fields}, "
                f"overlong must be 'drop' or 'error', got {self.overlong!r}"
            )
        if self.max_segments is not None and self.max_segments < 1:
            raise ValueError(f"max_segments must be 1 or more, got {self.max_segments}")

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(field for field, _ in self.limits)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The limits, int64 of shape (fields,)."""
        return np.array([length for _, length in self.limits], np.int64)

    def pieces(self, sizes: np.ndarray) -> Pieces:
        """The pieces of documents, those of a document side by side.

        Args:
            sizes: int64 (documents, fields). Documents without a value give no piece.
        """
        if self.overlong == "split":
            length = self.lengths[0]
            counts = -(-sizes[:, 0] // length)
            documents = np.repeat(np.arange(len(sizes)), counts)
            starts = ranges(np.zeros(len(sizes), np.int64), counts)[:, None] * length
            return Pieces(documents, starts, np.minimum(sizes[documents] - starts, length))
        kept = sizes.any(axis=1)
        if not self.overlong.startswith("truncate"):
            kept &= ~self._over(sizes)
        documents = np.flatnonzero(kept)
        whole = sizes[documents]
        cut = np.minimum(whole, self.lengths)
        starts = whole - cut if self.overlong == "truncate_left" else np.zeros_like(cut)
        return Pieces(documents, starts, cut)

    def account(self, sizes: np.ndarray, first: int = 0) -> Accounts:
        """What becomes of documents.

        Args:
            sizes: int64 (documents, fields).
            first: number of the first one, to name them by.

        Raises:
            ValueError: a document is longer than a pack and ``overlong`` is "error", or longer
                than `LONGEST`; names it.
        """
        over = self._over(sizes)
        limits = self.lengths if self.overlong == "error" else LONGEST
        refused = np.any(sizes > limits, axis=1)
        if refused.any():
            bad = int(np.argmax(refused))
            most = dict(self.limits) if self.overlong == "error" else LONGEST
            raise ValueError(
                f"row {first + bad} has {dict(zip(self.fields, sizes[bad].tolist(), strict=True))} "
                f"values, more than {most}: leave it out, or choose another length or overlong"
            )
        pieces = self.pieces(sizes)
        given, packed, longer = sizes.sum(axis=0), pieces.sizes.sum(axis=0), sizes[over]
        truncating = self.overlong.startswith("truncate")
        cut = np.maximum(longer - self.lengths, 0) if truncating else longer[:0]
        dropped = longer if self.overlong == "drop" else longer[:0]
        tallies = zip(given, packed, cut.sum(axis=0), dropped.sum(axis=0), strict=True)
        return Accounts(
            documents=len(sizes),
            empty=int((~sizes.any(axis=1)).sum()),
            split=len(longer) if self.overlong == "split" else 0,
            truncated=len(cut),
            dropped=len(dropped),
            pieces=len(pieces.sizes),
            values={
                field: Tally(*(int(n) for n in tally))
                for field, tally in zip(self.fields, tallies, strict=True)
            },
        )

    def pack(self, sizes: np.ndarray) -> tuple[np.ndarray, int]:
        """The pack that each piece of one pool is in, and how many packs there are.

        Best-fit decreasing: pieces are placed from the largest on, each into the fullest pack that
        has room for it, else into a new one. With one limit pieces of one size are placed together
        (`best_fit`). With several, or where a pack would have too many segments that way, they are
        placed one by one (`best_fit_of_several`), which is some ten times slower.

        Args:
            sizes: int64 (pieces, fields), at least one value a piece and none above its limit.

        Returns:
            int64 (pieces,) from 0 to packs - 1, and packs.
        """
        if len(self.limits) == 1:
            length = int(self.lengths[0])
            found, count = owners(best_fit(np.bincount(sizes[:, 0]), length), length)
            if self.max_segments is None or np.bincount(found).max(initial=0) <= self.max_segments:
                packs = np.empty(len(sizes), np.int64)
                packs[np.argsort(-sizes[:, 0], kind="stable")] = found
                return packs, count
        return best_fit_of_several(sizes, self.lengths, self.max_segments)

    def count(self, sizes: np.ndarray) -> int:
        """How many packs `pack` fills with pieces of sizes int64 (pieces, fields)."""
        if len(self.limits) > 1 or self.max_segments is not None:
            return self.pack(sizes)[1]
        length = int(self.lengths[0])
        moves = best_fit(np.bincount(sizes[:, 0]), length)
        return sum(packs for _, room, packs, _ in moves if room == length)

    def _over(self, sizes: np.ndarray) -> np.ndarray:
        """Which documents are longer than a pack."""
        return np.any(sizes > self.lengths, axis=1)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Parts of documents that stay whole.

    Attributes:
        documents: int64 (pieces,), the place of each one's document among those cut.
        starts: int64 (pieces, fields), where it begins in its document.
        sizes: int64 (pieces, fields), its values.
    """

    documents: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class Tally:
    """Values of one field: all that are given are packed, truncated or dropped.

    Attributes:
        given: in all documents.
        packed: in packs.
        truncated: cut off from documents of which the rest is packed.
        dropped: in documents that are left out.
    """

    given: int = 0
    packed: int = 0
    truncated: int = 0
    dropped: int = 0

    def __add__(self, other: Tally) -> Tally:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Tally(*(mine + theirs for mine, theirs in pairs))


@dataclass(frozen=True)
class Accounts:
    """What became of documents.

    Attributes:
        documents: all there are.
        empty: have no value, and so no piece.
        split, truncated, dropped: were longer than a pack.
        pieces: are in packs; a document that is neither empty nor dropped has one, or several
            where it was split.
        values: of each field.
    """

    documents: int
    empty: int
    split: int
    truncated: int
    dropped: int
    pieces: int
    values: Mapping[str, Tally]

    def __add__(self, other: Accounts) -> Accounts:
        return Accounts(
            self.documents + other.documents,
            self.empty + other.empty,
            self.split + other.split,
            self.truncated + other.truncated,
            self.dropped + other.dropped,
            self.pieces + other.pieces,
            {field: tally + other.values[field] for field, tally in self.values.items()},
        )


@dataclass(frozen=True)
class Plan:
    """Which documents are in which pool, and how many packs each pool fills: 8 bytes a pool.

    Plans of the same documents are equal where rule and seed are.

    Attributes:
        rule: what a pack holds.
        seed: of the membership of pools, any integer.
        packs: int64 (pools,), packs of each pool.
        accounts: what became of the documents.
    """

    rule: Rule
    seed: int
    packs: np.ndarray = field(compare=False)
    accounts: Accounts = field(compare=False)

    @cached_property
    def size(self) -> int:
        """Packs of all pools."""
        return int(self.packs.sum())

    @property
    def utilisation(self) -> dict[str, float]:
        """The part of all packs that values of each field fill; the rest is padding."""
        return {
            name: self.accounts.values[name].packed / (length * self.size) if self.size else 1.0
            for name, length in self.rule.limits
        }

    def documents(self, pool: int) -> np.ndarray:
        """The documents of a pool, int64, in the order by which they are cut into pieces."""
        return members(self.accounts.documents, len(self.packs), pool, self.seed)

    def order(self, epoch: int) -> Order:
        """The order of all packs in a pass; in each one pools and packs stand elsewhere."""
        seed = seeds.of_epoch(self.seed, epoch)
        permutation = Permutation(len(self.packs), seeds.derive("pools", seed))
        pools = permutation.apply(np.arange(len(self.packs)))
        return Order(pools, offsets_of(self.packs[pools]), seed)


@dataclass(frozen=True, eq=False)
class Order:
    """Where packs stand: pools one after another, in each its packs permuted.

    Attributes:
        pools: int64 (pools,), by place.
        edges: int64 (pools + 1,), the positions at which they begin.
        seed: of this order.
    """

    pools: np.ndarray
    edges: np.ndarray
    seed: int

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pool at each int64 position in [0, size), and the pack in the pool; int64 both."""
        places = np.searchsorted(self.edges, positions, side="right") - 1
        packs = np.empty_like(positions)
        for place in np.unique(places).tolist():
            chosen = places == place
            size = int(self.edges[place + 1] - self.edges[place])
            key = seeds.derive("packs of a pool", self.seed, int(self.pools[place]))
            within = positions[chosen] - self.edges[place]
            packs[chosen] = Permutation(size, key).apply(within)
        return self.pools[places], packs


def plan(
    sizes: np.ndarray, accounts: Accounts, rule: Rule, seed: int, progress: Progress | None = None
) -> Plan:
    """Pack all documents, to learn how many packs each pool fills.

    There are as many pools as leave each `POOL_PACKS` packs' worth of values and `POOL_PIECES`
    pieces on average; pools have equal numbers of documents, up to one.

    Args:
        sizes: (documents, fields) of any integer dtype, in stored order.
        accounts: of these documents by ``rule``.
        rule: what a pack holds.
        seed: of the membership of pools.
        progress: is told how many documents are packed, and how many there are, after each pool.
    """
    worth = max(accounts.values[field].packed // length for field, length in rule.limits)
    pools = max(1, min(worth // POOL_PACKS, accounts.pieces // POOL_PIECES))
    packs, done = np.zeros(pools, np.int64), 0
    for pool in range(pools):
        of_pool = members(len(sizes), pools, pool, seed)
        packs[pool] = rule.count(rule.pieces(sizes[of_pool].astype(np.int64)).sizes)
        done += len(of_pool)
        if progress is not None:
            progress(done, len(sizes))
    return Plan(rule, seed, packs, accounts)


def members(documents: int, pools: int, pool: int, seed: int) -> np.ndarray:
    """The documents of a pool, int64; a permutation of all by the seed, cut into equal parts."""
    start, stop = documents * pool // pools, documents * (pool + 1) // pools
    order = Permutation(documents, seeds.derive("members of pools", seed))
    return order.apply(np.arange(start, stop))


Move = tuple[int, int, int, int]
"""(size, room, packs, each): into ``packs`` packs that have ``room`` values left go ``each`` pieces
of ``size`` values."""


def best_fit(histogram: np.ndarray, length: int) -> list[Move]:
    """Best-fit decreasing of pieces that are only told by their sizes.

    Packs with the same room left are alike, and pieces of the same size too, so whole groups are
    placed at once: the fullest pack with room for a piece stays the fullest one until it has no
    more room for such a piece, and the next is one that is as full as it was.

    Args:
        histogram: int64 (at most length + 1,), how many pieces there are of each size. Pieces of
            size 0 are left out.
        length: values that a pack holds.

    Returns:
        Moves from the largest size to the smallest, which place every piece. A ``room`` of
        ``length`` is a new pack.
    """
    sizes = np.flatnonzero(histogram[1:])[::-1] + 1
    groups = list(zip(sizes.tolist(), histogram[sizes].tolist(), strict=True))
    # Pieces of more than half a pack need one each.
    large = int(np.count_nonzero(2 * sizes > length))
    moves = [(size, length, count, 1) for size, count in groups[:large]]
    packs = [0] * length  # that have so much room
    for size, count in groups[:large]:
        packs[length - size] = count
    rooms = [length - size for size, _ in groups[:large] if size < length]  # ascending
    for size, remaining in groups[large:]:
        at = bisect_left(rooms, size)
        while remaining:
            new = at == len(rooms)
            room = length if new else rooms[at]
            each = room // size
            if each > remaining:
                each = remaining
            number = remaining // each
            if not new:
                there = packs[room]
                if number >= there:
                    number = there
                    del rooms[at]
                packs[room] = there - number
            moves.append((size, room, number, each))
            remaining -= number * each
            left = room - size * each
            if left and not packs[left]:
                # Less than the size, or else this was the last move of it.
                insort(rooms, left)
                at += 1
            packs[left] += number
    return moves


def owners(moves: list[Move], length: int) -> tuple[np.ndarray, int]:
    """The pack of each piece, largest size first, that moves of `best_fit` place; and how many.

    Of packs with the same room the one that came to it last is filled first.
    """
    filled: list[int] = []
    opened = 0
    by_room: dict[int, list[int]] = {}
    for size, room, packs, each in moves:
        if room == length:
            taken = list(range(opened, opened + packs))
            opened += packs
        else:
            taken = by_room[room][-packs:]
            del by_room[room][-packs:]
        filled += taken
        by_room.setdefault(room - size * each, []).extend(taken)
    pieces = [each for _, _, packs, each in moves for _ in range(packs)]
    return np.repeat(np.array(filled, np.int64), pieces), opened


def best_fit_of_several(
    sizes: np.ndarray, lengths: np.ndarray, max_segments: int | None
) -> tuple[np.ndarray, int]:
    """Best-fit decreasing with a limit for each of several fields, and one of segments.

    Size and room are measured by their sum over the fields, each as a part of its limit (FFDSum
    with equal weights of Panigrahy et al., "Heuristics for Vector Bin Packing", 2011, here as
    best-fit). With one field and no limit of segments this is best-fit decreasing.

    Args:
        sizes: int64 (pieces, fields).
        lengths: int64 (fields,), values that a pack holds.
        max_segments: pieces that it holds, None for any number.

    Returns:
        The pack of each piece, int64 (pieces,), and how many packs there are.
    """
    weights = _UNIT // lengths
    measures = sizes @ weights
    # A segment is a field of which every piece has one, and which is not measured.
    most = len(sizes) if max_segments is None else max_segments
    needs = np.column_stack([sizes, np.ones(len(sizes), np.int64)])
    least = needs.min(axis=0, initial=_UNIT).tolist()
    new = (int(lengths @ weights), (*lengths.tolist(), most))
    rooms: list[tuple[int, ...]] = []  # of packs
    fitting: list[tuple[int, int]] = []  # (measure of its room, pack) where a piece may fit, sorted
    packs = np.empty(len(sizes), np.int64)
    order = np.argsort(-measures, kind="stable")
    rows = zip(order.tolist(), measures[order].tolist(), needs[order].tolist(), strict=True)
    for piece, measure, need in rows:
        # A pack with room for the piece has at least as much room by measure.
        at = bisect_left(fitting, (measure, 0))
        while at < len(fitting) and not all(map(le, need, rooms[fitting[at][1]])):
            at += 1
        if at < len(fitting):
            before, pack = fitting.pop(at)
        else:
            before, pack = new[0], len(rooms)
            rooms.append(new[1])
        rooms[pack] = tuple(map(sub, rooms[pack], need))
        packs[piece] = pack
        if all(map(le, least, rooms[pack])):
            insort(fitting, (before - measure, pack))
    return packs, len(rooms)
