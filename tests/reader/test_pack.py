"""Packs of documents: what is in them, in which order, and what is read for it."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelib
from cachelib import dataset, mix, segments
from cachelib.errors import CorruptData, StateMismatch
from cachelib.format.canonical import seal, unseal
from tests.reader.documents import DocumentCache
from tests.reader.memory import SimulatedCache
from tests.reader.stored import write_commit, write_frames, write_masks

LENGTHS = [3, 9, 0, 4, 5, 2, 17, 7, 1, 6, 8, 16]

lengths_of_documents = st.lists(st.integers(0, 30), max_size=40)


def web(count, seed=0, median=42):
    drawn = np.random.default_rng(seed).lognormal(np.log(median), 1.2, count)
    return np.maximum(1, drawn).astype(np.int64).tolist()


def everything(ds):
    return ds.take(range(len(ds)))


def runs(columns, field="tokens", prefix=""):
    """The values of each segment, row by row, as lists."""
    ids = columns[f"{prefix}segment_ids"]
    return [
        [columns[field][row][ids[row] == segment].tolist() for segment in range(1, last + 1)]
        for row, last in enumerate(ids.max(axis=1, initial=0).tolist())
    ]


@given(
    lengths_of_documents,
    st.integers(1, 12),
    st.sampled_from(["split", "truncate_left", "truncate_right", "drop"]),
    st.integers(1, 4) | st.none(),
)
def test_every_token_is_in_one_pack_or_was_dropped(lengths, length, overlong, most):
    cache = DocumentCache(lengths)
    ds = dataset.of(cache).pack(length, overlong=overlong, max_segments=most, pad_id=7)
    columns = everything(ds)
    expected = []
    for document in cache.fields["tokens"]:
        tokens = document.tolist()
        if len(tokens) > length and overlong == "drop":
            continue
        if overlong == "truncate_left":
            tokens = tokens[-length:]
        if overlong == "truncate_right":
            tokens = tokens[:length]
        expected += [tokens[i : i + length] for i in range(0, len(tokens), length)]
    packs = runs(columns)
    assert sorted(piece for pack in packs for piece in pack) == sorted(expected)
    tally = ds.packing.accounts.values["tokens"]
    assert tally.packed == sum(map(len, expected))
    assert tally.given == sum(lengths) == tally.packed + tally.truncated + tally.dropped
    assert ds.packing.accounts.pieces == len(expected)
    assert all(1 <= len(pack) <= (most or length) for pack in packs)
    ids = columns["segment_ids"]
    # Segments count on from the left, what is left is padding, and positions restart.
    for row, pack in enumerate(packs):
        filled = [s for s, piece in enumerate(pack, 1) for _ in piece]
        assert ids[row].tolist() == filled + [0] * (length - len(filled))
        places = [p for piece in pack for p in range(len(piece))]
        assert columns["positions"][row].tolist() == places + [0] * (length - len(filled))
    assert (columns["tokens"][ids == 0] == 7).all()
    assert np.array_equal(columns["mask"], (ids != 0).astype(np.int8))


def test_columns_have_types_and_shapes():
    ds = dataset.of(DocumentCache(LENGTHS)).pack(8)
    for columns, rows in ((ds.take([]), 0), (ds.take([1, 1, -1]), 3)):
        assert {name: (str(c.dtype), c.shape) for name, c in columns.items()} == {
            "tokens": ("uint32", (rows, 8)),
            "mask": ("int8", (rows, 8)),
            "segment_ids": ("int32", (rows, 8)),
            "positions": ("int32", (rows, 8)),
        }
    assert ds[0]["tokens"].shape == (8,)


@given(st.data())
def test_any_packs_are_what_they_are_among_all(data):
    ds = dataset.of(DocumentCache(LENGTHS * 3)).pack(8, seed=1)
    indices = data.draw(st.lists(st.integers(0, len(ds) - 1), max_size=8))
    whole, some = everything(ds), ds.take(indices)
    assert all(np.array_equal(some[name], whole[name][indices]) for name in whole)


def test_takes_from_several_pools():
    ds = dataset.of(DocumentCache(web(30_000))).pack(64, seed=2)
    assert len(ds.packing.packs) > 1
    whole = everything(ds)
    indices = np.random.default_rng(0).permutation(len(ds))[:200]
    some = ds.take(indices)
    assert all(np.array_equal(some[name], whole[name][indices]) for name in whole)
    tokens = whole["tokens"][whole["segment_ids"] != 0]
    assert np.array_equal(np.sort(tokens), np.arange(sum(web(30_000))))


def test_passes_are_whole_and_differ():
    cache = DocumentCache(web(25_000))
    once = dataset.of(cache).pack(64, seed=5)
    ds = once.repeat(3)
    passes = [ds.take(range(e * len(once), (e + 1) * len(once)))["tokens"] for e in range(3)]
    by_first = [tokens[np.argsort(tokens[:, 0])] for tokens in passes]
    assert np.array_equal(passes[0], everything(once)["tokens"])
    for a, b in ((0, 1), (1, 2), (2, 0)):
        assert np.array_equal(by_first[a], by_first[b])  # the same packs
        assert not np.array_equal(passes[a], passes[b])
    other = everything(dataset.of(cache).pack(64, seed=6))["tokens"]
    assert not np.array_equal(other[np.argsort(other[:, 0])], by_first[0])


def test_tokens_are_read_for_the_packs_asked_for_and_lengths_once_a_pool():
    cache = DocumentCache(web(25_000))
    packs = dataset.of(cache).pack(64)
    assert (cache.rows_asked, cache.values_read) == (25_000, 0)
    with packs.repeat().loader(16, prefetch=3) as loader:
        for _ in range(5):
            next(loader)
    pools = len(packs.packing.packs)
    assert pools > 1
    assert cache.rows_asked <= 25_000 + 25_000 // pools + 1
    assert cache.values_read <= 2 * 16 * 9 * 64  # tokens and mask, of what was read ahead, too


def test_a_loader_resumes_where_it_stood():
    def make():
        return dataset.of(DocumentCache(web(3_000))).pack(64, seed=1).repeat()

    loader = make().loader(8)
    for _ in range(3):
        next(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 1024
    again = make().loader(8, start=state)
    for _ in range(3):
        assert np.array_equal(next(loader)["tokens"], next(again)["tokens"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 32}, r"pack.length\[tokens\] is 64 in the state, but 32 here"),
        ({"seed": 2}, "pack.seed is 1 in the state, but 2 here"),
        ({"overlong": "drop"}, "pack.overlong is 'split' in the state, but 'drop' here"),
        ({"max_segments": 3}, "pack.max_segments is None in the state, but 3 here"),
    ],
)
def test_a_state_tells_packs_apart(options, message):
    rows = dataset.of(DocumentCache(web(300)))
    state = rows.pack(64, seed=1).loader(2).state_dict()
    with pytest.raises(StateMismatch, match=message):
        rows.pack(**{"length": 64, "seed": 1, **options}).loader(2, start=state)
    rows.pack(64, seed=1, pad_id=3).loader(2, start=state)  # the same order


def test_several_fields_are_packed_together():
    tokens, frames = [3, 5, 2, 9, 0, 4, 0], [1, 0, 2, 0, 2, 3, 0]
    cache = DocumentCache(tokens, frames=frames)
    ds = dataset.of(cache).pack({"tokens": 8, "frames": 4}, overlong="drop")
    columns = everything(ds)
    assert columns["tokens"].shape == (len(ds), 8)
    assert columns["frames"].shape == columns["frames_segment_ids"].shape == (len(ds), 4)
    found = []
    for row in range(len(ds)):
        ids = set(columns["segment_ids"][row]) | set(columns["frames_segment_ids"][row])
        for segment in sorted(ids - {0}):
            of_tokens = columns["tokens"][row][columns["segment_ids"][row] == segment]
            of_frames = columns["frames"][row][columns["frames_segment_ids"][row] == segment]
            found.append((of_tokens.tolist(), of_frames.tolist()))
    kept = [i for i in range(7) if i not in (3, 6)]  # one is too long, one is empty
    assert sorted(found) == sorted(
        (cache.fields["tokens"][i].tolist(), cache.fields["frames"][i].tolist()) for i in kept
    )
    accounts = ds.packing.accounts
    assert (accounts.dropped, accounts.empty) == (1, 1)
    assert accounts.values["tokens"].dropped == 9
    with pytest.raises(ValueError, match=r"row 3 has .*9.* more than"):
        dataset.of(cache).pack({"tokens": 8, "frames": 4}, overlong="error")


def test_columns_are_padded_each_with_its_own_value():
    rows = dataset.of(DocumentCache([3, 3]))
    columns = everything(rows.pack(4, pad_id={"tokens": 9, "mask": -1}))
    assert (columns["tokens"][:, 3] == 9).all()
    assert (columns["mask"][:, 3] == -1).all()
    with pytest.raises(ValueError, match="pad_id -1 does not fit column 'tokens' of uint32"):
        rows.pack(4, pad_id=-1)
    with pytest.raises(ValueError, match="no column 'labels' to pad"):
        rows.pack(4, pad_id={"labels": -100})
    with pytest.raises(TypeError, match="pad_id must be an integer"):
        rows.pack(4, pad_id=0.5)  # type: ignore[arg-type]


def test_fields_can_be_chosen():
    cache = DocumentCache(LENGTHS)
    assert "mask" not in dataset.of(cache, fields=["tokens"]).pack(8).take([0])
    with pytest.raises(ValueError, match="'tokens' is not among the fields"):
        dataset.of(cache, fields=["mask"]).pack(8)
    with pytest.raises(ValueError, match=r"two columns \['mask', 'tokens'\]"):
        dataset.of(cache).pack({"tokens": 8, "mask": 8}, overlong="drop")


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d,
        lambda d: d.repeat(2),
        lambda d: d.slice(0, 2),
        lambda d: mix({"a": d, "b": d}, {"a": 1, "b": 1}, seed=0, exhausted="stop"),
    ],
    ids=["pack", "repeat", "slice", "mix"],
)
def test_packs_are_not_shuffled_again(make):
    packs = dataset.of(DocumentCache(LENGTHS)).pack(8)
    with pytest.raises(ValueError, match=r"give the seed to pack\(seed=\)"):
        make(packs).shuffle(0)


@pytest.mark.parametrize(
    "make", [lambda d: d.shuffle(0), lambda d: d.repeat(2), lambda d: d.pack(8)]
)
def test_packs_need_stored_order(make):
    with pytest.raises(ValueError, match=r"call pack\(\) first"):
        make(dataset.of(DocumentCache(LENGTHS))).pack(8)


def test_refuses_what_cannot_be_packed():
    rows = dataset.of(DocumentCache(LENGTHS))
    with pytest.raises(TypeError, match="length must be an integer"):
        rows.pack(8.0)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"progress must be a function of \(done, total\), got True"
    ):
        rows.pack(8, progress=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="plan must be the path or URL of a file, got 3"):
        rows.pack(8, plan=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a pack needs a length"):
        rows.pack({})
    with pytest.raises(TypeError, match="SimulatedCache do not tell where documents"):
        dataset.of(SimulatedCache(9)).pack(8)
    with pytest.raises(TypeError, match="a stored has no packing"):
        rows.packing  # noqa: B018
    with pytest.raises(ValueError, match=r"row 1 has \{'tokens': 9\} values"):
        rows.pack(8, overlong="error")


def test_nothing_to_pack():
    ds = dataset.of(DocumentCache([])).pack(8)
    assert len(ds) == 0
    assert ds.take([])["tokens"].shape == (0, 8)


def test_a_kept_plan_is_read_instead_of_all_lengths(tmp_path):
    lengths, told = web(25_000), []
    rows = dataset.of(DocumentCache(lengths))
    place = tmp_path / "plans" / "web.json"
    made = rows.pack(64, seed=3, plan=place)
    again = DocumentCache(lengths)
    kept = dataset.of(again).pack(64, seed=3, plan=place, progress=lambda *a: told.append(a))
    assert (again.rows_asked, again.values_read, told) == (0, 0, [])
    assert kept.describe() == made.describe() == rows.pack(64, seed=3).describe()
    assert kept.packing.accounts == made.packing.accounts
    assert kept.packing.utilisation == made.packing.utilisation
    assert kept.packing.packs.dtype == np.int64
    assert np.array_equal(kept.packing.packs, made.packing.packs)
    indices = range(0, len(made), 7)
    assert np.array_equal(kept.take(indices)["tokens"], made.take(indices)["tokens"])
    kept.loader(4, start=made.loader(4, start=5).state_dict())
    # A few bytes a pool, and what the plan belongs to.
    assert len(kept.packing.packs) > 1
    assert place.stat().st_size < 8 * len(kept.packing.packs) + 1000


def test_a_plan_of_several_fields_is_kept(tmp_path):
    cache = DocumentCache([3, 5, 2, 9, 0, 4, 0], frames=[1, 0, 2, 0, 2, 3, 0])
    packed = {"overlong": "drop", "max_segments": 2, "plan": tmp_path / "plan.json"}
    made, kept = (dataset.of(cache).pack({"tokens": 8, "frames": 4}, **packed) for _ in range(2))
    assert kept.packing.accounts == made.packing.accounts
    assert runs(everything(kept)) == runs(everything(made))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 32}, r"pack.length\[tokens\] is 64 in the plan, but 32 here"),
        ({"seed": 2}, "pack.seed is 1 in the plan, but 2 here"),
        ({"overlong": "drop"}, "pack.overlong is 'split' in the plan, but 'drop' here"),
        ({"max_segments": 3}, "pack.max_segments is None in the plan, but 3 here"),
    ],
)
def test_a_plan_of_other_packs_is_refused(tmp_path, options, message):
    rows, place = dataset.of(DocumentCache(web(300))), tmp_path / "plan.json"
    rows.pack(64, seed=1, plan=place)
    before = place.read_bytes()
    with pytest.raises(StateMismatch, match=f"{place} is the plan of other packs: {message}; name"):
        rows.pack(**{"length": 64, "seed": 1, "plan": place, **options})
    assert place.read_bytes() == before
    rows.pack(64, seed=1, plan=place, pad_id=3, targets="shifted")  # the same packs


def test_a_plan_of_other_documents_is_refused(tmp_path):
    place = tmp_path / "plan.json"
    write_commit(tmp_path / "web", [LENGTHS])
    cachelib.open(tmp_path / "web").pack(8, plan=place)
    write_commit(tmp_path / "web", [LENGTHS])
    cachelib.open(tmp_path / "web", 0).pack(8, plan=place)
    with pytest.raises(StateMismatch, match=r"cache.rows is 12 in the plan, but 24 here"):
        cachelib.open(tmp_path / "web").pack(8, plan=place)
    with pytest.raises(StateMismatch, match=r"split.fraction is missing in the plan, but 0.5 here"):
        cachelib.open(tmp_path / "web", 0).split(0.5)[0].pack(8, plan=place)


def test_what_is_no_plan_is_refused_and_left(tmp_path):
    rows, place = dataset.of(DocumentCache(LENGTHS)), tmp_path / "plan.json"
    rows.pack(8, plan=place)
    whole = place.read_bytes()
    line = unseal(whole, "")
    for data, kind, message in (
        (whole[:-9], CorruptData, "plan.json: .* cut short or damaged; delete it, and"),
        (whole.replace(b"12", b"13", 1), CorruptData, "cut short or damaged"),
        (b"{}", CorruptData, "plan.json: 2 bytes"),
        (seal([1]), StateMismatch, "plan.json is no plan of packs: name another place"),
        (seal({"kind": "pack"}), StateMismatch, "is no plan of packs"),
        (seal({**line, "format": 9}), StateMismatch, "a plan of format 9, and .* reads format 1"),
    ):
        place.write_bytes(data)
        with pytest.raises(kind, match=message):
            rows.pack(8, plan=place)
        assert place.read_bytes() == data


def test_no_plan_is_kept_of_what_cannot_be_packed(tmp_path):
    rows, place = dataset.of(DocumentCache(LENGTHS)), tmp_path / "plan.json"
    with pytest.raises(ValueError, match="row 1 has"):
        rows.pack(8, overlong="error", plan=place)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="names no object"):
        rows.pack(8, plan="/")


def test_many_that_start_at_once_keep_one_whole_plan(tmp_path):
    """Each makes the plan or finds it; the first one's stays, and no other object is left."""
    lengths, place = web(2_000), tmp_path / "plan.json"
    with ThreadPoolExecutor(8) as pool:
        packs = list(
            pool.map(lambda _: dataset.of(DocumentCache(lengths)).pack(64, plan=place), range(16))
        )
    assert {tuple(ds.packing.packs) for ds in packs} == {tuple(packs[0].packing.packs)}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_processes_that_start_at_once_keep_one_whole_plan(tmp_path):
    write_commit(tmp_path / "web", [[1, 2, 3] * 4_200] * 2)
    script = (
        "import sys, cachelib; "
        "packs = cachelib.open(sys.argv[1]).pack(4, plan=sys.argv[2]); "
        "print(len(packs), packs.packing.packs.tolist())"
    )
    arguments = [str(tmp_path / "web"), str(tmp_path / "plans" / "web.json")]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    told = [process.communicate(timeout=60)[0] for process in started]
    packs = cachelib.open(tmp_path / "web").pack(4)
    assert told == [f"{len(packs)} {packs.packing.packs.tolist()}\n"] * 3
    assert [path.name for path in (tmp_path / "plans").iterdir()] == ["web.json"]


