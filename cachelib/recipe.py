"""Nodes as JSON: what each is made of, and the same nodes made again.

A recipe says more than what the order depends on (``describe``): also what makes the columns, and
where caches are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cachelib.nodes.base import Node, Rows
from cachelib.nodes.blocks import BlockShuffle
from cachelib.nodes.concat import Concat
from cachelib.nodes.eras import Eras, cut_of
from cachelib.nodes.left import Left, stored
from cachelib.nodes.mix import Mix
from cachelib.nodes.pack import Pack, pack
from cachelib.nodes.repeat import Repeat
from cachelib.nodes.selected import Selected, split
from cachelib.nodes.shuffle import Shuffle
from cachelib.nodes.slices import Slice
from cachelib.nodes.stored import Stored
from cachelib.nodes.then import Then
from cachelib.nodes.where import Comparisons, where
from cachelib.nodes.windows import Windows, windows
from cachelib.order.blocks import Blocks
from cachelib.order.mixture import Mixture, Stage
from cachelib.order.packing import Rule
from cachelib.order.windows import WindowGrid

Open = Callable[[str, int | None], Rows]
"""Opens the cache at a URL at a version; None follows it."""


def recipe(node: Node) -> dict[str, Any]:
    """What a node is made of, as JSON: ``kind``, its values, and what it stands on as ``of``.

    Where it stands on several nodes, they are ``parts``. A node of a kind that `made` does not
    know is its kind alone.
    """
    match node:
        case Stored():
            fields = None if node.fields is None else list(node.fields)
            return {
                "kind": "cache",
                "url": node.rows.url,
                "version": node.version,
                "fields": fields,
            }
        case Left() | Selected(facts={"kind": "left"}):  # the version of the cache tells it
            return recipe(node.child)
        case Eras():
            return node.recipe()
        case Windows():
            return {
                "kind": "windows",
                "field": node.field,
                "length": node.grid.length,
                "stride": node.grid.stride,
                "tail": node.grid.tail,
                "documents": node.documents,
                "targets": node.targets,
                "of": recipe(node.stream),
            }
        case Pack():
            rule = node.plan.rule
            return {
                "kind": "pack",
                "limits": [list(limit) for limit in rule.limits],
                "overlong": rule.overlong,
                "max_segments": rule.max_segments,
                "seed": node.plan.seed,
                "pads": dict(node.pads),
                "targets": node.targets,
                "of": recipe(node.child),
            }
        case Shuffle():
            return {"kind": "shuffle", "seed": node.seed, "of": recipe(node.child)}
        case BlockShuffle():
            return {
                "kind": "blocks",
                "seed": node.seed,
                "block": node.blocks.block,
                "window": node.blocks.window,
                "of": recipe(node.child),
            }
        case Slice():
            return {
                "kind": "slice",
                "start": node.start,
                "stop": node.stop,
                "of": recipe(node.child),
            }
        case Selected(facts={"kind": "split"} | {"comparisons": _} as facts):
            return {**facts, "of": recipe(node.child)}
        case Selected():
            return {"kind": "where by a function"}
        case Repeat():
            return {"kind": "repeat", "times": node.times, "of": recipe(node.child)}
        case Mix():
            mixture = node.mixture
            return {
                "kind": "mix",
                "seed": mixture.seed,
                "block": mixture.block,
                "size": mixture.size,
                "stages": [[s.start, list(s.weights), list(s.served)] for s in mixture.stages],
                "names": list(node.names),
                "parts": [recipe(child) for child in node.children],
            }
        case Concat():
            return {
                "kind": "concat",
                "names": list(node.names),
                "parts": [recipe(child) for child in node.children],
            }
        case Then():
            return {
                "kind": "then",
                "samples": list(node.samples),
                "parts": [recipe(child) for child in node.children],
            }
    return {"kind": type(node).__name__.lower()}


def made(value: Mapping[str, Any], open: Open) -> Node:
    """The node that a recipe tells of, over caches that ``open`` gives.

    Packs are planned anew, which reads the lengths of all documents, and conditions are asked of
    all rows again.

    Raises:
        LookupError: a kind of node that cannot be made from a recipe; names it.
    """
    match value["kind"]:
        case "cache":
            fields = value["fields"]
            rows = open(value["url"], value["version"])
            return stored(rows, None if fields is None else tuple(fields))
        case "eras":
            fields = value["fields"]
            rows = open(value["url"], None)
            all_rows = Stored(rows, None if fields is None else tuple(fields))
            return Eras(all_rows, cut_of(value["cut"]), value["seed"])
        case "windows":
            stream: Any = made(value["of"], open)
            grid = WindowGrid(
                stream.elements(value["field"]), value["length"], value["stride"], value["tail"]
            )
            return windows(stream, value["field"], grid, value["documents"], value["targets"])
        case "pack":
            documents: Any = made(value["of"], open)
            limits = tuple((name, length) for name, length in value["limits"])
            rule = Rule(limits, value["overlong"], value["max_segments"])
            return pack(documents, rule, value["seed"], value["pads"], value["targets"])
        case "shuffle":
            return Shuffle(made(value["of"], open), value["seed"])
        case "blocks":
            adjacent: Any = made(value["of"], open)
            blocks = Blocks(adjacent.size, value["block"], value["window"], adjacent.row_bytes)
            return BlockShuffle(adjacent, blocks, value["seed"])
        case "slice":
            return Slice(made(value["of"], open), value["start"], value["stop"])
        case "split":
            sides = split(made(value["of"], open), value["fraction"], value["seed"])
            return sides[value["held"]]
        case "where":
            asked: Any = made(value["of"], open)
            return where(asked, Comparisons.of(value["comparisons"]))
        case "repeat":
            return Repeat(made(value["of"], open), value["times"])
        case "mix":
            stages = tuple(
                Stage(start, tuple(weights), tuple(served))
                for start, weights, served in value["stages"]
            )
            children = tuple(made(part, open) for part in value["parts"])
            mixture = Mixture(stages, value["size"], value["block"], value["seed"])
            return Mix(tuple(value["names"]), children, mixture)
        case "concat":
            children = tuple(made(part, open) for part in value["parts"])
            return Concat(tuple(value["names"]), children)
        case "then":
            children = tuple(made(part, open) for part in value["parts"])
            return Then(children, tuple(value["samples"]))
        case kind:
            raise LookupError(f"a dataset with a {kind} cannot be made again from a description")
