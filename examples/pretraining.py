"""Pre-training on windows: shuffled epochs, labels, a state that a training step would save.

python examples/pretraining.py CACHE --length 512 --batch 8 --steps 20
"""

import argparse
import json

import cachelib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    cache = cachelib.open(options.cache)
    windows = cache.windows(options.length, documents=True, targets="shifted")
    epochs = windows.shuffle(seed=options.seed).repeat()
    with epochs.loader(batch_size=options.batch) as loader:
        for batch in loader:
            targets = int((batch["labels"] != -100).sum())  # a training step goes here
            print(f"step {loader.step}: {batch['tokens'].shape} tokens, {targets:,} targets")
            if loader.step == options.steps:
                break
        print(f"waited {loader.stalled:.3f} s for reading")
        print(json.dumps(loader.state_dict()))


if __name__ == "__main__":
    main()