def test_another_plan_written_meanwhile_is_refused(tmp_path):
    """Two jobs that name one place for different plans: the later one is told."""
    rows, place = dataset.of(DocumentCache(LENGTHS)), tmp_path / "plan.json"
    with pytest.raises(StateMismatch, match=r"pack.seed is 2 in the plan, but 1 here"):
        rows.pack(8, seed=1, plan=place, progress=lambda *_: rows.pack(8, seed=2, plan=place))


def test_a_plan_is_kept_at_a_url(tmp_path):
    rows, url = dataset.of(DocumentCache(LENGTHS)), f"memory://{tmp_path.name}/plans/a.json"
    made = rows.pack(8, plan=url)
    with pytest.raises(StateMismatch, match=f"{url} is the plan of other packs"):
        rows.pack(9, plan=url)
    assert rows.pack(8, plan=url).packing.accounts == made.packing.accounts


def test_pickled_loaders_carry_the_plan_and_do_not_grow(tmp_path):
    """8 bytes a pool, whatever was read before."""
    write_commit(tmp_path, [[1, 2, 3] * 4_200] * 2)
    cache = cachelib.open(tmp_path)
    packs = cache.pack(4, seed=1, plan=tmp_path / "plan.json")
    loader = packs.repeat().loader(16, prefetch=0)
    before = len(pickle.dumps(loader))
    for _ in range(20):
        next(loader)
    packs.take(range(0, len(packs), 9))
    assert len(packs.packing.packs) > 1
    assert len(pickle.dumps(loader)) <= before + 8 * len(packs.packing.packs) + 200
    assert len(pickle.dumps(packs)) - len(pickle.dumps(cache.dataset())) < 2000
    assert runs(pickle.loads(pickle.dumps(packs)).take([5])) == runs(packs.take([5]))


