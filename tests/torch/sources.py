"""Loaders over small caches, of a form that workers of any start method can make again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as processes

import cachelib
from cachelib.loader import Loader
from tests.reader.stored import write_commit

BATCH = 4
ROWS = 46  # a last batch of two


def write(path: Path) -> str:
    """A cache of two shards; label i is 10 * i, and rows have from no to four tokens."""
    write_commit(path, [[i % 5 for i in range(30)], [3] * (ROWS - 30)])
    return str(path)


def loader(path: str, seed: int = 1, version: int | None = None, **options: Any) -> Loader:
    rows = cachelib.open(path, version).shuffle(seed)
    return rows.loader(**{"batch_size": BATCH, "last": "short", **options})


def expected(path: str, **options: Any) -> list[list[int]]:
    """The labels of each batch, as the loader itself gives them."""
    with loader(path, **options) as batches:
        return [batch["label"].tolist() for batch in batches]


def drawn(batches: Any, steps: int | None = None) -> list[list[int]]:
    """The labels of the next batches."""
    found: list[list[int]] = []
    while steps is None or len(found) < steps:
        try:
            found.append(next(batches)["label"].tolist())
        except StopIteration:
            break
    return found


def together(folder: Path, act: Callable[..., Any], *arguments: Any) -> None:
    """Run act(rank, *arguments) in two processes of one gloo group."""
    store = folder / "store"
    _start(_in_group, (2, str(store), act, arguments), 2)
    store.unlink(missing_ok=True)


def apart(act: Callable[..., Any], *arguments: Any) -> None:
    """Run an act in a process of its own, which has used no cache and may fork."""
    _start(_alone, (act, arguments), 1)


def workers(count: int, method: str = "forkserver") -> dict[str, Any]:
    """Options of a DataLoader."""
    return {"num_workers": count, "multiprocessing_context": method if count else None}


def _start(act: Callable[..., Any], arguments: tuple[Any, ...], count: int) -> None:
    processes.start_processes(act, arguments, nprocs=count, start_method="forkserver")


def _alone(_: int, act: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    act(*arguments)


def _in_group(
    rank: int, world: int, store: str, act: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        act(rank, *arguments)
    finally:
        dist.destroy_process_group()
