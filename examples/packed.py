"""Fine-tuning on packs: whole documents side by side, attention and labels apart for each.

python examples/packed.py CACHE --length 1024 --batch 4 --steps 5
"""

import argparse

import cachelib
from cachelib import segments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    cache = cachelib.open(options.cache)
    packs = cache.pack(options.length, seed=options.seed, targets="aligned")
    filled = packs.packing.utilisation["tokens"]
    print(f"{len(packs):,} packs, {filled:.2%} filled")
    with packs.repeat().loader(batch_size=options.batch) as loader:
        for batch in loader:
            ids, labels = batch["segment_ids"], batch["labels"]
            # For attention of variable length: edges of the documents of the whole batch.
            edges, longest = segments.cu_seqlens(ids, max_segments=ids.size)
            documents = int(ids.max(axis=1).sum())
            targets = int((labels != segments.IGNORED).sum())
            print(
                f"step {loader.step}: {documents} documents, the longest {longest} tokens, "
                f"{targets:,} targets, edges {edges[:4].tolist()} ..."
            )
            if loader.step == options.steps:
                break


if __name__ == "__main__":
    main()