def test_steps_are_exact():
    """A loader of packs has as many batches as it says, on every rank and by every policy."""
    packs = dataset.of(DocumentCache(web(100))).pack(64, seed=2)
    count = len(packs)
    for passes, batch, last, world in itertools.product((1, 2), (4, 6), ("drop", "pad"), (1, 2)):
        ds = packs.repeat(passes)
        loader = ds.loader(batch, last=last, dp_world=world, dp_rank=world - 1, prefetch=0)
        steps = passes * count // batch if last == "drop" else -(-passes * count // batch)
        assert loader.remaining == steps
        for left in reversed(range(steps)):
            next(loader)
            assert loader.remaining == left
        with pytest.raises(StopIteration):
            next(loader)


def test_progress_is_told_until_all_is_done():
    told = []
    dataset.of(DocumentCache(web(25_000))).pack(64, progress=lambda *a: told.append(a))
    assert told == sorted(told)
    assert told[0][0] == 25_000
    assert told[-1] == (50_000, 50_000)


def test_origins_are_the_documents_of_a_pack():
    cache = DocumentCache(LENGTHS)
    ds = dataset.of(cache).pack(8)
    for i, pack in enumerate(runs(everything(ds))):
        owners = [
            int(np.searchsorted(cache.fields["tokens"].offsets, piece[0], side="right")) - 1
            for piece in pack
        ]
        assert [origin.row for origin in ds.origins(i)] == owners


