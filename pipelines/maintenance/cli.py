"""The commands that change what a cache holds already: compact, delete and gc."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cachelib.commands.options import at_least_one
from cachelib.errors import ForebayError
from cachelib.format.storage import Storage
from cachelib.nodes.where import OPERATORS
from cachelib.words import counted, size
from pipelines.config import parse_size
from pipelines.ending import failed, handling, interrupt, silence, stopped
from pipelines.maintenance.gc import KEEP, Collected, gc
from pipelines.maintenance.launcher import Changed, compact, delete, deleted_rows

_COMPARISON = re.compile(
    r"\s*([A-Za-z0-9_./-]+?)\s*(==|!=|<=|>=|<|>|\bnot\s+in\b|\bin\b)\s*(.+?)\s*", re.DOTALL
)
_ROWS = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])|0")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def main(arguments: Sequence[str]) -> int:
    """Run ``compact``, ``delete`` or ``gc``; returns the exit status."""
    command = arguments[0]
    parser = _parser(command)
    known, rest = parser.parse_known_args(arguments[1:])
    here = known.runner in ("embedded", "bundles")
    if rest and here:
        parser.error(f"unknown options {' '.join(rest)}")
    if not known.verbose:
        silence()
    try:
        with nullcontext() if here else handling(interrupt):
            done = _carry_out(command, known, [r for r in rest if r != "--"])
    except KeyboardInterrupt as stop:
        return stopped(stop)
    except (KeyError, TypeError, ValueError) as error:
        print(f"forebay: {type(error).__name__}: {_words(error)}", file=sys.stderr)
        return 1
    except Exception as error:
        return failed(error, known.verbose)
    if isinstance(done, Collected):
        _tell_collection(done, known.json)
        return 0
    (_tell_compaction if command == "compact" else _tell_deletion)(done)
    if command == "delete" and known.report is not None:
        try:
            _report(done, known.report)
        except OSError as error:
            print(f"forebay: {_unreported(done, known.report, error)}", file=sys.stderr)
            return 1
    return 0


def _carry_out(
    command: str, known: argparse.Namespace, beam_arguments: Sequence[str]
) -> Changed | Collected:
    engine = {"runner": known.runner, "workers": known.workers, "beam_arguments": beam_arguments}
    if command == "gc":
        return gc(
            known.cache, keep=known.keep, younger=known.younger, dry_run=known.dry_run, **engine
        )
    if command == "compact":
        return compact(known.cache, shard_bytes=known.shard_bytes, **engine)
    if known.report is not None:
        _check_writable(known.report)
    return delete(known.cache, sources=known.source, where=known.where, rows=known.rows, **engine)


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
    elif command == "gc":
        _add_gc(parser)
    else:
        parser.description = (
            "Delete the rows for which all that is given holds, as a new version. Older versions "
            "still have them, and their bytes stay, until compact and gc have run."
        )
        parser.add_argument(
            "--source", action="append", default=[], metavar="PATTERN",
            help="Rows of sources of this name. * stands for any characters, / among them, and ? "
            "for one; all others stand for themselves, also [ and ].",
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
    parser.add_argument("--verbose", action="store_true", help="As of build.")
    return parser


def _add_gc(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Delete what no version needs that is kept, and what killed or failed writers left behind. "
        "Kept are the newest versions, young ones and pinned ones; versions that lose anything "
        "expire."
    )
    parser.add_argument(
        "--keep",
        type=at_least_one,
        default=KEEP,
        metavar="N",
        help=f"Newest versions to keep ({KEEP}).",
    )
    parser.add_argument(
        "--younger", type=_age, default="7d", metavar="AGE",
        help="Keep versions and uncommitted work younger than this, as in 12h, 7d (7d).",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="Only tell what would be done.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def _age(text: str) -> float:
    found = _AGE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age such as 90s, 15m, 12h, 7d, 2w or 0")
    return float(found[1]) * _SECONDS[found[2]] if found[1] else 0.0


def _size(text: str) -> int:
    try:
        found = int(parse_size(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a shard holds a byte at least")
    return found


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
        nothing = "nothing was packed" if changed.left else "nothing to pack"
        print(f"{changed.url}: {nothing} at version {changed.before}")
    else:
        print(
            f"{changed.url} version {changed.version}: {counted(changed.shards, 'shard')} instead "
            f"of {changed.shards_before:,}"
        )
    if changed.left:
        print(
            f"  left as they are, since others changed them meanwhile: "
            f"{counted(changed.left, 'run')} of shards; run compact again for them"
        )


def _tell_deletion(changed: Changed) -> None:
    if changed.version is None:
        print(f"{changed.url}: no row of version {changed.before} is meant; nothing was deleted")
        return
    print(
        f"{changed.url} version {changed.version}: {counted(changed.rows, 'row')} and "
        f"{counted(changed.tokens, 'token')} deleted"
    )
    print(f"  version {changed.version - 1} still has them, until compact and gc have run")


def _tell_collection(found: Collected, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(found)))
        return
    would = "would be " if found.dry_run else ""
    print(
        f"{found.url} version {found.version}: {counted(found.attempts, 'attempt')} "
        f"{would}deleted, {counted(found.objects, 'object')}, {size(found.bytes)}"
    )
    kept = f"version {found.kept} and later"
    pins = "".join(f", {version} (pin {name})" for name, version in found.pins.items()
                   if name not in found.broken)  # fmt: skip
    print(f"  kept       {kept}{pins}")
    if found.expired:
        ranges = ", ".join(
            f"{start}" if stop == start + 1 else f"{start} to {stop - 1}"
            for start, stop in found.expired
        )
        print(f"  expired    {ranges}: {found.newly_expired:,} {would}new")
    if found.waiting:
        print(
            f"  waiting    {counted(found.waiting, 'attempt')} that no version names: too young, "
            "or of a build in progress"
        )
    for name in found.broken:
        print(f"  broken     pin {name}: its version {found.pins[name]} has expired")


def _check_writable(path: Path) -> None:
    """See that a report can be written, before anything is deleted; what is there stays.

    Raises:
        ForebayError: it cannot.
    """
    there = os.path.lexists(path)
    if there and not path.is_file() and not path.is_dir():
        return  # a pipe or a terminal, which is opened once
    try:
        with path.open("a"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise ForebayError(
            f"--report: {path} cannot be written ({error.strerror}); nothing was deleted"
        ) from error


def _report(changed: Changed, path: Path) -> None:
    """Name the rows that were deleted in a file, which is empty where none were."""
    with path.open("w", encoding="utf-8") as file:
        if changed.version is None:
            return
        for row, source, position in deleted_rows(Storage(changed.url), changed.version):
            line = {"row": row, "source": source, "position": position}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(f"  the rows are named in {path}")


def _unreported(changed: Changed, path: Path, error: OSError) -> str:
    """That a report could not be written when all else was done."""
    fault = f"{path} cannot be written: {error.strerror}"
    if changed.version is None:
        return f"no row was deleted, but {fault}"
    versions = f"{changed.version - 1} {changed.version}"
    return (
        f"the rows were deleted, but {fault}. Their indices: forebay diff {changed.url} {versions}"
    )
