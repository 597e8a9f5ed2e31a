"""Measures the plan of packs: documents a second, and how full packs are beside one best-fit.

    python bench/pack.py [CACHE] [--documents 2000000] [--lengths 2048 4096 8192] [--repeat 3]

Lengths are log-normal, of median 420 and sigma 1.2, or those of a cache's field `tokens`, which are
then read anew for each plan. The fastest of --repeat turns counts.

    M docs/s   million documents a second planned, from their lengths to the number of packs
    of CPU     the same a second of processor time, in which waiting for others does not count
    pool ms    milliseconds until a pool is packed when the first of its rows is asked for
    pools      pools there are
    filled     part of all packs that tokens fill
    at once    the same for one best-fit decreasing over all documents
    behind     how far the pools are behind that, in points (hundredths)
    others     cores kept busy by anything else during the fastest turn
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from machine import busy_seconds

import cachelib
from cachelib.order.packing import Plan, Rule, plan


@dataclass
class Turn:
    """The fastest run of something."""

    seconds: float
    cpu: float
    others: float


def fastest(repeat: int, run: Callable[[], object]) -> Turn:
    turns = []
    for _ in range(repeat):
        busy, own, began = busy_seconds(), time.process_time(), time.perf_counter()
        run()
        wall, cpu = time.perf_counter() - began, time.process_time() - own
        turns.append(Turn(wall, cpu, max(0.0, (busy_seconds() - busy - cpu) / wall)))
    return min(turns, key=lambda turn: turn.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache", nargs="?")
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--max-segments", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()

    cache = None if options.cache is None else cachelib.open(options.cache)
    if cache is None:
        drawn = np.random.default_rng(0).lognormal(np.log(420), 1.2, options.documents)
        sizes = np.maximum(1, drawn).astype(np.uint32)[:, None]
    else:
        rows = np.arange(len(cache))
        sizes = cache.spans("tokens", rows)[1].astype(np.uint32)[:, None]
    print(f"{len(sizes):,} documents, {int(sizes.sum()):,} tokens")
    print("| length | M docs/s | of CPU | pool ms | pools | filled | at once | behind | others |")
    print("|---|---|---|---|---|---|---|---|---|")
    for length in options.lengths:
        rule = Rule((("tokens", length),), max_segments=options.max_segments)

        def made(rule: Rule = rule, length: int = length) -> Plan:
            if cache is not None:
                return cache.pack(length, max_segments=rule.max_segments).packing
            return plan(sizes, rule.account(sizes.astype(np.int64)), rule, seed=0)

        turn = fastest(options.repeat, made)
        found = made()
        of_pool = sizes[found.documents(0)].astype(np.int64)

        def packed(rule: Rule = rule, sizes: np.ndarray = of_pool) -> object:
            return rule.pack(rule.pieces(sizes).sizes)

        pool = fastest(options.repeat, packed)
        whole = Rule((("tokens", length),))
        at_once = (
            int(sizes.sum()) / length / whole.count(whole.pieces(sizes.astype(np.int64)).sizes)
        )
        filled = found.utilisation["tokens"]
        print(
            f"| {length} | {len(sizes) / turn.seconds / 1e6:.2f} "
            f"| {len(sizes) / turn.cpu / 1e6:.2f} | {pool.seconds * 1e3:.0f} "
            f"| {len(found.packs)} | {filled:.4%} | {at_once:.4%} "
            f"| {100 * (at_once - filled):.3f} | {turn.others:.1f} |"
        )


if __name__ == "__main__":
    main()