def test_threads_and_pickles_get_the_same():
    ds = dataset.of(DocumentCache(LENGTHS * 5)).pack(8, seed=3)
    alone = runs(everything(ds))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: runs(ds.take([i]))[0], list(range(len(ds))) * 4))
    assert found == alone * 4
    again = pickle.loads(pickle.dumps(ds))
    assert runs(everything(again)) == alone
    assert ds.node == dataset.Dataset(ds.node.in_epoch(0)).node


@given(
    lengths_of_documents,
    st.integers(1, 12),
    st.sampled_from(["split", "truncate_left", "truncate_right", "drop"]),
    st.integers(0, 9),
)
def test_targets_are_those_of_a_loop_over_segments(lengths, length, overlong, seed):
    rows = dataset.of(DocumentCache(lengths))
    plain = rows.pack(length, seed=seed, overlong=overlong, pad_id=7)
    targets_of = {}
    for targets in get_args(segments.Targets):
        ds = rows.pack(length, seed=seed, overlong=overlong, pad_id=7, targets=targets)
        assert ds.describe() == plain.describe()
        columns = everything(ds)
        labels = columns.pop("labels")
        for name, column in everything(plain).items():
            np.testing.assert_array_equal(columns.pop(name), column, strict=True)
        assert not columns
        assert labels.dtype == np.int32
        columns = everything(plain)
        for row, pack in enumerate(runs(columns)):
            expected = []
            for piece in pack:  # a piece of a document that was split stands alone, too
                known = piece[1:]
                expected += [-100, *known] if targets == "aligned" else [*known, -100]
            assert labels[row].tolist() == expected + [-100] * (length - len(expected))
        targets_of[targets] = labels
    # Both name the same targets: a model that shifts by itself computes the same loss.
    assert np.array_equal(targets_of["aligned"][:, 1:], targets_of["shifted"][:, :-1])


