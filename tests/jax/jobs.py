"""Jobs of two processes, and shardings over their devices."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TOGETHER = multiprocessing.get_context("spawn")


def sharding(*spec: Any, shape: tuple[int, int] = (2, 4)) -> NamedSharding:
    """Over a mesh of all eight devices, with axes ``data`` and ``seq``."""
    mesh = Mesh(np.array(jax.devices()).reshape(shape), ("data", "seq"))
    return NamedSharding(mesh, PartitionSpec(*spec))


def together(act: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What act(process, *arguments) gives in each of two processes of one job, with four devices.

    If one fails, the other is ended.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    ends, processes = [], []
    for number in range(2):
        mine, theirs = TOGETHER.Pipe(duplex=False)
        work = (theirs, coordinator, number, act, arguments)
        processes.append(TOGETHER.Process(target=_in_job, args=work))
        processes[-1].start()
        theirs.close()
        ends.append(mine)
    try:
        found: dict[int, Any] = {}
        while len(found) < 2:
            for end in wait([end for i, end in enumerate(ends) if i not in found]):
                assert isinstance(end, Connection)
                error, result = end.recv()
                assert error is None, error
                found[ends.index(end)] = result
        return [found[0], found[1]]
    finally:
        for process in processes:
            process.join(20 if len(found) == 2 else 0)
            process.kill()


def _in_job(
    end: Connection,
    coordinator: str,
    number: int,
    act: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    try:
        jax.distributed.initialize(coordinator, num_processes=2, process_id=number)
        end.send((None, act(number, *arguments)))
    except BaseException:
        end.send((f"process {number}: {traceback.format_exc()}", None))
        raise
    jax.distributed.shutdown()
