"""The commands that change what a cache holds already: compact and delete."""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cachelib.errors import ForebayError
from cachelib.format.storage import Storage
from cachelib.nodes.where import OPERATORS
from cachelib.words import counted
from pipelines.config import parse_size
from pipelines.maintenance.launcher import Changed, compact, delete, deleted_rows

_COMPARISON = re.compile(
    r"\s*([A-Za-z0-9_./-]+?)\s*(==|!=|<=|>=|<|>|\bnot\s+in\b|\bin\b)\s*(.+?)\s*", re.DOTALL
)
_ROWS = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def main(arguments: Sequence[str]) -> int:
    """Run ``compact`` or ``delete``; returns the exit status."""
    command = arguments[0]
    parser = _parser(command)
    known, rest = parser.parse_known_args(arguments[1:])
    if rest and known.runner in ("embedded", "bundles"):
        parser.error(f"unknown options {' '.join(rest)}")
    logging.disable(logging.CRITICAL)  # what Beam logs as errors is raised, too
    engine = {"runner": known.runner, "workers": known.workers, "beam_arguments": rest}
    try:
        if command == "compact":
            changed = compact(known.cache, shard_bytes=known.shard_bytes, **engine)
        else:
            changed = delete(
                known.cache,
                sources=known.source,
                where=known.where,
                rows=known.rows,
                **engine,
            )
    except (ForebayError, KeyError, TypeError, ValueError) as error:
        print(f"forebay: {type(error).__name__}: {_words(error)}", file=sys.stderr)
        return 1
    (_tell_compaction if command == "compact" else _tell_deletion)(changed)
    if command == "delete" and known.report is not None and changed.version is not None:
        _report(changed, known.report)
    return 0


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"forebay {command}", allow_abbrev=False)
    parser.add_argument("cache", help="Where the cache is: a path, file://, gs:// or s3:// URL.")
    if command == "compact":
        parser.description = (
            "Pack small shards into larger ones and drop the bytes of deleted rows. Rows and their "
            "indices stay."
        )
        parser.add_argument(
            "--shard-bytes", type=_size, default=64 << 20,
            help="Bytes of values in a shard, at most, as in 64MB.",
        )  # fmt: skip
    else:
        parser.description = (
            "Delete the rows for which all that is given holds, as a new version. Older versions "
            "still have them, and their bytes stay, until compact and gc have run."
        )
        parser.add_argument(
            "--source", action="append", default=[], metavar="PATTERN",
            help="Rows of sources of this name; * and ? stand for anything.",
        )  # fmt: skip
        parser.add_argument(
            "--where", action="append", default=[], type=_comparison, metavar="COMPARISON",
            help=f"""Rows whose column compares so, as in 'score < 0.5' or 'id in ["a", "b"]'; """
            f"operators are {', '.join(OPERATORS)}.",
        )  # fmt: skip
        parser.add_argument(
            "--rows", action="append", default=[], type=_range, metavar="FIRST-LAST",
            help="Rows of these indices, both included.",
        )  # fmt: skip
        parser.add_argument(
            "--report", type=Path, metavar="FILE",
            help="Write row, source and position of each deleted row as a line of JSON.",
        )  # fmt: skip
    parser.add_argument("--runner", default="embedded", help="As of build.")
    parser.add_argument("--workers", type=int, default=0, help="As of build.")
    return parser


def _size(text: str) -> int:
    try:
        return int(parse_size(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _comparison(text: str) -> tuple[str, str, Any]:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected COLUMN OPERATOR VALUE, with one of {', '.join(OPERATORS)}"
        )
    column, operator, value = found.groups()
    try:
        return column, " ".join(operator.split()), json.loads(value)
    except ValueError:
        return column, " ".join(operator.split()), value  # text may be given without quotes


def _range(text: str) -> tuple[int, int]:
    found = _ROWS.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one index, or FIRST-LAST")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise argparse.ArgumentTypeError(f"{text!r}: {last} comes before {first}")
    return first, last + 1


def _words(error: Exception) -> str:
    return str(error.args[0]) if isinstance(error, KeyError) else str(error)


def _tell_compaction(changed: Changed) -> None:
    if changed.version is None:
        print(f"{changed.url}: nothing to pack at version {changed.before}")
    else:
        print(
            f"{changed.url} version {changed.version}: {counted(changed.shards, 'shard')} instead "
            f"of {changed.shards_before:,}"
        )
    if changed.left:
        print(f"  left as they are, since they changed meanwhile: {counted(changed.left, 'run')}")


def _tell_deletion(changed: Changed) -> None:
    if changed.version is None:
        print(f"{changed.url}: no row of version {changed.before} is meant; nothing was deleted")
        return
    print(
        f"{changed.url} version {changed.version}: {counted(changed.rows, 'row')} and "
        f"{counted(changed.tokens, 'token')} deleted"
    )
    print(f"  version {changed.version - 1} still has them, until compact and gc have run")


def _report(changed: Changed, path: Path) -> None:
    assert changed.version is not None
    with path.open("w", encoding="utf-8") as file:
        for row, source, position in deleted_rows(Storage(changed.url), changed.version):
            line = {"row": row, "source": source, "position": position}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(f"  the rows are named in {path}")
