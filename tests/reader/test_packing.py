"""Packing as arithmetic, against best-fit decreasing as one would write it down."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelib.order import packing
from cachelib.order.packing import (
    LONGEST,
    POOL_PACKS,
    POOL_PIECES,
    Rule,
    Tally,
    best_fit,
    best_fit_of_several,
    members,
    plan,
)

CUTTING = ["split", "truncate_left", "truncate_right", "drop"]


def rule(length, overlong="split", max_segments=None):
    return Rule((("tokens", length),), overlong, max_segments)


def column(sizes):
    return np.array(sizes, np.int64).reshape(-1, 1)


def rooms_by_the_book(sizes, length, max_segments=None):
    """Best-fit decreasing, piece by piece: the room left in each pack, sorted."""
    packs: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        fitting = [p for p in packs if p[0] >= size and p[1] != max_segments]
        if fitting:
            pack = min(fitting, key=lambda p: p[0])
        else:
            pack = [length, 0]
            packs.append(pack)
        pack[0] -= size
        pack[1] += 1
    return sorted(p[0] for p in packs)


def rooms(found, count, sizes, length):
    used = np.bincount(found, weights=np.ravel(sizes), minlength=count).astype(int)
    return sorted((length - used).tolist())


@st.composite
def packable(draw):
    length = draw(st.integers(1, 60))
    largest = draw(st.integers(1, length))
    return draw(st.lists(st.integers(1, largest), max_size=80)), length


@settings(max_examples=500)
@given(packable())
def test_packs_as_by_the_book(case):
    sizes, length = case
    found, count = rule(length).pack(column(sizes))
    assert found.dtype == np.int64
    assert rooms(found, count, sizes, length) == rooms_by_the_book(sizes, length)
    assert rule(length).count(column(sizes)) == count
    assert set(found.tolist()) == set(range(count))


@given(packable(), st.integers(1, 5) | st.none())
def test_one_by_one_packs_as_by_the_book(case, most):
    sizes, length = case
    found, count = best_fit_of_several(column(sizes), np.array([length]), most)
    assert rooms(found, count, sizes, length) == rooms_by_the_book(sizes, length, most)


@given(packable(), st.integers(1, 5))
def test_packs_have_few_segments(case, most):
    sizes, length = case
    limited = rule(length, max_segments=most)
    found, count = limited.pack(column(sizes))
    assert limited.count(column(sizes)) == count
    assert np.bincount(found, minlength=1).max() <= most
    assert min(rooms(found, count, sizes, length), default=0) >= 0
    assert set(found.tolist()) == set(range(count))


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)).filter(any), max_size=60),
    st.integers(1, 6) | st.none(),
)
def test_no_limit_of_several_is_exceeded(sizes, most):
    limits = Rule((("tokens", 7), ("frames", 5)), "error", most)
    array = np.array(sizes, np.int64).reshape(-1, 2)
    found, count = limits.pack(array)
    used = np.zeros((count, 2), np.int64)
    np.add.at(used, found, array)
    assert (used <= [7, 5]).all()
    assert np.bincount(found, minlength=1).max() <= (most or len(sizes))
    assert set(found.tolist()) == set(range(count))
    # Two packs that could be one are never left: the later one's first piece would have fitted.
    if most is None:
        assert sum((used[a] + used[b] <= [7, 5]).all() for a in range(count) for b in range(a)) == 0


def test_groups_are_moved_at_once():
    """A million pieces of three sizes take a handful of moves."""
    histogram = np.zeros(101, np.int64)
    histogram[[60, 20, 7]] = 300_000, 500_000, 200_000
    moves = best_fit(histogram, 100)
    assert len(moves) < 12
    placed = dict.fromkeys((60, 20, 7), 0)
    for size, _, packs, each in moves:
        placed[size] += packs * each
    assert placed == {60: 300_000, 20: 500_000, 7: 200_000}


documents = st.lists(st.integers(0, 50), max_size=60)


@given(documents, st.integers(1, 20), st.sampled_from(CUTTING))
def test_pieces_are_parts_of_documents_and_add_up(sizes, length, overlong):
    r = rule(length, overlong)
    pieces = r.pieces(column(sizes))
    found: dict[int, list[int]] = {}
    for document, start, size in zip(
        pieces.documents.tolist(), pieces.starts[:, 0], pieces.sizes[:, 0], strict=True
    ):
        assert 1 <= size <= length
        found.setdefault(document, []).extend(range(start, start + size))
    for document, size in enumerate(sizes):
        expected = list(range(size))
        if size > length and overlong == "drop":
            expected = []
        if overlong == "truncate_right":
            expected = expected[:length]
        if overlong == "truncate_left":
            expected = expected[-length:]
        assert found.get(document, []) == expected
    accounts = r.account(column(sizes))
    tally = accounts.values["tokens"]
    longer = [size for size in sizes if size > length]
    assert tally.given == sum(sizes) == tally.packed + tally.truncated + tally.dropped
    assert tally.packed == sum(len(values) for values in found.values())
    assert tally.dropped == (sum(longer) if overlong == "drop" else 0)
    assert accounts.documents == len(sizes)
    assert accounts.empty == sizes.count(0)
    assert accounts.pieces == len(pieces.sizes)
    assert accounts.split == (len(longer) if overlong == "split" else 0)
    assert accounts.dropped == (len(longer) if overlong == "drop" else 0)
    assert accounts.truncated == (len(longer) if overlong.startswith("truncate") else 0)


@given(documents, documents, st.sampled_from(CUTTING))
def test_accounts_add_up(first, second, overlong):
    r = rule(9, overlong)
    both = r.account(column(first)) + r.account(column(second))
    assert astuple(both) == astuple(r.account(column(first + second)))


def test_of_two_fields_documents_are_dropped_whole():
    r = Rule((("tokens", 5), ("frames", 2)), "drop")
    sizes = np.array([[5, 2], [6, 0], [0, 3], [0, 0], [0, 1]], np.int64)
    accounts = r.account(sizes)
    assert (accounts.pieces, accounts.dropped, accounts.empty) == (2, 2, 1)
    assert accounts.values["tokens"] == Tally(given=11, packed=5, dropped=6)
    assert accounts.values["frames"] == Tally(given=6, packed=3, dropped=3)


@given(st.integers(0, 500), st.integers(1, 9), st.integers(-9, 9))
def test_every_document_is_in_one_pool(count, pools, seed):
    parts = [members(count, pools, pool, seed) for pool in range(pools)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1


def lognormal(count, seed=0):
    """Lengths of median 420 and sigma 1.2, as documents of the web have them."""
    drawn = np.random.default_rng(seed).lognormal(np.log(420), 1.2, count)
    return column(np.maximum(1, drawn).astype(np.int64))


@pytest.mark.parametrize("length", [2048, 4096, 8192])
def test_little_is_lost_to_padding_and_to_pools(length):
    sizes, r = lognormal(120_000), rule(length)
    found = plan(sizes.astype(np.uint32), r.account(sizes), r, seed=0)
    at_once = r.count(r.pieces(sizes).sizes)
    tokens = int(sizes.sum())
    assert len(found.packs) > 1
    assert found.utilisation["tokens"] == tokens / (found.size * length) >= 0.999
    assert tokens / (at_once * length) - found.utilisation["tokens"] <= 0.002


def test_pools_are_large_enough():
    sizes, r = lognormal(60_000), rule(512)
    accounts = r.account(sizes)
    found = plan(sizes, accounts, r, seed=0)
    pools = len(found.packs)
    assert accounts.pieces / pools >= POOL_PIECES
    assert accounts.values["tokens"].packed / pools >= POOL_PACKS * 512
    assert found.packs.sum() == found.size
    for pool in range(pools):
        assert r.pack(r.pieces(sizes[found.documents(pool)]).sizes)[1] == found.packs[pool]


ANY_RULE = [
    *(rule(9, overlong, most) for overlong in CUTTING for most in (None, 2)),
    Rule((("tokens", 9), ("frames", 5)), "drop"),
    Rule((("tokens", 9), ("frames", 5)), "drop", 2),
]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=60),
    st.sampled_from(ANY_RULE),
    st.integers(-9, 9),
)
def test_all_that_is_given_is_in_the_rows_of_all_pools_once_or_is_declared(sizes, r, seed):
    """Of pools as small as can be, by every policy, with one limit and with two."""
    given_ = np.array(sizes, np.int64).reshape(-1, 2)[:, : len(r.limits)]
    accounts = r.account(given_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "POOL_PACKS", 1)
        patch.setattr(packing, "POOL_PIECES", 3)
        found = plan(given_, accounts, r, seed)
    rows = 0
    packed: Counter[tuple[str, int, int]] = Counter()
    for pool in range(len(found.packs)):
        documents = found.documents(pool)
        pieces = r.pieces(given_[documents])
        packs, count = r.pack(pieces.sizes)
        rows += count
        assert count == found.packs[pool]
        used = np.zeros((count, len(r.limits)), np.int64)
        np.add.at(used, packs, pieces.sizes)
        assert (used <= r.lengths).all()
        for document, starts, lengths in zip(
            documents[pieces.documents].tolist(), pieces.starts, pieces.sizes, strict=True
        ):
            for at, name in enumerate(r.fields):
                values = range(int(starts[at]), int(starts[at] + lengths[at]))
                packed.update((name, document, value) for value in values)
    assert rows == found.size
    assert set(packed.values()) <= {1}
    for at, name in enumerate(r.fields):
        tally = accounts.values[name]
        inside = sum(key[0] == name for key in packed)
        assert inside == tally.packed
        assert given_[:, at].sum() == tally.given == inside + tally.truncated + tally.dropped


def test_membership_depends_on_the_seed_and_the_order_on_the_epoch():
    sizes, r = lognormal(30_000), rule(512)
    accounts = r.account(sizes)
    one, same, other = (plan(sizes, accounts, r, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.documents(0), same.documents(0))
    assert not np.array_equal(np.sort(one.documents(0)), np.sort(other.documents(0)))
    everywhere = np.arange(one.size)
    passes = []
    for epoch in range(3):
        order = one.order(epoch)
        pools, packs = order.locate(everywhere)
        assert len(set(zip(pools.tolist(), packs.tolist(), strict=True))) == one.size
        assert np.array_equal(np.bincount(pools), one.packs)
        assert (np.diff(pools) != 0).sum() == len(one.packs) - 1  # pool after pool
        passes.append((pools.tolist(), packs.tolist()))
        some = np.array([5, one.size - 1, 0, 5])
        assert np.array_equal(order.locate(some)[1], packs[some])
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_packs_do_not_come_by_length():
    """Best-fit opens packs for the longest pieces first; the order has nothing of that."""
    sizes, r = lognormal(12_000), rule(2048)
    found = plan(sizes, r.account(sizes), r, seed=0)
    pools, packs = found.order(0).locate(np.arange(found.size))
    pieces = r.pieces(sizes[found.documents(0)]).sizes
    owners, _ = r.pack(pieces)
    longest = np.zeros(found.packs[0], np.int64)
    np.maximum.at(longest, owners, pieces[:, 0])
    places = np.flatnonzero(pools == 0)
    assert np.corrcoef(longest[np.arange(len(longest))], np.arange(len(longest)))[0, 1] < -0.5
    assert abs(np.corrcoef(longest[packs[places]], places)[0, 1]) < 0.1


def test_the_order_is_part_of_the_format():
    sizes = column([3, 9, 4, 0, 5, 2, 7, 1, 6, 3, 4, 2, 1, 5, 3, 3, 2, 2])
    r = rule(8)
    found = plan(sizes, r.account(sizes), r, seed=7)
    documents = found.documents(0)
    pieces = r.pieces(sizes[documents])
    packs, count = r.pack(pieces.sizes)
    content = [documents[pieces.documents[packs == pack]].tolist() for pack in range(count)]
    assert content == [
        [1], [1, 6], [5, 8], [4, 15], [14, 13], [2, 10], [0, 16, 9], [12, 17, 7, 11]
    ]  # fmt: skip
    assert found.order(0).locate(np.arange(count))[1].tolist() == [4, 1, 6, 0, 5, 2, 3, 7]
    assert found.order(1).locate(np.arange(count))[1].tolist() == [3, 6, 0, 2, 4, 5, 1, 7]


@pytest.mark.parametrize("sizes", [[], [0, 0]])
def test_nothing_to_pack(sizes):
    r = rule(4)
    found = plan(column(sizes), r.account(column(sizes)), r, seed=0)
    assert found.size == 0
    assert found.utilisation == {"tokens": 1.0}
    assert len(found.order(0).locate(np.arange(0))[1]) == 0


def test_progress_is_told():
    sizes, r, told = lognormal(30_000), rule(512), []
    plan(sizes, r.account(sizes), r, 0, lambda done, of: told.append((done, of)))
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1] == (30_000, 30_000)


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ([], {}, "a pack needs a length"),
        ([("tokens", 0)], {}, "holds 1 to .* values of 'tokens', got length=0"),
        ([("tokens", 4)], {"overlong": "cut"}, "overlong must be one of .*, got 'cut'"),
        ([("tokens", 4)], {"max_segments": 0}, "max_segments must be 1 or more, got 0"),
        ([("a", 4), ("b", 4)], {"overlong": "split"}, "'drop' or 'error', got 'split'"),
    ],
)
def test_refuses_rules_that_cannot_be(limits, options, message):
    with pytest.raises(ValueError, match=message):
        Rule(tuple(limits), **options)


def test_refuses_documents_that_are_too_long():
    with pytest.raises(ValueError, match=r"row 12 has \{'tokens': 9\} values, more than .*8"):
        rule(8, "error").account(column([8, 1, 9, 10]), first=10)
    with pytest.raises(ValueError, match=f"more than {LONGEST}"):
        rule(8).account(column([1, LONGEST + 1]))
