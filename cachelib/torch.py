"""Datasets and loaders as PyTorch takes them.

batches = cachelib.torch.Batches(train.loader(8, dp_rank=rank, dp_world=world), num_workers=3)
for batch in batches:
    step(batch["tokens"])                  # int64
batches.state_dict()                       # counts the batches delivered here
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, SupportsIndex

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import cachelib
from cachelib.agreement import State, check_processes, check_same, open_as_first
from cachelib.cache import Cache
from cachelib.dataset import Dataset
from cachelib.errors import ForebayError
from cachelib.loader import Loader, check_state
from cachelib.order.indices import as_integer
from cachelib.ragged import Ragged

WIDENED = ("uint16", "uint32", "int32")
"""Dtypes that become int64, since embeddings and losses take ids and labels of no other."""

_TAKEN = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "collate_fn", "drop_last",
    "in_order",
)  # fmt: skip


class Jagged(NamedTuple):
    """Rows of varying length, as ``torch.nested.nested_tensor_from_jagged(*rows)`` takes them.

    Attributes:
        values: (elements, *shape), the values of all rows back to back.
        offsets: int64 (rows + 1,); row i is ``values[offsets[i]:offsets[i + 1]]``.
    """

    values: torch.Tensor
    offsets: torch.Tensor


def tensor(array: np.ndarray) -> torch.Tensor:
    """An array as a tensor of the same shape: uint16, uint32 and int32 become int64.

    Other dtypes stay, and share the array's memory.
    """
    return torch.from_numpy(array.astype(np.int64) if array.dtype.name in WIDENED else array)


def tensors(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as tensors of shape (rows, *shape), or `Jagged` where lengths vary."""
    return {
        name: Jagged(tensor(column.values), tensor(column.offsets))
        if isinstance(column, Ragged)
        else tensor(column)
        for name, column in columns.items()
    }


def open(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    partial: bool = False,
    **local: Any,
) -> Cache:
    """Open a cache at one version in all processes of ``torch.distributed``: that of rank 0.

    A collective where a process group is initialised, and `cachelib.open` elsewhere. A cache is
    followed by ``cachelib.open(path, follow=True)`` in each process: sealed eras are alike in all.

    Args:
        path, version, partial: as of `cachelib.open`.
        local: ``local``, ``local_format`` and ``local_bytes``, likewise.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        ForebayError: rank 0 could not open it.
    """
    if _world() == 1:
        return cachelib.open(path, version, partial=partial, **local)
    return open_as_first(path, version, partial, dist.get_rank() == 0, _broadcast, **local)


@dataclass(frozen=True)
class MapDataset:
    """A map-style dataset of rows as dicts of tensors; give ``DataLoader`` any sampler.

    Rows of one batch are read together. Lengths that vary need a ``collate_fn`` that pads.
    """

    dataset: Dataset | Cache

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: SupportsIndex) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, torch.Tensor]]:
        """Rows, a tensor for each field; arguments and errors are those of `Dataset.take`."""
        columns = self.dataset.take(indices)
        values = {
            name: [tensor(row) for row in column]
            if isinstance(column, Ragged)
            else list(tensor(column))
            for name, column in columns.items()
        }
        return [{name: rows[i] for name, rows in values.items()} for i in range(len(indices))]


