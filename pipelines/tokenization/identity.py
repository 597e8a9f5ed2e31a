"""Who a tokenizer is: what must agree before rows may be added to a cache."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cachelib.errors import IncompatibleCache
from cachelib.ragged import Ragged
from pipelines.tokenization.policy import Additions, Edges


@dataclass(frozen=True)
class Identity:
    """Everything about a tokenizer that decides ids.

    Attributes:
        content: digest of tokenizer.json, see ``TokenizerFiles.digest``.
        behaviour: digest of the reference engine's ids for the probe texts, BOS and EOS included.
        probes: edition of the probe texts; behaviours of two editions say nothing together.
        edges: tokens and ids at document edges.
        added: ids that the tokenizer would add by itself.
        vocabulary: number of tokens, added ones included.
        largest_id: largest id of any token, added ones included.
    """

    content: str
    behaviour: str
    probes: int
    edges: Edges
    added: Additions
    vocabulary: int
    largest_id: int

    @property
    def dtype(self) -> np.dtype:
        """The dtype tokens are stored in: uint16 for ids up to 65,535, else uint32."""
        return np.dtype(np.uint16 if self.largest_id < 1 << 16 else np.uint32)

    def to_json(self) -> dict[str, Any]:
        """A JSON object, as JSON gives it back; ``from_json`` is the inverse."""
        added = {"before": list(self.added.before), "after": list(self.added.after)}
        return {**asdict(self), "added": added}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Identity:
        """Raises KeyError or TypeError where a key is missing or unknown."""
        added = {side: tuple(ids) for side, ids in value["added"].items()}
        return cls(**{**value, "edges": Edges(**value["edges"]), "added": Additions(**added)})


def behaviour_digest(ids: Ragged) -> str:
    """blake2b-128, in hex, over row lengths (int64) and ids (uint32), little-endian."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(ids.lengths.astype("<i8").tobytes())
    digest.update(ids.values.astype("<u4").tobytes())
    return digest.hexdigest()


def differences(stored: Identity, current: Identity) -> list[str]:
    """What keeps rows of ``current`` out of a cache made as ``stored``, in words; [] if nothing."""
    found = []
    for edge in ("bos", "eos"):
        theirs, ours = getattr(stored.edges, edge), getattr(current.edges, edge)
        if (theirs, getattr(stored.edges, f"{edge}_id")) != (
            ours,
            getattr(current.edges, f"{edge}_id"),
        ):
            found.append(f"{edge} is {_edge(current, edge)}, the cache has {_edge(stored, edge)}")
    if stored.vocabulary != current.vocabulary or stored.largest_id != current.largest_id:
        found.append(
            f"the vocabulary has {current.vocabulary:,} tokens up to id {current.largest_id:,}, "
            f"that of the cache {stored.vocabulary:,} up to {stored.largest_id:,}"
        )
    if stored.content != current.content:
        found.append(
            f"the content of tokenizer.json is {current.content}, that of the cache "
            f"{stored.content}"
        )
    elif stored.probes == current.probes and stored.behaviour != current.behaviour and not found:
        found.append(
            "the same tokenizer.json gives other ids than when the cache was made: the "
            "`tokenizers` library has changed (see the recorded versions)"
        )
    return found


def check_same(stored: Identity, current: Identity, where: str) -> None:
    """Raises IncompatibleCache, naming every difference, unless ``current`` may append."""
    found = differences(stored, current)
    if found:
        raise IncompatibleCache(
            f"{where}: made with another tokenizer: {'; '.join(found)}. Use the files in its "
            "tokenizer/ folder and the same bos and eos, or build a new cache"
        )


def _edge(identity: Identity, edge: str) -> str:
    token, index = getattr(identity.edges, edge), getattr(identity.edges, f"{edge}_id")
    return "none" if token is None else f"{token!r} (id {index})"