def test_pieces_of_a_document_are_labelled_each_by_itself():
    """Tokens 0 to 6 in rows of 3: what begins a piece, 3 and 6, is known from no token before."""
    rows = dataset.of(DocumentCache([7]))
    cases: list[tuple[Any, dict[int, list[int]]]] = [
        ("aligned", {0: [-100, 1, 2], 3: [-100, 4, 5], 6: [-100, -100, -100]}),
        ("shifted", {0: [1, 2, -100], 3: [4, 5, -100], 6: [-100, -100, -100]}),
    ]
    for targets, expected in cases:
        columns = everything(rows.pack(3, targets=targets))
        found = dict(zip(columns["tokens"][:, 0].tolist(), columns["labels"].tolist(), strict=True))
        assert found == expected


def test_of_several_fields_the_first_is_labelled():
    rows = dataset.of(DocumentCache([3, 4], frames=[2, 1]))
    lengths = {"tokens": 8, "frames": 4}
    columns = everything(rows.pack(lengths, overlong="drop", targets="shifted"))
    again = segments.labels(columns["tokens"], columns["segment_ids"], "shifted")
    assert np.array_equal(columns["labels"], again)
    assert "frames_labels" not in columns


def test_refuses_targets_that_cannot_be(tmp_path):
    rows = dataset.of(DocumentCache([3, 4], labels=[3, 4]))
    with pytest.raises(ValueError, match=r"targets must be one of .*, got 'next'"):
        rows.pack(8, targets="next")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"two columns \['labels'\]"):
        rows.pack({"tokens": 8, "labels": 8}, overlong="drop", targets="aligned")
    write_frames(tmp_path / "frames", [2, 5, 1])
    write_masks(tmp_path / "masks", [2, 5, 1])
    for name, dtype in (("frames", "float32"), ("mask", "bool")):
        cache = cachelib.open(tmp_path / ("frames" if name == "frames" else "masks"))
        with pytest.raises(ValueError, match=f"labels token ids.* '{name}' of {dtype} and shape"):
            cache.pack({name: 8}, targets="aligned")


