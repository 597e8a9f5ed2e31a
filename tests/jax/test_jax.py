"""Global arrays are the loader's batches, and each process reads what its devices hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding

import cachelib
from cachelib import dataset
from cachelib.errors import CacheNotFound, ForebayError, StateMismatch
from cachelib.jax import loader
from cachelib.jax import open as open_together
from cachelib.ragged import Ragged
from tests.jax.jobs import sharding, together
from tests.reader.memory import FailingCache, MemoryCache, SimulatedCache
from tests.reader.stored import write_commit

pytestmark = pytest.mark.jax

LENGTH, BATCH = 8, 6


class NotingCache(MemoryCache):
    """Notes the beginnings of the slices that are read."""

    def __init__(self, tokens: int) -> None:
        super().__init__([tokens])
        self.starts: list[int] = []

    def read_elements(self, field: str, starts: np.ndarray, length: int) -> np.ndarray:
        self.starts += starts.tolist()
        return super().read_elements(field, starts, length)


class FixedCache(MemoryCache):
    """A cache of one column."""

    def __init__(self, name: str, column: Any) -> None:
        super().__init__([1] * len(column))
        self.name, self.column = name, column

    def take(self, indices: np.ndarray, fields: Any = None) -> dict:
        column = self.column
        return {self.name: column.take(indices) if isinstance(column, Ragged) else column[indices]}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A cache of 50 windows; window i begins with 8 * i."""
    return write(tmp_path / "cache")


def write(path: Path) -> str:
    write_commit(path, [[10] * 30, [20] * 5])
    return str(path)


def windows(path: str, version: int | None = None, seed: int = 1) -> Any:
    rows = cachelib.open(path, version).windows(LENGTH, documents=True, targets="aligned")
    return rows.shuffle(seed)


def shards_are_slices(array: jax.Array, whole: np.ndarray, placed: NamedSharding) -> None:
    """Each device of this process holds the slice of the whole that the sharding gives it."""
    assert array.shape == whole.shape
    assert array.sharding == placed
    where = placed.devices_indices_map(whole.shape)
    assert {shard.device for shard in array.addressable_shards} == placed.addressable_devices
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tolist() == whole[where[shard.device]].tolist()


def first(batches: Any, steps: int | None = None) -> list[list[int]]:
    """The first tokens of the rows of the next batches."""
    found: list[list[int]] = []
    while steps is None or len(found) < steps:
        try:
            found.append(np.asarray(next(batches)["tokens"])[:, 0].tolist())
        except StopIteration:
            break
    return found


SPECS = [
    ("data", "seq"), ("data",), (("data", "seq"),), (("seq", "data"),), ("seq",), ("seq", "data"),
    (None, "seq"), (None, ("seq", "data")), (None,), (),
]  # fmt: skip


