"""Measures how far batches of a block shuffle are from those of a full shuffle, on real text.

    python bench/diversity.py CACHE [--length 2048] [--batch 64]

For each setting of block and window, over all batches of an epoch:

    documents  distinct documents in a batch (those in which its rows begin)
    spread     variance of the batch means of a statistic of rows, over what independent rows would
               have: 1 is a full shuffle's, n means that a batch of 64 rows tells as much about the
               text as 64 / n independent ones. The statistic is the share of distinct ids in a row.
    sorted     the same with the row's place in the cache as the statistic: the worst case, text
               that is stored in order of what matters (by source, by date, by length)
    held MiB   decoded rows that the shuffle holds
    reads      ranges read for a batch
"""

import argparse
from pathlib import Path

import numpy as np

import cachelib
from cachelib.dataset import Dataset
from cachelib.order.blocks import BlockOrder
from cachelib.order.permutation import Permutation
from cachelib.order.seeds import derive

SETTINGS = ((64, 8), (64, 32), (32, 64), (64, 64), (32, 256), (64, 256), (64, 1024))


def statistic(windows: Dataset) -> np.ndarray:
    """The share of distinct ids in each row, float64 of shape (rows,)."""
    shares = []
    for first in range(0, len(windows), 2048):
        rows = windows.take(np.arange(first, min(first + 2048, len(windows))))["tokens"]
        rows = np.sort(np.asarray(rows), axis=1)
        shares.append((rows[:, 1:] != rows[:, :-1]).mean(axis=1))
    return np.concatenate(shares)


def spread(values: np.ndarray, batches: np.ndarray) -> float:
    means = values[batches].mean(axis=1)
    return float(means.var() / (values.var() / batches.shape[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    cache = cachelib.open(options.cache)
    windows = cache.windows(options.length)
    rows = len(windows)
    places = np.arange(rows, dtype=np.int64)
    shares = statistic(windows)
    owners = cache.rows_at("tokens", places * options.length)
    print(
        f"{'block':>6}{'window':>8}{'documents':>11}{'spread':>8}{'sorted':>8}"
        f"{'held MiB':>10}{'reads':>7}"
    )
    whole = rows // options.batch * options.batch
    for block, window in (*SETTINGS, (0, 0)):
        if block:
            blocks = windows.blocks(block, window)
            order = BlockOrder(blocks, 0).apply(places)
            held, reads = blocks.working_set / 2**20, blocks.reads(options.batch)
        else:
            order = Permutation(rows, derive("shuffle", 0)).apply(places)
            held, reads = 0.0, float(options.batch)
        batches = order[:whole].reshape(-1, options.batch)
        documents = np.mean([len(np.unique(row)) for row in owners[batches]])
        by_place = spread(places.astype(float), batches)
        print(
            f"{block or 'full':>6}{window or '':>8}{documents:11.1f}"
            f"{spread(shares, batches):8.2f}{by_place:8.2f}{held:10.0f}{reads:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
