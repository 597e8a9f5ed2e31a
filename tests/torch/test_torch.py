"""Under PyTorch's DataLoader every batch comes once, in order, and states bring them back."""

from __future__ import annotations

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader, DistributedSampler

import cachelib
from cachelib import dataset
from cachelib.errors import CacheNotFound, ForebayError, StateMismatch
from cachelib.ragged import Ragged
from cachelib.torch import Batches, Jagged, MapDataset, tensors
from cachelib.torch import open as open_together
from tests.reader.memory import FailingCache, MemoryCache
from tests.reader.stored import write_commit
from tests.torch import sources
from tests.torch.sources import BATCH, ROWS, apart, drawn, expected, together

pytestmark = pytest.mark.torch

WORKERS = [0, 1, 3]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return sources.write(tmp_path / "cache")


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ("uint16", torch.int64), ("uint32", torch.int64), ("int32", torch.int64),
        ("int64", torch.int64), ("uint8", torch.uint8), ("int8", torch.int8), ("bool", torch.bool),
        ("float16", torch.float16), ("float32", torch.float32), ("uint64", torch.uint64),
    ],
)  # fmt: skip
def test_dtypes(stored: str, given: torch.dtype) -> None:
    kind = np.dtype(stored)
    top = 1 if kind.kind in "bf" else np.iinfo(kind).max
    column = np.array([[0, top]], kind)
    ragged = Ragged.from_lengths(column[0], np.array([0, 2]))
    found = tensors({"flat": column, "ragged": ragged})
    assert found["flat"].dtype == found["ragged"].values.dtype == given
    assert found["flat"].tolist() == column.tolist()
    assert found["ragged"].offsets.tolist() == [0, 0, 2]


def test_ragged_columns_are_what_nested_tensors_are_made_of() -> None:
    batch = next(Batches(dataset.of(MemoryCache([2, 0, 3])).loader(3)))
    assert isinstance(batch["tokens"], Jagged)
    nested = torch.nested.nested_tensor_from_jagged(*batch["tokens"])
    assert [row.tolist() for row in nested.unbind()] == [[0, 1], [], [2, 3, 4]]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("last", ["drop", "short", "pad"])