def test_stored_tokens_of_any_type_are_labelled(tmp_path):
    write_commit(tmp_path, [LENGTHS])
    columns = everything(cachelib.open(tmp_path).pack(8, targets="aligned", pad_id=65535))
    first = columns["positions"] == 0
    inside = columns["segment_ids"] != 0
    assert columns["tokens"].dtype == np.uint16
    assert (columns["labels"][first | ~inside] == -100).all()
    known = ~first & inside
    assert np.array_equal(columns["labels"][known], columns["tokens"][known])


@given(lengths_of_documents, st.integers(2, 12), st.integers(1, 4), st.integers(1, 3))
def test_edges_of_batches_have_one_shape_and_bound_every_segment(lengths, length, most, batch):
    """A batch has at most ``most`` documents and one padding a row; edges are as a loop has it."""
    packs = dataset.of(DocumentCache(lengths)).pack(length, max_segments=most)
    room = batch * (most + 1)
    for start in range(0, len(packs), batch):
        ids = packs.take(range(start, min(start + batch, len(packs))))["segment_ids"]
        edges, longest = segments.cu_seqlens(ids, max_segments=room)
        flat = [(row, segment) for row, line in enumerate(ids.tolist()) for segment in line]
        begins = [i for i in range(len(flat)) if i == 0 or flat[i] != flat[i - 1]]
        ends = [*begins[1:], len(flat)]
        assert edges.dtype == np.int32
        assert edges.tolist() == begins + [len(flat)] * (room + 1 - len(begins))
        assert longest == max(end - begin for begin, end in zip(begins, ends, strict=True))
        assert isinstance(longest, int)


