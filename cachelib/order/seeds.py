"""Keys from seeds: everything random in an order is a hash of what the user named."""

from __future__ import annotations

from hashlib import blake2b

from cachelib.format.canonical import canonical


def derive(label: str, *parts: int | str) -> bytes:
    """A 32-byte key for one purpose, unrelated to that of any other label and parts.

    The key is blake2b-256, personalised with ``forebay.order``, of the canonical JSON of the array
    ``[label, *parts]``, an encoding in which different inputs never meet.
    """
    encoded = canonical([label, *parts])
    return blake2b(encoded, digest_size=32, person=b"forebay.order").digest()


def of_epoch(seed: int, epoch: int) -> int:
    """The seed that takes the place of ``seed`` in an epoch.

    Epoch 0 keeps the seed, so that a single pass is the first epoch of a repeated one. Later
    epochs get 64 bits of a hash of both: seed 7 in epoch 1 is not seed 8 in epoch 0.
    """
    if epoch == 0:
        return seed
    return int.from_bytes(derive("epoch", seed, epoch)[:8], "little")


def of_era(seed: int, era: int) -> int:
    """The seed that takes the place of ``seed`` in an era; era 0 keeps it, as epoch 0 does.

    So a cache of a single era has, followed, the order that it has as a whole.
    """
    if era == 0:
        return seed
    return int.from_bytes(derive("era", seed, era)[:8], "little")