def test_every_batch_once_and_in_order(path: str, workers: int, last: str) -> None:
    batches = Batches(sources.loader(path, last=last), **sources.workers(workers))
    whole = expected(path, last=last)
    assert drawn(batches) == whole
    assert len(whole) == (ROWS // BATCH if last == "drop" else math.ceil(ROWS / BATCH))
    with pytest.raises(StopIteration):
        next(batches)
    assert batches.state_dict()["step"] == len(whole)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_state_counts_what_was_delivered(path: str, workers: int) -> None:
    whole = expected(path)
    for steps in (0, 1, 5, len(whole)):
        batches = Batches(sources.loader(path), **sources.workers(workers))
        assert drawn(batches, steps) == whole[:steps]
        plain = sources.loader(path)
        for _ in range(steps):
            next(plain)
        state = json.loads(json.dumps(batches.state_dict()))
        assert state == plain.state_dict()
        resumed = Batches(sources.loader(path, start=state), **sources.workers(workers))
        assert drawn(resumed) == whole[steps:]
    batches.load_state_dict({**state, "samples": 2 * BATCH, "step": 2})
    assert drawn(batches, 2) == whole[2:4]
    batches.close()
    assert drawn(batches) == whole[4:]


def test_workers_follow_stages_of_batch_sizes_and_epochs(path: str) -> None:
    def made() -> Any:
        return cachelib.open(path).shuffle(1).repeat(3).loader([(0, 4), (30, 6)], last="short")

    plain = made()
    batches = Batches(made(), **sources.workers(3))
    for batch in plain:
        assert next(batches)["label"].tolist() == batch["label"].tolist()
        assert batches.state_dict() == plain.state_dict()
    assert drawn(batches) == []


def test_micro_batches_are_lists(path: str) -> None:
    pieces = next(Batches(sources.loader(path, micro_batches=2)))
    assert [piece["label"].tolist() for piece in pieces] == [
        expected(path)[0][:2],
        expected(path)[0][2:],
    ]


def forked(path: str, workers: int) -> None:
    options = sources.workers(workers, "fork")
    batches = Batches(partial(sources.loader, path), **options)
    assert batches.state_dict()["step"] == 0
    found = drawn(batches, 5)
    state = batches.state_dict()
    batches.close()
    found += drawn(batches, 2)  # workers are forked a second time
    resumed = Batches(partial(sources.loader, path), **options)
    resumed.load_state_dict(state)
    rest = drawn(resumed)
    whole = expected(path)  # from here on this process has used a cache
    assert found == whole[:7]
    assert rest == whole[5:]
    for source in (partial(sources.loader, path), sources.loader(path)):
        with pytest.raises(ForebayError, match="forked from process"):
            next(Batches(source, **options))


@pytest.mark.parametrize("workers", [1, 3])
def test_forked_workers_open_the_cache_themselves(path: str, workers: int) -> None:
    apart(forked, path, workers)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_are_spawned_unless_told_otherwise(path: str, workers: int) -> None:
    opened = Batches(sources.loader(path), num_workers=workers)
    assert drawn(opened) == expected(path)


def test_functions_are_called_in_workers(path: str) -> None:
    batches = Batches(partial(sources.loader, path), **sources.workers(2))
    assert drawn(batches) == expected(path)


def growing(path: str) -> Any:
    """Opens another version each time."""
    write_commit(path, [[1] * 40])
    return cachelib.open(path).loader(BATCH)


def test_workers_that_open_different_versions_are_refused(path: str) -> None:
    with pytest.raises(StateMismatch, match=r"version is 1 in worker 0 and 2 in worker 1"):
        next(Batches(OneAfterAnother(path), **sources.workers(2)))


class OneAfterAnother:
    """Worker 0 opens the newest version before worker 1 adds one and opens that."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        while cachelib.open(self.path).version < info.id:
            pass
        return growing(self.path)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_reading_loses_no_batch(workers: int, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    rows: Any = Mendable(40, {9}, mended)
    source = dataset.of(rows).loader(4)
    batches = Batches(source, **sources.workers(workers))
    assert drawn(batches, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(2):
        with pytest.raises(OSError, match="row 9 cannot be read"):
            next(batches)
        assert batches.state_dict()["step"] == 2
    mended.touch()
    assert drawn(batches) == [[*range(i, i + 4)] for i in range(8, 40, 4)]


class Mendable(FailingCache):
    """Bad rows are good once a file is there, whatever process looks."""

    def __init__(self, rows: int, bad: set[int], mended: Path) -> None:
        super().__init__(rows, bad)
        self.mended = mended

    def take(self, indices: np.ndarray, fields: Any = None) -> dict:
        if self.mended.exists():
            self.bad = set()
        return super().take(indices, fields)


def test_a_worker_that_dies_is_an_error_and_the_batch_comes_again(tmp_path: Path) -> None:
    rows: Any = Deadly(40, {9}, tmp_path / "died")
    source = dataset.of(rows).loader(4)
    batches = Batches(source, **sources.workers(2))
    found: list[list[int]] = []
    deaths = 0
    while len(found) < 10:
        try:
            found.append(next(batches)["label"].tolist())
        except RuntimeError as error:
            assert "exited unexpectedly" in str(error)  # noqa: PT017
            deaths += 1
    assert found == [[*range(i, i + 4)] for i in range(0, 40, 4)]
    assert deaths == 1


class Deadly(Mendable):
    """The process that reads a bad row is gone at once; the next one reads it."""

    def take(self, indices: np.ndarray, fields: Any = None) -> dict:
        if self.bad.intersection(indices.tolist()) and not self.mended.exists():
            self.mended.touch()
            os._exit(1)
        return super().take(indices, fields)


def test_a_state_of_another_order_is_refused(path: str) -> None:
    state = sources.loader(path, seed=2).state_dict()
    with pytest.raises(StateMismatch, match=r"shuffle\.seed is 2 in the state, but 1 here"):
        Batches(sources.loader(path)).load_state_dict(state)
    batches = Batches(partial(sources.loader, path), **sources.workers(1))
    batches.load_state_dict(state)
    with pytest.raises(StateMismatch, match=r"shuffle\.seed is 2 in the state, but 1 here"):
        next(batches)


def test_what_would_shard_twice_is_refused(path: str) -> None:
    batches = Batches(sources.loader(path))
    rows = MapDataset(cachelib.open(path))
    sampler = DistributedSampler(rows, num_replicas=2, rank=0)
    for option in (
        {"sampler": sampler}, {"batch_sampler": [[0]]}, {"batch_size": 2}, {"shuffle": True},
        {"in_order": False},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{next(iter(option))} does not go with ready"):
            Batches(sources.loader(path), **option)
    with pytest.raises(TypeError):
        DistributedSampler(batches, num_replicas=2, rank=0)
    with pytest.raises(TypeError):
        next(iter(DataLoader(batches)))
    prepared = Accelerator(cpu=True).prepare(DataLoader(rows))
    wrong: list[Any] = [prepared, DataLoader(rows), rows, batches]
    for source in wrong:
        with pytest.raises(TypeError, match="read from a cachelib loader"):
            Batches(source)
    with pytest.raises(TypeError, match="num_workers must be an integer, got True"):
        Batches(sources.loader(path), num_workers=True)
    with pytest.raises(StateMismatch, match="state is a mapping, found NoneType"):
        Batches(partial(sources.loader, path)).load_state_dict(None)  # type: ignore[arg-type]
    for wrap in (partial(prepare_data_loader, num_processes=2, process_index=0),
                 partial(skip_first_batches, num_batches=1)):  # fmt: skip
        with pytest.raises(TypeError, match="shared out among ranks and workers already"):
            wrap(batches)
    assert Accelerator(cpu=True).prepare(batches) is batches


@pytest.mark.parametrize("workers", WORKERS)
def test_rows_of_a_map_style_dataset_are_read_by_the_batch(path: str, workers: int) -> None:
    ds = cachelib.open(path).windows(8).shuffle(1)
    loader: Any = DataLoader(
        MapDataset(ds),
        batch_size=3,
        **sources.workers(workers),
    )
    found = [batch["tokens"] for batch in loader]
    assert torch.cat(found).tolist() == ds.take(range(len(ds)))["tokens"].tolist()
    assert found[0].dtype == torch.int64
    memory = MemoryCache([2, 0, 3])
    rows = MapDataset(dataset.of(memory)).__getitems__([2, 1])
    assert [row["tokens"].tolist() for row in rows] == [[2, 3, 4], []]
    assert memory.reads == 1
    assert MapDataset(dataset.of(memory))[-1]["label"].item() == 20


def test_samplers_share_out_a_map_style_dataset(path: str) -> None:
    rows = MapDataset(cachelib.open(path))
    found = [
        row for rank in range(2) for row in DistributedSampler(rows, num_replicas=2, rank=rank)
    ]
    assert sorted(found) == [*range(ROWS)]


def share(rank: int, path: str, method: str, workers: int, out: str) -> None:
    """Deliver this rank's part in two runs, the second from the first's state by one worker."""
    version = None if method == "fork" else open_together(path).version
    source = partial(sources.loader, path, version=version, dp_rank=rank, dp_world=2, last="drop")
    batches = Batches(source, **sources.workers(workers, method))
    found = drawn(batches, 3)
    states = [batches.state_dict()]
    batches.close()
    batches = Batches(source, **sources.workers(min(workers, 1), method))
    batches.load_state_dict(states[0])
    found += drawn(batches)
    states.append(batches.state_dict())
    Path(out, f"{rank}.json").write_text(json.dumps([found, states]))


@pytest.mark.parametrize(
    ("method", "workers"), [("spawn", 0), ("spawn", 3), ("fork", 1), ("fork", 3)]
)
def test_two_processes_hold_disjoint_and_complete_parts(
    path: str, tmp_path: Path, method: str, workers: int
) -> None:
    together(tmp_path, share, path, method, workers, str(tmp_path))
    parts, states = zip(
        *(json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)), strict=True
    )
    whole = expected(path, last="drop")
    assert [a + b for a, b in zip(*parts, strict=True)] == whole
    assert states[0] == states[1]
    assert [state["step"] for state in states[0]] == [3, len(whole)]


def disagree(rank: int, path: str) -> None:
    def begin(match: str, kind: type[Exception] = StateMismatch, **options: Any) -> None:
        with pytest.raises(kind, match=match):
            next(Batches(sources.loader(path, **options)))

    begin(r"shuffle\.seed is 0 in process 0 and 1 in process 1", seed=rank)
    begin("batch_size is 4 in process 0 and 8 in process 1", batch_size=4 + 4 * rank)
    begin("samples is 0 in process 0 and 4 in process 1", start=rank)
    begin(r"dp_rank 1 of 2: the processes have dp_rank \[0\], \[0\]", dp_rank=0, dp_world=2)
    bad = Batches(partial(sources.loader, path, version=7 if rank == 0 else None))
    with pytest.raises(ForebayError if rank else CacheNotFound, match="7"):
        next(bad)
    with pytest.raises(ForebayError if rank else CacheNotFound, match="7"):
        open_together(path, 7)
    if rank == 0:
        write_commit(path, [[1]])
    assert open_together(path).version == 1  # process 1 cannot have known
    assert drawn(Batches(sources.loader(path, version=0)), 1) == expected(path, version=0)[:1]


def test_processes_that_differ_are_refused_before_the_first_step(path: str, tmp_path: Path) -> None:
    together(tmp_path, disagree, path)
