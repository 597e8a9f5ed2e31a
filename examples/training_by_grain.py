"""Training a small language model in JAX, with data by grain: its order, workers and state.

    python examples/training_by_grain.py CACHE --length 512 --batch 8 --steps 20 --save run.npz

Each JAX process reads its share of the windows. Run it again with more steps, and it goes on from
what is saved: weights and the place in the data in one file, so that they are of the same step.
It needs jax, grain and absl-py.
"""

import argparse
import functools
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from absl.flags import argparse_flags

import cachelib
from cachelib.segments import IGNORED


def new_batches(options: argparse.Namespace) -> grain.DataLoaderIterator:
    """Batches of shuffled windows for this process, pass after pass."""
    windows = cachelib.open(options.cache).windows(options.length, targets="shifted")
    sampler = grain.samplers.IndexSampler(
        len(windows),
        shuffle=True,
        seed=options.seed,
        shard_options=grain.sharding.ShardByJaxProcess(drop_remainder=True),
    )
    loader = grain.DataLoader(
        data_source=windows,
        sampler=sampler,
        operations=[grain.transforms.Batch(options.batch, drop_remainder=True)],
        worker_count=options.workers,
    )
    return iter(loader)


def new_weights(options: argparse.Namespace) -> dict[str, jax.Array]:
    inside, outside = jax.random.split(jax.random.key(options.seed))
    shape = (options.vocabulary, options.width)
    return {
        "embedding": jax.random.normal(inside, shape) / options.width**0.5,
        "output": jax.random.normal(outside, shape[::-1]) / options.width**0.5,
    }


def loss_of(weights: dict[str, jax.Array], tokens: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy of the next token, by the token before it alone."""
    scores = jax.nn.log_softmax(weights["embedding"][tokens] @ weights["output"])
    known = labels != IGNORED
    chosen = jnp.take_along_axis(scores, jnp.where(known, labels, 0)[..., None], axis=-1)[..., 0]
    return -jnp.sum(chosen * known) / jnp.sum(known)


@functools.partial(jax.jit, static_argnames="rate")
def train_step(
    weights: dict[str, jax.Array], tokens: jax.Array, labels: jax.Array, rate: float
) -> tuple[dict[str, jax.Array], jax.Array]:
    loss, slopes = jax.value_and_grad(loss_of)(weights, tokens, labels)
    return jax.tree.map(lambda weight, slope: weight - rate * slope, weights, slopes), loss


def save(
    path: Path, weights: dict[str, jax.Array], step: int, batches: grain.DataLoaderIterator
) -> None:
    place = np.frombuffer(batches.get_state(), np.uint8)
    beside = path.with_name(f"{path.name}.new.npz")
    np.savez(beside, step=step, place=place, **weights)
    beside.replace(path)  # a crash leaves the whole old file or the whole new one


def main(options: argparse.Namespace) -> None:
    batches, weights, first = new_batches(options), new_weights(options), 0
    if options.save.exists():
        with np.load(options.save) as saved:
            batches.set_state(saved["place"].tobytes())
            weights = {name: jnp.asarray(saved[name]) for name in weights}
            first = int(saved["step"])
        print(f"going on after step {first}")
    for step in range(first + 1, options.steps + 1):
        batch = next(batches)
        tokens = batch["tokens"].astype(np.int32)  # JAX has no use for uint16
        weights, loss = train_step(weights, tokens, batch["labels"], options.rate)
        if step % 5 == 0 or step == options.steps:
            print(f"step {step}: tokens {tokens.shape}, loss {loss:.4f}")
    save(options.save, weights, max(first, options.steps), batches)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options; grain's workers need the program's flags parsed, which this does as well."""
    parser = argparse_flags.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8, help="windows in each process")
    parser.add_argument("--steps", type=int, default=20, help="in all, earlier runs included")
    parser.add_argument("--save", type=Path, default=Path("run.npz"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes that read")
    parser.add_argument("--vocabulary", type=int, default=8192, help="token ids, from 0 on")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2.0)
    return parser.parse_args(arguments[1:])


if __name__ == "__main__":
    app.run(main, flags_parser=parsed)
