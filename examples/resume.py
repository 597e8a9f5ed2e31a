"""Many hosts, and a restart with another number of them: the same rows in the same batches.

    python examples/resume.py CACHE --length 512 --batch 12

Every rank of a job runs a loader with a `dp_rank` of its own; here one process plays them all.
"""

import argparse
import json

import numpy as np

import cachelib
from cachelib.dataset import Dataset
from cachelib.loader import Loader


def ranks(dataset: Dataset, batch: int, world: int, start: dict | None = None) -> list[Loader]:
    """The loader of every rank of a job."""
    return [
        dataset.loader(batch, dp_rank=rank, dp_world=world, start=start) for rank in range(world)
    ]


def steps(loaders: list[Loader], count: int) -> list[np.ndarray]:
    """Whole batches, put together from the parts of the ranks."""
    return [np.concatenate([next(each)["tokens"] for each in loaders]) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=12, help="a multiple of 2, 3 and 4")
    options = parser.parse_args()

    cache = cachelib.open(options.cache)
    dataset = cache.windows(options.length).shuffle(seed=7).repeat()
    job = ranks(dataset, options.batch, world=4)
    steps(job, 5)
    saved = json.dumps(job[0].state_dict())  # the state of every rank is the same
    expected = steps(job, 5)

    state = json.loads(saved)
    print(f"saved after {state['step']} steps on 4 ranks: {len(saved)} bytes")
    # After a restart the cache may have grown; the state names the version that was read.
    again = cachelib.open(options.cache, version=state["version"])
    dataset = again.windows(options.length).shuffle(seed=7).repeat()
    for world in (1, 2, 3):
        resumed = steps(ranks(dataset, options.batch, world, state), 5)
        same = all(np.array_equal(a, b) for a, b in zip(resumed, expected, strict=True))
        print(f"resumed on {world} ranks: {'the same batches' if same else 'OTHER BATCHES'}")
        assert same


if __name__ == "__main__":
    main()
