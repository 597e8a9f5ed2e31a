"""Datasets made of several: mixtures by weight, and one after another.

web, code = (cachelib.open(name).windows(2048).shuffle(seed=0) for name in ("web", "code"))
mixed = cachelib.mix({"web": web, "code": code.repeat()}, {"web": 0.7, "code": 0.3}, seed=0)
both = cachelib.concat({"old": cachelib.open("old"), "new": cachelib.open("new")})
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, SupportsIndex

from cachelib.cache import Cache
from cachelib.dataset import Dataset
from cachelib.following import Followed
from cachelib.nodes.base import Node, grows, layout
from cachelib.nodes.concat import Concat
from cachelib.nodes.leaves import endless, leaves, mean_length, why_empty
from cachelib.nodes.mix import Mix
from cachelib.nodes.then import Then
from cachelib.order.indices import LARGEST, as_integer
from cachelib.order.mixture import Exhausted, Mixture, schedule

Weights = Mapping[str, float | Fraction]


def mix(
    components: Mapping[str, Dataset | Cache | Followed],
    weights: Weights | None = None,
    *,
    seed: SupportsIndex,
    stages: Iterable[tuple[SupportsIndex, Weights]] | None = None,
    by: str | None = None,
    block: SupportsIndex = 512,
    exhausted: Exhausted = "error",
) -> Dataset:
    """Rows of several datasets, shared out exactly by weight, at any position at once.

    In every beginning of a stage, at the ends of blocks, each component has been served within 2
    rows of its share. A component's rows are its own rows 0, 1, 2, ... whatever the others do.

    Args:
        components: datasets by name, with the same columns, tokenizer and tokens at the edges of
            documents. Their own ``shuffle`` and ``repeat`` make their passes: ``repeat()`` never
            ends, ``repeat(4)`` is a cap of 4. One of a followed cache must ``repeat()``, without a
            cap, since it is not known where it ends; it is waited for where it is not far enough.
        weights: of each component, in any unit; they are taken as the exact numbers they are.
        seed: any integer; of the places of rows inside a block.
        stages: instead of ``weights``: (sample at which the stage begins, weights) pairs, the
            first from 0 on, the others at multiples of ``block``. A component that a stage does
            not name has no rows in it.
        by: the ragged field, such as "tokens", in whose elements weights are counted, by the exact
            mean length of rows; None counts samples.
        block: rows that change places with one another: the global batch size, or a divisor.
        exhausted: what happens where a finite component has no rows left. "error" is a
            ValueError, now; "renormalise" leaves its share to the others and ends after all;
            "stop" ends the mixture.

    Returns:
        A dataset, endless unless its components end it. Its ``counts(position)`` tells how many
        rows of each component come before a position.

    Raises:
        ValueError: components that are empty or do not go together, weights that are negative,
            infinite, NaN or all 0 or name no component, a component without weight in any stage,
            stages out of order, a component that runs out.
        TypeError: a value of another type.
    """
    if (weights is None) == (stages is None):
        raise ValueError("give either weights or stages")
    size = as_integer("block", block)
    if size < 1:
        raise ValueError(f"block must be 1 or more, got {size}")
    nodes = {
        name: _node(f"component {name!r}", part)
        for name, part in sorted(_named(components).items())
    }
    _check_alike([(f"component {name!r}", node) for name, node in nodes.items()])
    for name, node in nodes.items():
        if grows(node) and not endless(node):
            raise ValueError(
                f"component {name!r} is of a followed cache, of which it is not known where it "
                "ends, so that it can have no cap and cannot run out: let it repeat(), without "
                "times, or open it at a version"
            )
        if isinstance(node, Then) and node.borders:
            raise ValueError(
                f"component {name!r} changes its columns at sample {node.borders[0]}: "
                "make a mixture for each stage and put them one after the other by then()"
            )
    pairs = _stages(stages if weights is None else [(0, weights)], size)
    lengths = {name: 1 if by is None else _length(name, node, by) for name, node in nodes.items()}
    wanted = [(start, _shares(each, start, lengths)) for start, each in pairs]
    for c, name in enumerate(nodes):
        if not any(shares[c] for _, shares in wanted):
            raise ValueError(f"component {name!r} has no weight in any stage: leave it out")
    sizes = [node.size for node in nodes.values()]
    planned, rows = schedule(wanted, sizes, exhausted, list(nodes))
    mixture = Mixture(planned, rows, size, as_integer("seed", seed))
    return Dataset(Mix(tuple(nodes), tuple(nodes.values()), mixture))


def concat(parts: Mapping[str, Dataset | Cache]) -> Dataset:
    """The rows of several datasets, those of one after those of another, in the order given.

    Rows of caches in stored order stay such: ``windows`` and ``pack`` run over all of them. What is
    to be read by stages is better put together by `then`, which lets the last stage grow.

    Args:
        parts: finite datasets by name, with the same columns, tokenizer and edge tokens.

    Raises:
        ValueError: no parts, or one that is empty, endless, or does not go with the others.
        TypeError: a value of another type.
    """
    nodes = {name: _node(f"part {name!r}", part) for name, part in _named(parts).items()}
    for name, node in nodes.items():
        _check_pinned(f"part {name!r}", node, "concat")
        if node.size is None:
            raise ValueError(f"part {name!r} never ends, so it cannot be put beside others")
        if isinstance(node, Then) and node.borders:
            raise ValueError(
                f"part {name!r} changes its columns at sample {node.borders[0]}: put such stages "
                "one after the other by then()"
            )
    _check_alike([(f"part {name!r}", node) for name, node in nodes.items()])
    if sum(node.size or 0 for node in nodes.values()) > LARGEST:
        raise ValueError(f"all parts together have more than {LARGEST} rows")
    return Dataset(Concat(tuple(nodes), tuple(nodes.values())))


def then(stages: Iterable[tuple[SupportsIndex | None, Dataset | Cache]]) -> Dataset:
    """One dataset after another: a curriculum of sequence lengths, or of data.

    Args:
        stages: (samples, dataset) pairs: the first so many rows of each dataset. None takes all
            rows, which of an endless dataset only the last stage can.

    Returns:
        A dataset. Columns may change from one stage to the next; then no batch may cross there,
        and a loader refuses a batch size that would.

    Raises:
        ValueError: no stages; a stage of no rows, or of more than its dataset has; an endless stage
            before the last; datasets of different tokenizers or edge tokens.
        TypeError: a value of another type.
    """
    nodes: list[Node] = []
    samples: list[int | None] = []
    for number, (wanted, dataset) in enumerate(_pairs(stages, "(samples, dataset)")):
        if samples and samples[-1] is None:
            raise ValueError(f"stage {number - 1} never ends, so nothing can come after it")
        node = _node(f"stage {number}", dataset)
        _check_pinned(f"stage {number}", node, "then")
        rows = node.size if wanted is None else as_integer("samples", wanted)
        if rows is not None and not 1 <= rows <= (LARGEST if node.size is None else node.size):
            raise ValueError(
                f"stage {number} has {rows} samples: use 1 to {node.size or LARGEST}, or repeat() "
                "the dataset"
            )
        nodes.append(node)
        samples.append(rows)
    if not nodes:
        raise ValueError("then() needs at least one stage")
    if sum(rows or 0 for rows in samples) > LARGEST:
        raise ValueError(f"all stages together have more than {LARGEST} samples")
    _check_tokenizers([(f"stage {number}", node) for number, node in enumerate(nodes)])
    return Dataset(Then(tuple(nodes), tuple(samples)))


def _named(components: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(components, Mapping):
        raise TypeError(f"expected datasets by name, got {components!r}")
    if not components:
        raise ValueError("expected datasets by name, at least one, got none")
    for name in components:
        if not isinstance(name, str):
            raise TypeError(f"names of datasets must be strings, got {name!r}")
    return components


def _node(name: str, dataset: Any) -> Node:
    if isinstance(dataset, Cache | Followed):
        dataset = dataset.dataset()
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{name} must be a dataset or a cache, got {dataset!r}")
    if dataset.size == 0:
        raise ValueError(f"{name} is empty{why_empty(dataset.node)}")
    return dataset.node


def _check_pinned(name: str, node: Node, method: str) -> None:
    if grows(node):
        raise ValueError(
            f"{name} is of a followed cache, which {method}() cannot take, since it is not known "
            "where it ends: open it at a version"
        )


def _pairs(stages: Any, expected: str) -> Iterator[tuple[Any, Any]]:
    """Stages as callers give them; TypeError for what is no list of pairs."""
    if isinstance(stages, (str, bytes, Mapping)) or not isinstance(stages, Iterable):
        raise TypeError(f"stages must be a list of {expected} pairs, got {stages!r}")
    for number, stage in enumerate(stages):
        if not isinstance(stage, (tuple, list)) or len(stage) != 2:
            raise TypeError(f"stage {number} must be a pair {expected}, got {stage!r}")
        yield stage[0], stage[1]


def _stages(stages: Any, block: int) -> list[tuple[int, Weights]]:
    pairs = [
        (as_integer("the sample at which a stage begins", at), each)
        for at, each in _pairs(stages, "(sample, weights)")
    ]
    if not pairs or pairs[0][0] != 0:
        raise ValueError(
            f"the first stage begins at sample 0, got stages at {[at for at, _ in pairs]}"
        )
    for (before, _), (at, _) in itertools.pairwise(pairs):
        if at <= before:
            raise ValueError(f"stages must come in order, got sample {at} after sample {before}")
        if at % block or at > LARGEST:
            raise ValueError(
                f"stages begin at multiples of block={block} up to {LARGEST}, got {at}: use "
                f"{at - at % block} or {at - at % block + block}, or another block"
            )
    return pairs


def _shares(weights: Weights, start: int, lengths: Mapping[str, int | Fraction]) -> tuple[int, ...]:
    """Weights of all components in one stage by samples, as integers."""
    where = f"weights of the stage from sample {start} on"
    if not isinstance(weights, Mapping):
        raise TypeError(f"{where} must be numbers by component, got {weights!r}")
    unknown = [name for name in weights if name not in lengths]
    if unknown:
        raise ValueError(
            f"{where} name {unknown[0]!r}, which is no component: there are {list(lengths)}"
        )
    exact = [
        _exact(weights.get(name, 0), f"{where}, {name!r},") / length
        for name, length in lengths.items()
    ]
    if not any(exact):
        raise ValueError(f"{where} are all 0")
    denominator = math.lcm(*(share.denominator for share in exact))
    return tuple(int(share * denominator) for share in exact)


def _exact(weight: Any, what: str) -> Fraction:
    if isinstance(weight, numbers.Rational) and not isinstance(weight, bool):
        found = Fraction(int(weight.numerator), int(weight.denominator))
    elif isinstance(weight, numbers.Real) and not isinstance(weight, bool):
        if not math.isfinite(weight):
            raise ValueError(f"{what} must be finite, got {weight!r}")
        found = Fraction(float(weight))
    else:
        raise TypeError(f"{what} must be a number, got {weight!r}")
    if found < 0:
        raise ValueError(f"{what} must be 0 or more, got {weight!r}")
    return found


def _length(name: str, node: Node, field: str) -> Fraction:
    columns = layout(node)
    if field not in columns:
        raise ValueError(f"by={field!r} is no field of component {name!r}: {list(columns)}")
    kind, _, shape = columns[field]
    if kind == "array" and not shape:
        raise ValueError(f"by={field!r} is one value in each row: leave it out to count rows")
    length = mean_length(node, field) if kind == "ragged" else Fraction(shape[0])
    if not length:
        raise ValueError(f"component {name!r} has no {field} at all, so by={field!r} fits no share")
    return length


def _check_alike(parts: Sequence[tuple[str, Node]]) -> None:
    """ValueError unless all give the same columns, of tokens of one tokenizer."""
    first, expected = parts[0][0], layout(parts[0][1])
    for name, node in parts[1:]:
        found = layout(node)
        if found == expected:
            continue
        for column in sorted({*expected, *found}):
            if expected.get(column) != found.get(column):
                raise ValueError(
                    f"{first} and {name} do not go together: column {column!r} is "
                    f"{_shown(expected.get(column))} in the first, {_shown(found.get(column))} "
                    "in the second"
                )
    _check_tokenizers(parts)


def _shown(column: tuple[str, str, tuple[int, ...]] | None) -> str:
    if column is None:
        return "missing"
    kind, dtype, shape = column
    return f"{'ragged ' if kind == 'ragged' else ''}{dtype}{list(shape) if shape else ''}"


def _check_tokenizers(parts: Sequence[tuple[str, Node]]) -> None:
    """ValueError if caches tell of different tokenizers, or of other tokens at document edges.

    One that tells of none goes with any.
    """
    known: tuple[str, str] | None = None
    marked: tuple[str, str] | None = None
    for name, node in parts:
        for leaf in leaves(node):
            if not isinstance(leaf.rows, Cache | Followed):
                continue
            tokenizer = leaf.rows.snapshot.commit.identity.get("tokenizer")
            if not isinstance(tokenizer, Mapping):
                continue
            content = str(tokenizer.get("content"))
            if known is not None and known[1] != content:
                raise ValueError(
                    f"{known[0]} and {name} have tokens of different tokenizers: content "
                    f"{known[1]} and {content}; build both with one"
                )
            known = known or (name, content)
            if not isinstance(tokenizer.get("edges"), Mapping):
                continue
            edges = _edges(tokenizer["edges"])
            if marked is not None and marked[1] != edges:
                raise ValueError(
                    f"{marked[0]} and {name} mark the edges of documents differently: {marked[1]} "
                    f"and {edges}; build both with the same bos and eos"
                )
            marked = marked or (name, edges)


def _edges(edges: Mapping[str, Any]) -> str:
    """The tokens at the edges of documents, in words."""
    return ", ".join(
        f"no {edge}"
        if edges.get(edge) is None
        else f"{edge} {edges[edge]!r} (id {edges.get(f'{edge}_id')})"
        for edge in ("bos", "eos")
    )
