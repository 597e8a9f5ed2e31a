"""Loaders of global arrays, as JAX takes them.

    sharding = NamedSharding(jax.make_mesh((2, 4), ("data", "seq")), PartitionSpec("data", "seq"))
    batches = cachelib.jax.loader(train, 8, sharding)
    for batch in batches:
        step(batch["tokens"])              # int32, one array over all processes
    batches.state_dict()

The shards that the batch axis is cut into are the loader's data-parallel ranks: a process reads
those that its devices hold.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec

from cachelib.agreement import State, check_processes, open_as_first
from cachelib.cache import Cache
from cachelib.dataset import Dataset
from cachelib.following import Followed
from cachelib.loader import BatchSize, Loader
from cachelib.nodes.base import Columns, layout
from cachelib.ragged import Ragged

IDS = ("uint16", "uint32")
"""Dtypes that become int32, as ids are in JAX."""


def open(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    partial: bool = False,
    **local: Any,
) -> Cache:
    """Open a cache at one version in all processes of the job: that of process 0.

    A collective over all processes, and `cachelib.open` where there is one. A cache is followed by
    ``cachelib.open(path, follow=True)`` in each process: sealed eras are the same in all.

    Args:
        path, version, partial: as of `cachelib.open`.
        local: ``local``, ``local_format`` and ``local_bytes``, likewise.

    Raises:
        CacheNotFound: there is no cache, or no such version.
        ForebayError: process 0 could not open it.
    """
    first = jax.process_index() == 0
    return open_as_first(path, version, partial, first, lambda told: _gathered(told)[0], **local)


def loader(
    dataset: Dataset | Cache | Followed,
    batch_size: BatchSize,
    sharding: NamedSharding,
    **options: Any,
) -> Batches:
    """Batches of a dataset as global arrays, of which each process reads what its devices hold.

    Args:
        dataset: rows of one shape, such as windows or packs.
        batch_size: rows of the global batch, or stages of sizes, as of `cachelib.loader.Loader`; a
            multiple of the number of shards of the batch axis, and of micro-batches.
        sharding: of the columns. The first axis of its spec is the batch; it may lie on one axis of
            the mesh, on several or on none. Columns of fewer dimensions than the spec has, such as
            ``weight``, lie as the batch axis does and are whole along others.
        options: the others of `Loader`, but ``dp_rank`` and ``dp_world``, which the sharding gives:
            the shards of the batch axis are the ranks.

    Raises:
        TypeError: the sharding is of another kind.
        ValueError: batches or columns do not divide among the shards; a column has rows of
            different lengths; a process of the job has no device in the mesh; or as of `Loader`.
        StateMismatch: ``start`` is a state of another order.
    """
    if not isinstance(sharding, NamedSharding):
        raise TypeError(
            "sharding must be a jax.sharding.NamedSharding, whose spec says which mesh axes the "
            f"batch lies on, got {type(sharding).__name__}"
        )
    taken = sorted({"dp_rank", "dp_world"}.intersection(options))
    if taken:
        raise ValueError(
            f"{taken[0]} is not given here: the shards of the batch axis are the ranks"
        )
    there = sorted({device.process_index for device in sharding.device_set})
    if len(there) < jax.process_count():
        raise ValueError(
            f"the mesh of the sharding has devices of process {', '.join(map(str, there))} only, "
            f"and the job has {jax.process_count()} processes, which read each batch together: "
            "make it of jax.devices()"
        )
    shards = _batch_shards(sharding)
    rows = dataset if isinstance(dataset, Dataset) else dataset.dataset()
    for name, (kind, _, shape) in layout(rows.node).items():
        if kind == "ragged":
            raise _ragged(name)
        _placed(sharding, name, shape)
    try:
        return Batches(
            rows.loader(
                batch_size, dp_rank=_ranks_here(sharding, shards), dp_world=shards, **options
            ),
            sharding,
        )
    except ValueError as error:
        error.add_note(
            f"The ranks are the {shards} shards of the batch axis, in {sharding.spec} over "
            f"{dict(sharding.mesh.shape)}."
        )
        raise


class Batches:
    """The batches of a loader as global arrays; `loader` makes one.

    Like the loader, an iterator that ``iter`` does not set back: it goes on from where it stands.
    One step is one optimizer step. The position moves when ``next`` returns, whatever was read
    ahead. After an error in reading the same ``next`` may be called again. For one thread.

    In a job of several processes the first ``next``, and the one after ``load_state_dict``, are
    collectives over all of them, which must read the same order from the same position.

    Attributes:
        loader: what reads here: ``step``, ``remaining``, ``stalled``, ``explain``.
        sharding: of columns with as many dimensions as its spec has, or more.
    """

    def __init__(self, loader: Loader, sharding: NamedSharding) -> None:
        self.loader = loader
        self.sharding = sharding
        self._agreed = False

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        """The next batch: a dict of arrays of shape (rows, *shape), or the list of those of its
        micro-batches, each of which has its rows from all shards.

        uint16 and uint32 become int32. Other dtypes are as JAX has them: without
        ``jax_enable_x64``, 64 bits become 32.

        Raises:
            StateMismatch: processes do not read the same order from the same position.
            ValueError: an integer does not fit into its dtype in JAX.
        """
        state = self.loader.state_dict()
        if not self._agreed:
            check_processes(_gathered((state, self.loader.dp_ranks)))
            self._agreed = True
        batch = next(self.loader)
        try:
            return [*map(self._arrays, batch)] if isinstance(batch, list) else self._arrays(batch)
        except BaseException:
            self.loader.load_state_dict(state)  # it was not delivered
            raise

    def state_dict(self) -> dict[str, Any]:
        """The loader's state after the batches delivered here; the same in all processes."""
        return self.loader.state_dict()

    def load_state_dict(self, state: State, **options: Any) -> None:
        """Go on after the batches that a state counts as delivered; see `Loader.load_state_dict`.

        Raises:
            StateMismatch: the state is of another order.
        """
        self.loader.load_state_dict(state, **options)
        self._agreed = False

    def close(self) -> None:
        """Stop reading ahead; the position stays, and the next ``next`` goes on."""
        self.loader.close()

    def _arrays(self, columns: Columns) -> dict[str, jax.Array]:
        return {name: self._array(name, column) for name, column in columns.items()}

    def _array(self, name: str, column: np.ndarray | Ragged) -> jax.Array:
        """A global array of the rows of this process, which lie one rank after another."""
        if isinstance(column, Ragged):
            raise _ragged(name)
        values = _as_in_jax(name, column)
        ranks = self.loader.dp_ranks
        rows = len(values) // len(ranks)
        place = {rank * rows: i * rows for i, rank in enumerate(ranks)}

        def shard(index: tuple[slice, ...]) -> np.ndarray:
            start = place[index[0].start or 0]
            return values[(slice(start, start + rows), *index[1:])]

        shape = (rows * self.loader.batches.world, *values.shape[1:])
        return jax.make_array_from_callback(shape, _placed(self.sharding, name, shape[1:]), shard)