class Batches:
    """The batches of a loader as tensors, read by the workers of a ``DataLoader``.

    Like the loader, an iterator that ``iter`` does not set back: it goes on from where it stands.
    The batches, their order and their parts for the ranks are the loader's; worker j of W reads
    batches j modulo W. The position moves when ``next`` returns, whatever workers have read ahead.
    After an error the same ``next`` may be called again.

    It is no ``DataLoader``, so that nothing shards it again: ``Accelerator.prepare`` gives it back
    as it is, and what takes it apart raises.

    Where ``torch.distributed`` is initialised, the first ``next``, and the one after
    ``load_state_dict``, are collectives over all processes, which must read the same order from
    the same position.

    Args:
        source: a loader; or a function without arguments that makes one, called in each worker,
            which must open the same version everywhere. Workers that are started by "spawn" (as
            here unless told otherwise) or "forkserver" take either, if it can be pickled. Those
            started by "fork" need a function, and no cache used in this process before.
        options: of ``DataLoader``: ``num_workers``, ``prefetch_factor``, ``pin_memory``,
            ``multiprocessing_context``, ``timeout``, ``worker_init_fn``.

    Raises:
        TypeError: the source is something else, such as a dataset or a ``DataLoader``.
        ValueError: an option that would cut or share out batches a second time.
    """

    def __init__(self, source: Loader | Callable[[], Loader], **options: Any) -> None:
        if not (isinstance(source, Loader) or callable(source)):
            raise TypeError(
                "batches are read from a cachelib loader, as of dataset.loader(batch_size), or a "
                f"function that makes one, got {type(source).__name__}"
            )
        taken = sorted(set(options).intersection(_TAKEN))
        if taken:
            raise ValueError(
                f"{taken[0]} does not go with ready batches, which would be cut or shared out "
                "twice: the loader has batch_size, dp_rank and dp_world, and the dataset shuffle()"
            )
        if as_integer("num_workers", options.get("num_workers", 0)):
            options = {"multiprocessing_context": "spawn", **options}
        self._source = source
        self._options = options
        self._state: State | None = source.state_dict() if isinstance(source, Loader) else None
        self._delivered: Iterator[Any] | None = None
        self._agreed = False

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        """This rank's part of the next batch: a dict of tensors or `Jagged`, or the list of those
        of its micro-batches.

        Raises:
            StateMismatch: workers or processes do not read the same order from the same position.
        """
        self._begin()
        assert self._delivered is not None
        try:
            state, batch = next(self._delivered)
            self._check_next(state)
        except StopIteration:
            raise
        except BaseException:
            self.close()  # its worker would leave out the batch and go on
            raise
        self._state = state
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The loader's state after the batches delivered here; the same on all ranks.

        Where the source is a function and nothing was delivered yet, this begins as ``next`` does.
        """
        if self._state is None:
            self._begin()
        assert self._state is not None
        return dict(self._state)

    def load_state_dict(self, state: State) -> None:
        """Go on after the batches that a state counts as delivered; workers start anew.

        Raises:
            StateMismatch: the state is of another order, which is raised by the next ``next`` if
                the source is a function; or it is no state.
        """
        check_state(state)
        self.close()
        if isinstance(self._source, Loader):
            self._source.load_state_dict(state)
            state = self._source.state_dict()
        self._state, self._agreed = state, False

    def close(self) -> None:
        """Stop the workers; the position stays, and the next ``next`` starts them again."""
        self._delivered = None
        if isinstance(self._source, Loader):
            self._source.close()

    @property
    def dataset(self) -> NoReturn:
        """What wraps a ``DataLoader`` anew asks for this: TypeError."""
        raise TypeError(
            "ready batches are shared out among ranks and workers already: use them as they are, "
            "not through a DataLoader, a sampler or a prepared loader"
        )

    def _begin(self) -> None:
        """Start the workers, and see that all read the same, here and in the other processes."""
        if self._delivered is not None:
            return
        started: tuple[list[Any], Iterator[Any]] | Exception
        try:
            started = self._started()
        except Exception as error:
            started = error
        if not self._agreed and _world() > 1:
            _check_processes(started if isinstance(started, Exception) else started[0][0])
        if isinstance(started, Exception):
            raise started
        starts, self._delivered = started
        self._state, self._agreed = starts[0][0], True

    def _started(self) -> tuple[list[Any], Iterator[Any]]:
        """What the workers say before their first batch, and the iterator of the batches."""
        loader = DataLoader(
            _Share(self._source, self._state), batch_size=None, collate_fn=_same, **self._options
        )
        delivered = iter(loader)
        starts = [next(delivered) for _ in range(max(1, loader.num_workers))]
        check_same([state for state, _ in starts], "worker")
        return starts, delivered

    def _check_next(self, state: State) -> None:
        assert self._state is not None
        if state["step"] != self._state["step"] + 1:
            raise ForebayError(
                f"step {self._state['step'] + 1} was to be delivered, but the workers gave step "
                f"{state['step']}"
            )


class _Share(IterableDataset):
    """What one worker reads: first (state, ranks), then its batches as (state after, batch)."""

    def __init__(self, source: Loader | Callable[[], Loader], state: State | None) -> None:
        self.source = source
        self.state = state

    def __iter__(self) -> Iterator[tuple[State, Any]]:
        loader = self.source if isinstance(self.source, Loader) else self.source()
        if self.state is not None:
            loader.load_state_dict(self.state)
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if workers > 1:
            loader.prefetch = 0  # it would read the batches of the other workers
        yield loader.state_dict(), loader.dp_ranks
        loader.skip(worker)
        for batch in loader:
            ready = [tensors(p) for p in batch] if isinstance(batch, list) else tensors(batch)
            yield loader.state_dict(), ready
            loader.skip(workers - 1)


def _same(item: Any) -> Any:
    return item


def _check_processes(mine: tuple[State, Sequence[int]] | Exception) -> None:
    """Compare how the processes begin, unless this one cannot; a collective."""
    everyone: list[Any] = [None] * _world()
    dist.all_gather_object(everyone, str(mine) if isinstance(mine, Exception) else mine)
    if not isinstance(mine, Exception):
        check_processes(everyone)


def _broadcast(said: Any) -> Any:
    told = [said]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def _world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
