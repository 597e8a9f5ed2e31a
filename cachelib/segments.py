"""Segments: which tokens of a row belong together, and what each token is to predict.

Everything here is arithmetic on arrays of shape (rows, length). Segment ids count from 1 in each
row; 0 is padding.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

Targets = Literal["aligned", "shifted"]

IGNORED = -100
"""The label of what is no target, as PyTorch's cross entropy and HF models know it."""


def check_targets(targets: Any) -> None:
    """ValueError unless these are `Targets`."""
    if not isinstance(targets, str) or targets not in get_args(Targets):
        raise ValueError(f"targets must be one of {get_args(Targets)}, got {targets!r}")


def check_ids(field: str, values: np.ndarray, targets: Targets) -> None:
    """ValueError unless the values of a field, of shape (n, *shape), are ids to be labelled."""
    if values.dtype.kind not in "iu" or values.ndim > 1:
        raise ValueError(
            f"targets={targets!r} labels token ids, one integer each, which {field!r} of "
            f"{values.dtype} and shape {values.shape[1:]} does not hold: name the field of tokens "
            "(first, where there are several), or leave targets out"
        )


def segment_ids(owners: np.ndarray) -> np.ndarray:
    """Segment ids of tokens whose documents are known.

    Args:
        owners: int64 (rows, length), the document of each token; not decreasing within a row.

    Returns:
        int32 (rows, length).
    """
    return np.cumsum(_first(owners), axis=1, dtype=np.int32)


def positions(ids: np.ndarray) -> np.ndarray:
    """Positions, int32 (rows, length), that restart at 0 with each segment, padding included."""
    first = _first(ids)
    places = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    begins = np.where(first, places, 0)
    return places - np.maximum.accumulate(begins, axis=1)


def labels(tokens: np.ndarray, ids: np.ndarray, targets: Targets) -> np.ndarray:
    """What each token is to predict; never across a segment's edge, and never padding.

    Args:
        tokens: (rows, length) token ids of any integer type.
        ids: int32 (rows, length), their segments.
        targets: "aligned" labels a token with itself, as models do that shift by themselves;
            "shifted" with the next one, so that the last token of a row has none.

    Returns:
        int32 (rows, length): -100 where there is no target. With "aligned" that is the first token
        of every segment, with "shifted" the last.

    Raises:
        ValueError: other targets, or tokens and ids not of one shape (rows, length).
    """
    check_targets(targets)
    if np.shape(tokens) != np.shape(ids):
        raise ValueError(
            f"tokens and ids must have one shape (rows, length), got {np.shape(tokens)} and "
            f"{np.shape(ids)}"
        )
    known = tokens.astype(np.int32)
    known[_first(ids) | (ids == 0)] = IGNORED
    if targets == "aligned":
        return known
    shifted = np.full_like(known, IGNORED)
    shifted[:, :-1] = known[:, 1:]
    return shifted


def cu_seqlens(ids: np.ndarray, max_segments: int) -> tuple[np.ndarray, int]:
    """Where segments begin in a batch laid out as one row, for attention of variable length.

    Padding at the end of a row is a segment of its own. The shape does not depend on the batch:
    segments that are not there are empty ones at the end.

    Args:
        ids: int32 (rows, length), segment ids.
        max_segments: segments there may be in the batch, padding included.

    Returns:
        int32 (max_segments + 1,) from 0 to rows * length, and the length of the longest segment.

    Raises:
        ValueError: there are more segments.
    """
    begins = np.flatnonzero(_first(ids))
    if len(begins) > max_segments:
        raise ValueError(
            f"the batch has {len(begins)} segments (padding of a row is one), more than "
            f"max_segments={max_segments}"
        )
    edges = np.full(max_segments + 1, ids.size, np.int32)
    edges[: len(begins)] = begins
    return edges, int(np.diff(edges).max(initial=0))


def _first(owners: np.ndarray) -> np.ndarray:
    """Where a document, a segment or padding begins: bool (rows, length).

    Raises:
        ValueError: the array is not of shape (rows, length).
    """
    if owners.ndim != 2:
        raise ValueError(f"expected an array of shape (rows, length), got shape {owners.shape}")
    first = np.ones(owners.shape, bool)
    first[:, 1:] = owners[:, 1:] != owners[:, :-1]
    return first