@pytest.mark.parametrize("last", ["drop", "short", "pad"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_shard_is_its_slice_of_the_batch(path: str, spec: tuple[Any, ...], last: Any) -> None:
    options: dict[str, Any] = {"last": last, "tell": ["row"]}
    if last == "short" and "seq" in str(spec[:1]):
        options["uneven"] = "pad"  # the last batch has two rows
    placed = sharding(*spec)
    flat = sharding(*spec[:1])
    plain = windows(path).loader(16, **{**options, "uneven": "error"})
    batches = loader(windows(path), 16, placed, **options)
    steps = 0
    for batch, whole in zip(batches, plain, strict=True):
        rows = len(whole["row"])
        assert set(batch) == {*whole, *(["weight"] if "uneven" in options else [])}
        for name, column in whole.items():
            padding = len(batch[name]) - rows
            values = np.concatenate([column, np.repeat(column[-1:], padding, 0)])
            shards_are_slices(batch[name], values, placed if column.ndim > 1 else flat)
        if "weight" in batch and last == "short":
            assert np.asarray(batch["weight"]).tolist() == [1] * rows + [0] * padding
        steps += 1
    assert steps == (3 if last == "drop" else 4)
    assert {str(array.dtype) for name, array in batch.items() if name != "weight"} == {"int32"}


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_rows_are_read_once_however_many_devices_hold_them(spec: tuple[Any, ...]) -> None:
    rows = NotingCache(320)
    ds = dataset.of(rows).windows(LENGTH).shuffle(3)
    next(loader(ds, 16, sharding(*spec), prefetch=0))
    assert sorted(rows.starts) == sorted(ds.take(range(16))["tokens"][:, 0].tolist())


def test_micro_batches_are_of_one_step(path: str) -> None:
    placed = sharding("data", "seq")
    batches = loader(windows(path), 12, placed, micro_batches=3)
    pieces, whole = next(batches), windows(path).take(range(12))["tokens"]
    assert batches.state_dict()["step"] == 1
    assert [piece["tokens"].shape for piece in pieces] == [(4, LENGTH)] * 3
    for i, piece in enumerate(pieces):  # of each of the two shards its i-th two rows
        rows = [2 * i, 2 * i + 1, 6 + 2 * i, 6 + 2 * i + 1]
        shards_are_slices(piece["tokens"], whole[rows], placed)


def test_stages_of_batch_sizes_and_epochs_are_the_loaders(path: str) -> None:
    plain = windows(path).repeat(3).loader([(0, 8), (30, 12)], last="short")
    batches = loader(windows(path).repeat(3), [(0, 8), (30, 12)], sharding("data"), last="short")
    for whole in plain:
        assert np.asarray(next(batches)["tokens"]).tolist() == whole["tokens"].tolist()
        assert batches.state_dict()["samples"] == plain.state_dict()["samples"]
    assert first(batches) == []


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_run_is_resumed_anywhere_also_with_another_sharding(path: str, prefetch: int) -> None:
    whole = first(loader(windows(path), BATCH, sharding("data")))
    assert len(whole) == 50 // BATCH
    for steps in (0, 1, 5, len(whole)):
        batches = loader(windows(path), BATCH, sharding("data"), prefetch=prefetch)
        assert first(batches, steps) == whole[:steps]
        state = json.loads(json.dumps(batches.state_dict()))
        assert state["step"] == steps
        again = loader(windows(path), BATCH, sharding(None, "seq"), start=state)
        assert first(again) == whole[steps:]
        batches.load_state_dict({**state, "samples": 2 * BATCH, "step": 2})
        assert first(batches, 2) == whole[2:4]
        batches.close()
        assert first(batches) == whole[4:]
    with pytest.raises(StateMismatch, match=r"shuffle\.seed is 1 in the state, but 2 here"):
        loader(windows(path, seed=2), BATCH, sharding("data")).load_state_dict(state)
    with pytest.warns(UserWarning, match="in another order"):
        loader(windows(path, seed=2), BATCH, sharding("data")).load_state_dict(state, override=True)


def test_an_error_in_reading_loses_no_batch() -> None:
    rows = FailingCache(40, {9})
    batches = loader(dataset.of(rows), 4, sharding("data"))
    found = [np.asarray(next(batches)["label"]).tolist() for _ in range(2)]
    for _ in range(2):
        with pytest.raises(OSError, match="row 9 cannot be read"):
            next(batches)
    rows.bad = set()
    found += [np.asarray(batch["label"]).tolist() for batch in batches]
    assert found == [[*range(i, i + 4)] for i in range(0, 40, 4)]


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ("uint16", "int32"), ("uint32", "int32"), ("int32", "int32"), ("int64", "int32"),
        ("uint64", "uint32"), ("uint8", "uint8"), ("int8", "int8"), ("bool", "bool"),
        ("float16", "float16"), ("float32", "float32"), ("float64", "float32"),
    ],
)  # fmt: skip
def test_dtypes(stored: str, given: str) -> None:
    kind, into = np.dtype(stored), np.dtype(given)
    top = 1 if kind.kind in "bf" else min(np.iinfo(kind).max, np.iinfo(into).max)
    column = np.array([0, top], kind)
    array = next(loader(dataset.of(FixedCache("n", column)), 2, sharding("data")))["n"]
    assert array.dtype == into
    assert array.tolist() == column.tolist()
    with jax.enable_x64(True):
        array = next(loader(dataset.of(FixedCache("n", column)), 2, sharding("data")))["n"]
    assert array.dtype == (into if stored in ("uint16", "uint32") else kind)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (2**31, "uint32", "column 'ids' has 2147483648, which int32 cannot hold$"),
        (2**31, "int64", "has 2147483648, which int32 cannot hold; jax_enable_x64 keeps"),
        (-(2**31) - 1, "int64", "has -2147483649, which int32 cannot hold"),
        (2**32, "uint64", "has 4294967296, which uint32 cannot hold"),
    ],
)
def test_integers_that_do_not_fit_are_refused_and_the_position_stays(
    value: int, kind: str, message: str
) -> None:
    column = np.array([1, 2, 3, value], kind)
    batches = loader(dataset.of(FixedCache("ids", column)), 2, sharding("data"))
    next(batches)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            next(batches)
        assert batches.state_dict()["step"] == 1
    if kind == "int64":
        with jax.enable_x64(True):
            assert next(batches)["ids"].tolist() == [3, value]