def _batch_shards(sharding: NamedSharding) -> int:
    """How many shards the batch axis is cut into."""
    axes = sharding.spec[0] if len(sharding.spec) else None
    names = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
    return math.prod(sharding.mesh.shape[name] for name in names)


def _ranks_here(sharding: NamedSharding, shards: int) -> list[int]:
    """The shards of the batch axis that devices of this process hold."""
    held = _along(sharding, 1).addressable_devices_indices_map((shards,))
    return sorted({batch.start or 0 for (batch,) in held.values()})


def _along(sharding: NamedSharding, axes: int) -> NamedSharding:
    """The sharding along the first axes only."""
    spec = PartitionSpec(*sharding.spec[:axes])
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def _placed(sharding: NamedSharding, name: str, shape: tuple[int, ...]) -> NamedSharding:
    """The sharding of a column whose values have a shape.

    Raises:
        ValueError: an axis does not divide.
    """
    if len(shape) + 1 < len(sharding.spec):
        return _along(sharding, 1)
    try:
        sharding.shard_shape((_batch_shards(sharding), *shape))
    except ValueError as error:
        raise ValueError(
            f"column {name!r} of shape {('rows', *shape)} does not divide as {sharding.spec} over "
            f"{dict(sharding.mesh.shape)}: choose another length, or shard the batch axis only"
        ) from error
    return sharding


def _as_in_jax(name: str, column: np.ndarray) -> np.ndarray:
    """A column in the dtype that its array will have.

    Raises:
        ValueError: an integer does not fit into it.
    """
    kept = column.dtype.name not in IDS
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(column.dtype) if kept else np.int32)
    if dtype.kind in "iu" and not np.can_cast(column.dtype, dtype) and column.size:
        limits = np.iinfo(dtype)
        for value in (column.min(), column.max()):
            if not limits.min <= value <= limits.max:
                more = "; jax_enable_x64 keeps 64 bits" if kept else ""
                raise ValueError(f"column {name!r} has {value}, which {dtype} cannot hold{more}")
    return column.astype(dtype, copy=False)


def _ragged(name: str) -> ValueError:
    return ValueError(
        f"column {name!r} has rows of different lengths, which no jax.Array holds: use "
        "windows(length) with tail='drop', pack(length), or dataset.of(cache, fields=[...])"
    )


def _gathered(said: Any) -> list[Any]:
    """What each process says, as JSON, in the order of the processes; a collective over all."""
    text = np.frombuffer(json.dumps(said).encode(), np.uint8)
    if jax.process_count() == 1:
        return [said]
    lengths = process_allgather(np.array([len(text)], np.int32))[:, 0]
    texts = process_allgather(np.pad(text, (0, lengths.max() - len(text))))
    return [json.loads(bytes(each[:length])) for each, length in zip(texts, lengths, strict=True)]
