"""A three-way mixture whose weights change on the way; the counts are exact.

python examples/mixture.py WEB CODE BOOKS --length 512 --batch 64 --steps 30
"""

import argparse

import cachelib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("caches", nargs=3, metavar="CACHE", help="web, code and books")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    web, code, books = (
        cachelib.open(path).windows(options.length).shuffle(seed=0).repeat()
        for path in options.caches
    )
    half = options.steps // 2 * options.batch
    mixed = cachelib.mix(
        {"web": web, "code": code, "books": books},
        stages=[
            (0, {"web": 0.7, "code": 0.3}),
            (half, {"web": 0.2, "code": 0.3, "books": 0.5}),  # books enter late
        ],
        seed=0,
        block=options.batch,
    )
    with mixed.loader(batch_size=options.batch) as loader:
        for _ in loader:
            if loader.step % 5 == 0:
                print(f"step {loader.step}: {mixed.counts(loader.samples)}")
            if loader.step == options.steps:
                break
        (first, *_) = loader.explain(0, 0)
        print(f"row 0 of step 0 began in {first.source} at {first.position}, by {first.through}")


if __name__ == "__main__":
    main()