def test_what_does_not_divide_is_refused_before_the_first_step(path: str) -> None:
    rows = windows(path)
    with pytest.raises(ValueError, match="batch_size 6 does not divide among 4 ranks") as raised:
        loader(rows, 6, sharding("seq"))
    assert "4 shards of the batch axis" in raised.value.__notes__[0]
    with pytest.raises(ValueError, match="batch_size 6 does not divide among 4 ranks"):
        loader(rows, [(0, 8), (16, 6)], sharding("seq"))
    with pytest.raises(ValueError, match="2 samples, which do not divide among 8 ranks"):
        loader(rows, 16, sharding(("data", "seq")), last="short")
    odd = cachelib.open(path).windows(6)
    with pytest.raises(ValueError, match=r"'tokens' of shape \('rows', 6\) does not divide as"):
        loader(odd, 4, sharding("data", "seq"))
    assert next(loader(odd, 4, sharding("data")))["tokens"].shape == (4, 6)


def test_rows_of_different_lengths_are_refused(path: str) -> None:
    cache = cachelib.open(path)
    for rows in (cache.windows(LENGTH, tail="short"), cache.dataset(), cache):
        with pytest.raises(ValueError, match=r"'tokens' has rows of different lengths"):
            loader(rows, 4, sharding("data"))
    labels = dataset.of(cache, fields=["label"])
    assert next(loader(labels, 4, sharding("data", "seq")))["label"].tolist() == [0, 10, 20, 30]
    ragged = Ragged.from_lengths(np.arange(3), np.array([1, 2]))
    both = cachelib.then([(4, labels), (None, dataset.of(FixedCache("n", ragged)))])
    batches = loader(both, 2, sharding("data"))
    next(batches), next(batches)
    with pytest.raises(ValueError, match="'n' has rows of different lengths"):
        next(batches)


def test_packs_have_columns_of_frames_beside_tokens() -> None:
    values = np.arange(48, dtype=np.float32).reshape(2, 8, 3)
    rows = dataset.of(FixedCache("frames", values))
    placed = sharding("data", "seq")
    shards_are_slices(next(loader(rows, 2, placed))["frames"], values, placed)


def test_shardings_of_another_kind_and_ranks_are_refused(path: str) -> None:
    one: Any = SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(TypeError, match=r"must be a jax\.sharding\.NamedSharding.*got Single"):
        loader(windows(path), 4, one)
    with pytest.raises(ValueError, match="dp_world is not given here"):
        loader(windows(path), 4, sharding("data"), dp_world=2)


def test_memory_is_where_the_sharding_says() -> None:
    placed = sharding("data", "seq").with_memory_kind("unpinned_host")
    batch = next(loader(dataset.of(SimulatedCache(8)), 4, placed))
    assert batch["label"].sharding.memory_kind == "unpinned_host"


