"""The commands about versions: log, diff, checkout, pin and unpin."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cachelib.cache import Cache
from cachelib.commands.history import Difference, Step, between, missing_objects, steps
from cachelib.commands.options import at_least_one
from cachelib.commands.printing import print_json, print_table, printable
from cachelib.errors import ForebayError
from cachelib.format.ledger import Ledger
from cachelib.format.pins import pinned, unpin
from cachelib.format.shard import has_offsets
from cachelib.format.storage import Storage
from cachelib.words import counted

SHOWN = 20
"""Sources and ranges that `diff` lists; with --json all are there."""


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """What each of these commands takes besides the cache."""
    if command == "log":
        parser.add_argument("-n", type=at_least_one, metavar="N", help="the newest N versions only")
        parser.add_argument("--version", type=int, help="up to this version, not the newest")
    elif command == "diff":
        parser.add_argument("first", type=int, metavar="OLD", help="a version")
        parser.add_argument("second", type=int, metavar="NEW", nargs="?", help="(the newest)")
    elif command == "checkout":
        parser.add_argument("version", type=int, metavar="VERSION")
        parser.add_argument("--pin", metavar="NAME", help="keep the version under this name")
    else:
        parser.add_argument("name", metavar="NAME", help="of the pin")
    if command == "pin":
        parser.add_argument("--version", type=int, help="keep this version, not the newest")
    if command in ("log", "diff", "checkout"):
        parser.add_argument("--json", action="store_true", help="print JSON")


def log(options: argparse.Namespace) -> int:
    """The history, newest version first."""
    found = steps(options.cache, options.version)[::-1][: options.n]
    if options.json:
        print_json([step.to_json() for step in found])
        return 0
    schema = found[0].commit.schema
    fields = [f.name for f in schema.fields if has_offsets(f) and not f.text]
    print_table(
        ["version", "operation", "task", "shards", "rows", *fields, ""],
        [
            [
                step.commit.version,
                step.commit.operation,
                task_words(step.commit.task),
                *(signed(n) for n in (step.shards, step.rows)),
                *(signed(step.elements.get(name, 0)) for name in fields),
                remarks(step),
            ]
            for step in found
        ],
    )
    return 0


def signed(count: int) -> str:
    """A change of a number."""
    return f"{count:+,}" if count else "."


def task_words(task: dict[str, Any]) -> str:
    """What a commit was made for, in short."""
    if {"plan", "wave", "waves"} <= task.keys():
        return f"{task['plan'][:13]} wave {task['wave'] + 1} of {task['waves']}"
    return " ".join(f"{key} {str(value)[:13]}" for key, value in sorted(task.items()))


def remarks(step: Step) -> str:
    """What else is to be said of a version."""
    commit = step.commit
    words = ["finished"] if commit.finished else []
    if commit.seals:
        words.append(f"era ends at row {commit.span:,}")
    words += [f"pin {name}" for name in step.pins]
    if step.expired_by is not None:
        words.append(f"expired by {step.expired_by}")
    return ", ".join(words)


def diff(options: argparse.Namespace) -> int:
    """What changed between two versions."""
    storage: Storage = options.cache
    second = Ledger(storage).resolve(options.second)
    try:
        found = between(storage, options.first, second)
    except ValueError as error:
        raise ForebayError(str(error)) from error
    if options.json:
        print_json(asdict(found))
    else:
        _print_difference(found)
    return 0


def _print_difference(found: Difference) -> None:
    first, second = found.versions
    kinds = ", ".join(f"{n:,} x {kind}" for kind, n in found.operations.items()) or "nothing"
    print(f"{printable(found.url)} version {first} to {second}: {kinds}")
    old, new = found.totals
    print(f"  rows       {old['rows']:,} to {new['rows']:,}")
    for name, count in new["elements"].items():
        before = old["elements"].get(name, 0)
        if count != before:
            print(f"  {name:<10} {before:,} to {count:,}")
    start, stop = found.added
    if stop > start:
        again = f", {found.passing:,} of them deleted again" if found.passing else ""
        print(f"  added      rows {start:,} to {stop - 1:,}{again}")
    if found.deleted:
        total = sum(high - low for low, high in found.deleted)
        ranges = [f"{a:,}" if b == a + 1 else f"{a:,}-{b - 1:,}" for a, b in found.deleted]
        print(f"  deleted    {counted(total, 'row')}: {_some(ranges)}")
    if found.new_shards or found.dropped_shards:
        print(
            f"  shards     {old['shards']:,} to {new['shards']:,}: {found.new_shards:,} new, "
            f"{found.dropped_shards:,} dropped"
        )
    if found.sources:
        fresh = sum(each["new"] for each in found.sources)
        print(f"  taken in   {counted(len(found.sources), 'source')}, {fresh:,} of them new")
        for each in found.sources[:SHOWN]:
            ranges = [f"{low}-{high}" for low, high in each["ranges"]]
            print(f"    {printable(each['source'])}  {_some(ranges)}")
        if len(found.sources) > SHOWN:
            print(f"    ({len(found.sources) - SHOWN:,} more with --json)")
    for key, (before, after) in found.changes.items():
        print(f"  changed    {printable(f'{key}: {before} to {after}')}")


def _some(words: Sequence[str]) -> str:
    rest = f", and {len(words) - SHOWN:,} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + rest


def checkout(options: argparse.Namespace) -> int:
    """How a version is opened, and whether all that it needs is there."""
    storage: Storage = options.cache
    if options.pin is not None:
        _pinned(storage, options.pin, options.version)
    cache = Cache(storage, options.version)
    needed, missing = missing_objects(cache)
    how = f"version={cache.version}" if options.pin is None else f"pin={options.pin!r}"
    opening = f"cachelib.open({storage.url!r}, {how})"
    if options.json:
        print_json(
            {
                "url": storage.url,
                "version": cache.version,
                "open": opening,
                "pin": options.pin,
                "totals": cache.snapshot.commit.totals,
                "objects": needed,
                "missing": missing,
            }
        )
        return 1 if missing else 0
    totals = cache.snapshot.commit.totals
    print(
        f"{printable(storage.url)} version {cache.version}: {counted(totals['rows'], 'row')} in "
        f"{counted(totals['shards'], 'shard')}"
    )
    print(f"  open       {printable(opening)}")
    if missing:
        print(f"  objects    {len(missing):,} of {needed:,} are missing: {_some(missing)}")
    else:
        print(f"  objects    all {needed:,} are there")
    if options.pin is None:
        print("  keep       --pin NAME keeps it, whatever gc collects")
    return 1 if missing else 0


def pin(options: argparse.Namespace) -> int:
    """Keep a version under a name."""
    found = _pinned(options.cache, options.name, options.version)
    print(f"{printable(options.cache.url)}: pin {found.name} keeps version {found.version}")
    return 0


def _pinned(storage: Storage, name: str, version: int | None) -> Any:
    try:
        return pinned(storage, name, version)
    except ValueError as error:
        raise ForebayError(str(error)) from error


def let_go(options: argparse.Namespace) -> int:
    """Remove a pin."""
    try:
        found = unpin(options.cache, options.name)
    except ValueError as error:
        raise ForebayError(str(error)) from error
    if found is None:
        raise ForebayError(f"{options.cache.url}: there is no pin {options.name!r}")
    print(
        f"{printable(options.cache.url)}: pin {found.name} no longer keeps version {found.version}"
    )
    return 0