def test_edges_of_segments_for_attention():
    columns = everything(dataset.of(DocumentCache([3, 3, 2])).pack(5))
    edges, longest = segments.cu_seqlens(columns["segment_ids"], 5)
    assert (edges[0], edges[-1], longest) == (0, columns["tokens"].size, 3)


@pytest.mark.parametrize("shards", [[LENGTHS], [LENGTHS[:5], [], [0, 0], LENGTHS[5:]]])
def test_packs_stored_documents(tmp_path, shards):
    write_commit(tmp_path, shards)
    cache = cachelib.open(tmp_path)
    ds = cache.pack(8, seed=1, pad_id=65535)
    columns = everything(ds)
    assert set(columns) == {"tokens", "segment_ids", "positions"}
    assert columns["tokens"].dtype == np.uint16
    packed = columns["tokens"][columns["segment_ids"] != 0]
    assert sorted(packed.tolist()) == list(range(sum(LENGTHS)))
    in_memory = dataset.of(DocumentCache([n for shard in shards for n in shard])).pack(8, seed=1)
    assert runs(columns) == runs(everything(in_memory))
    assert runs(everything(pickle.loads(pickle.dumps(ds)))) == runs(columns)
    with pytest.raises(ValueError, match="'label' is not ragged"):
        cache.pack({"label": 8})


def test_packs_stored_values_of_a_shape(tmp_path):
    write_frames(tmp_path, [2, 5, 1])
    columns = everything(cachelib.open(tmp_path).pack({"frames": 4}, overlong="truncate_left"))
    assert columns["frames"].shape == (2, 4, 3)
    begins = columns["frames"][columns["segment_ids"] != 0][:, 0]
    assert sorted(begins.tolist()) == [0, 1, 3, 4, 5, 6, 7]


def test_fields_stored_alike_come_along(tmp_path):
    write_masks(tmp_path, [3, 4, 2])
    cache = cachelib.open(tmp_path)
    assert cache.alike("mask") == cache.alike("tokens") == ("tokens", "mask")
    for field in ("tokens", "mask"):
        columns = everything(cache.pack({field: 5}))
        assert set(columns) == {"tokens", "mask", "segment_ids", "positions"}
        inside = columns["segment_ids"] != 0
        assert np.array_equal(columns["tokens"][inside] % 2 == 1, columns["mask"][inside])
        assert not columns["mask"][~inside].any()


@settings(max_examples=30)
@given(st.lists(lengths_of_documents, min_size=1, max_size=4), st.data())
def test_spans_are_where_rows_lie(tmp_path_factory, shards, data):
    path = tmp_path_factory.mktemp("spans")
    write_commit(path, shards)
    cache = cachelib.open(path)
    if not len(cache):
        return
    rows = np.array(data.draw(st.lists(st.integers(0, len(cache) - 1), max_size=20)), np.int64)
    starts, lengths = cache.spans("tokens", rows)
    column = cache.take(rows)["tokens"]
    assert isinstance(column, cachelib.Ragged)
    assert np.array_equal(lengths, column.lengths)
    assert np.array_equal(cache.read_spans("tokens", starts, lengths), column.values)
    ends = cache.read_spans("tokens", starts + lengths // 2, lengths - lengths // 2)
    assert ends.tolist() == [v for row in column for v in row[len(row) // 2 :].tolist()]