def test_importing_cachelib_does_not_import_jax() -> None:
    script = "import sys, cachelib.loader, cachelib.dataset; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def share(process: int, path: str, spec: tuple[Any, ...], turned: bool) -> Any:
    """Deliver a run of two parts; check this process's shards, and note what it read."""
    version = open_together(path).version
    shape = (4, 2) if turned else (2, 4)
    placed = sharding(*spec, shape=shape)
    if turned:  # rows of both processes alternate
        placed = NamedSharding(
            jax.sharding.Mesh(placed.mesh.devices[[0, 2, 1, 3]], placed.mesh.axis_names),
            placed.spec,
        )
    plain = windows(path, version).loader(16)
    states: list[Any] = []
    read: list[list[int]] = []
    start: Any = None
    for steps in (2, None):
        batches = loader(windows(path, version), 16, placed, start=start)
        for step, batch in enumerate(batches, 1):
            whole = next(plain)["tokens"]
            shards_are_slices(batch["tokens"], whole, placed)
            shards = batch["tokens"].addressable_shards
            read.append(sorted({int(row) for s in shards for row in np.asarray(s.data)[:, 0]}))
            if step == steps:
                break
        start = batches.state_dict()
        states.append(start)
    assert batches.loader.remaining == 0
    rows = NotingCache(320)
    ds = dataset.of(rows).windows(LENGTH)
    next(loader(ds, 16, placed, prefetch=0))
    return read, states, sorted(start // LENGTH for start in rows.starts)


@pytest.mark.parametrize(
    ("spec", "turned", "rows"),
    [
        (("data",), False, [[*range(8)], [*range(8, 16)]]),
        (("data",), True, [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]),
        (("seq",), False, [[*range(16)], [*range(16)]]),
        ((), False, [[*range(16)], [*range(16)]]),
    ],
    ids=["in order", "alternating", "data replicated", "all replicated"],
)
def test_two_processes_read_what_their_devices_hold(
    path: str, spec: tuple[Any, ...], turned: bool, rows: list[list[int]]
) -> None:
    (left, states, left_read), (right, others, right_read) = together(share, path, spec, turned)
    assert [left_read, right_read] == rows
    assert states == others
    assert [state["step"] for state in states] == [2, 3]
    whole = first(windows(path).loader(16))
    assert len(whole) == len(left) == len(right) == 3
    if rows[0] != rows[1]:
        assert [sorted(a + b) for a, b in zip(left, right, strict=True)] == [*map(sorted, whole)]


def disagree(process: int, path: str) -> None:
    placed = sharding("data", "seq")

    def begin(match: str, rows: Any, **options: Any) -> None:
        batches = loader(rows, **{"batch_size": 4, "sharding": placed, **options})
        for _ in range(2):
            with pytest.raises(StateMismatch, match=match):
                next(batches)
            assert batches.loader.step == options.get("start", 0)

    seeds = r"shuffle\.seed is 0 in process 0 and 1 in process 1"
    begin(seeds, windows(path, seed=process))
    begin(
        "batch_size is 4 in process 0 and 8 in process 1", windows(path), batch_size=4 + 4 * process
    )
    begin("samples is 0 in process 0 and 4 in process 1", windows(path), start=process)
    batches = loader(windows(path), 4, placed)
    next(batches)
    batches.load_state_dict(loader(windows(path), 4, placed, start=process).state_dict())
    with pytest.raises(StateMismatch, match="samples is 0 in process 0 and 4 in process 1"):
        next(batches)
    with pytest.raises(ForebayError if process else CacheNotFound, match="7"):
        open_together(path, 7)
    alone = jax.sharding.Mesh(np.array(jax.local_devices()), ("data",))
    with pytest.raises(ValueError, match=f"devices of process {process} only, and the job has 2"):
        loader(windows(path), 4, NamedSharding(alone, jax.sharding.PartitionSpec("data")))
    # The cache grows between two processes that open it, each by itself.
    if process == 0:
        old = cachelib.open(path)
        write_commit(path, [[8]])
    cache = open_together(path)
    assert cache.version == 1
    mine = old if process == 0 else cache
    begin("version is 0 in process 0 and 1 in process 1", mine.windows(LENGTH))
    assert next(loader(cache.windows(LENGTH), 4, placed))["tokens"].shape == (4, LENGTH)


def test_processes_that_differ_are_refused_before_the_first_step(path: str) -> None:
    together(disagree, path)
