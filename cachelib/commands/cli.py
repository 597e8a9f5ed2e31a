"""The commands that read caches: ls, head, verify, stats and explain; and those about versions."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cachelib.cache import Cache
from cachelib.commands import versions
from cachelib.commands.history import Step, steps
from cachelib.commands.options import at_least_one
from cachelib.commands.printing import print_json, print_table, printable
from cachelib.commands.stats import (
    QUANTILES,
    Sources,
    Statistics,
    histogram_range,
    statistics,
)
from cachelib.dataset import Dataset
from cachelib.errors import ForebayError, RowDeleted, StateMismatch
from cachelib.format.schema import Field
from cachelib.format.shard import has_offsets
from cachelib.format.storage import Storage
from cachelib.loader import Loader
from cachelib.ragged import Ragged
from cachelib.rebuild import rebuild
from cachelib.verification import Progress, difference, garbage, verify
from cachelib.words import counted, example

TEXT_SHOWN = 600
"""Characters of a long text that `head` shows."""

VALUES_SHOWN = 24
"""Values of a long row that `head` shows."""

IDS_DECODED = 4096
"""Ids of a long row that `head` decodes."""

DESCRIPTION = "description.json"
"""Name under which `explain` looks for the description of a loader."""

EXPLAINED_AT_ONCE = 32
"""Rows of a batch that `explain` looks up at once: each takes a few reads, one after another."""

SOURCES_SHOWN = 40
"""Sources that `stats` lists one by one; more are summed by group."""


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands below; returns the exit status."""
    options = _parser(arguments[0]).parse_args(arguments[1:])
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: _complain(str(message))
            status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone. What is still buffered must not fail when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except (ForebayError, IndexError) as error:
        kind = "" if isinstance(error, IndexError) else f"{type(error).__name__}: "
        _complain(f"{kind}{error}")
        return 1
    return status


def _complain(message: str) -> None:
    print("forebay:", " ".join(printable(message).split()), file=sys.stderr)


def _parser(command: str) -> argparse.ArgumentParser:
    run, description = _COMMANDS[command]
    parser = argparse.ArgumentParser(
        prog=f"forebay {command}", description=description, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    if command == "explain":
        _add_explain(parser)
        return parser
    parser.add_argument("cache", type=_storage, help="a local path, file://, gs:// or s3:// URL")
    if command in ("log", "diff", "checkout", "pin", "unpin"):
        versions.add_options(parser, command)
        return parser
    parser.add_argument("--version", type=int, help="look at this version, not the newest")
    if command in ("ls", "stats"):
        parser.add_argument("--json", action="store_true", help="print JSON")
    if command == "head":
        parser.add_argument("-n", type=at_least_one, default=5, help="rows to show (5)")
        parser.add_argument("--row", type=int, help="index of the first row; -1 is the last one")
        parser.add_argument("--full", action="store_true", help="do not shorten long rows")
    if command == "verify":
        parser.add_argument(
            "--against", type=_storage, metavar="CACHE", help="also compare the rows with these"
        )
    if command == "stats":
        parser.add_argument(
            "--quick", action="store_true", help="no sources; lengths to a power of two"
        )
        parser.add_argument(
            "--all", action="store_true", help="list every source, however many there are"
        )
    return parser


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("state", type=Path, help="a file that holds a loader's state as JSON")
    parser.add_argument("--step", type=int, required=True, help="number of the batch, from 0")
    parser.add_argument("--row", type=int, help="this row of the batch only, over all ranks")
    parser.add_argument(
        "--description",
        type=Path,
        metavar="FILE",
        help=f"what loader.description() gave; else {DESCRIPTION} beside the state, or a folder up",
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each row")


def _storage(location: str) -> Storage:
    try:
        return Storage.at(location)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# ls -----------------------------------------------------------------------------------------------


def _ls(options: argparse.Namespace) -> int:
    storage: Storage = options.cache
    history = steps(storage, options.version)
    newest = history[-1].commit
    totals = newest.totals
    deleted = newest.span - totals["rows"]
    if options.json:
        print_json(
            {
                "url": storage.url,
                "version": newest.version,
                "finished": newest.finished,
                "totals": totals,
                "deleted": deleted,
                "schema": newest.schema.to_json(),
                "identity": newest.identity,
                "commits": [step.to_json() for step in history],
            }
        )
        return 0
    holds = [counted(totals["rows"], "row")]
    fields = [f.name for f in newest.schema.fields if has_offsets(f) and not f.text]
    holds += [f"{totals['elements'][name]:,} {name}" for name in fields]
    print(printable(storage.url))
    print(f"  version    {newest.version}, {_state(history)}")
    print(f"  holds      {', '.join(holds)} in {counted(totals['shards'], 'shard')}")
    if deleted:
        print(f"  deleted    {counted(deleted, 'row')}")
    print(f"  content    {totals['digest']}")
    print(f"  fields     {', '.join(map(_field_words, newest.schema.fields))}")
    for line in _identity_words(newest.identity):
        print(f"  {printable(line)}")
    print()
    print_table(
        ["version", "operation", "wave", "shards", "rows", *fields, "records", "rejects", ""],
        [_cells(step, fields) for step in history],
    )
    return 0


def _state(history: Sequence[Step]) -> str:
    """Whether a cache is complete, or was."""
    if history[-1].commit.finished:
        return "finished"
    before = [step.commit.version for step in history if step.commit.finished]
    return "not finished" + (f", reopened since it was at version {before[-1]}" if before else "")


def _cells(step: Step, fields: Sequence[str]) -> list[Any]:
    commit = step.commit
    task = commit.task
    return [
        commit.version,
        commit.operation,
        f"{task['wave'] + 1} of {task['waves']}" if {"wave", "waves"} <= set(task) else "",
        step.shards,
        step.rows,
        *(step.elements.get(f, 0) for f in fields),
        commit.records,
        sum(commit.rejects.values()),
        versions.remarks(step),
    ]


def _field_words(field: Field) -> str:
    if field.text:
        return f"{field.name} text"
    words = [field.name, field.dtype]
    if field.shape:
        words.append("x".join(map(str, field.shape)))
    if field.ragged:
        words.append(f"ragged like {field.like}" if field.like else "ragged")
    return " ".join(words)


def _identity_words(identity: Mapping[str, Any]) -> list[str]:
    """How rows are made from sources, as far as this version of Forebay knows the words."""
    lines = []
    tokenizer = identity.get("tokenizer")
    if isinstance(tokenizer, dict):
        parts = [f"tokenizer  content {tokenizer.get('content')}"]
        if "vocabulary" in tokenizer:
            vocabulary = counted(tokenizer["vocabulary"], "token")
            parts.append(f"{vocabulary} up to id {tokenizer.get('largest_id', 0):,}")
        edges = tokenizer.get("edges") or {}
        for edge in ("bos", "eos"):
            token = edges.get(edge)
            parts.append(
                f"no {edge}" if token is None else f"{edge} {token!r} (id {edges[edge + '_id']})"
            )
        lines.append(", ".join(parts))
    engines = identity.get("engines")
    if isinstance(engines, dict) and engines:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(engines.items()))
        lines.append(f"engines    {versions}")
    return lines


# head ---------------------------------------------------------------------------------------------


def _head(options: argparse.Namespace) -> int:
    cache = Cache(options.cache, options.version)
    decode = _decoder(cache)
    for row in _there(cache, options.row, options.n):
        columns = cache.take([row])
        place = cache.provenance([row])[0]
        print(f"row {row}  {printable(place.source)}:{place.position}")
        width = max(len(field.name) for field in cache.schema.fields)
        for field in cache.schema.fields:
            decoder = decode if field.name == "tokens" else None
            print(_indented(field.name.ljust(width), _shown(field, columns, decoder, options.full)))
    return 0


def _there(cache: Cache, asked: int | None, count: int) -> list[int]:
    """The indices of some rows that are there, from the one asked for on, or from the first.

    Raises:
        IndexError: the one asked for is outside.
        RowDeleted: it was deleted.
    """
    total = len(cache)
    first = 0 if asked is None else asked + total if asked < 0 else asked
    if not 0 <= first < max(1, total):
        raise IndexError(f"row {asked} is outside the {counted(total, 'row')}")
    live = cache.live
    if live is None:
        return list(range(first, min(total, first + count)))
    rank = int(live.ranks(np.array([first]))[0])
    if asked is not None and not live.contains(np.array([first]))[0]:
        beside = [at for at in (rank - 1, rank) if 0 <= at < live.count]
        near = " and ".join(f"--row {row}" for row in live.rows(np.array(beside, np.int64)))
        raise RowDeleted(
            f"row {first} was deleted before version {cache.version}. "
            + (f"Next to it is {near}" if near else "No row is left")
            + f"; an older version (--version, see forebay log {cache.url}) may have it"
        )
    if live.count == 0:
        _complain(f"no row is left: {counted(total, 'row')} of {cache.url} were deleted")
    return [int(row) for row in live.rows(np.arange(rank, min(live.count, rank + count)))]


def _decoder(cache: Cache) -> Callable[[Sequence[int]], str] | None:
    """Ids to text by the tokenizer that a cache carries; None, and why, where that cannot be."""
    files = cache.snapshot.commit.identity.get("files") or {}
    key = next((key for key in files if key.endswith("/tokenizer.json")), None)
    if key is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        _complain("showing ids: to see text, install what decodes them: pip install tokenizers")
        return None
    data = cache.storage.read(key)
    if data is None:
        _complain(f"showing ids: {cache.storage.where(key)} is missing")
        return None
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # tokenizers raises Exception itself
        _complain(f"showing ids: {cache.storage.where(key)} is not understood: {error}")
        return None
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _shown(
    field: Field,
    columns: Mapping[str, np.ndarray | Ragged],
    decode: Callable[[Sequence[int]], str] | None,
    full: bool,
) -> str:
    """The value of a field in the one row of the columns, as text that a terminal can show."""
    values = columns[field.name][0]
    if field.text:
        return _shortened(values.tobytes().decode("utf-8", "backslashreplace"), full)
    if decode is not None:
        some = values if full else values[:IDS_DECODED]
        text = _shortened(decode(some.tolist()), full, more=len(some) < len(values))
        return f"{counted(len(values), 'id')}: {text}"
    if np.ndim(values) == 0:
        return str(values)
    size = values.size if full else VALUES_SHOWN
    shown = np.array2string(
        values, threshold=size, edgeitems=VALUES_SHOWN // 3, max_line_width=90, separator=" "
    )
    return f"{counted(len(values), 'value')}: {shown}" if field.ragged else shown


def _shortened(text: str, full: bool, more: bool = False) -> str:
    if full or len(text) <= TEXT_SHOWN:
        return printable(text) + (" ... (more with --full)" if more else "")
    rest = "more" if more else f"{len(text) - TEXT_SHOWN:,} more characters"
    return f"{printable(text[:TEXT_SHOWN])} ... ({rest} with --full)"


def _indented(name: str, text: str) -> str:
    margin = " " * (len(name) + 4)
    return f"  {name}  " + ("\n" + margin).join(text.split("\n"))


# verify -------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    storage: Storage = options.cache
    problems = collected = 0
    with _Meter() as meter:

        def show(done: Progress) -> None:
            nonlocal collected
            collected = done.collected
            meter.show(
                f"{done.shards:,} of {counted(done.all_shards, 'shard')}, "
                f"{done.rows:,} of {counted(done.all_rows, 'row')}, {counted(problems, 'problem')}"
            )

        for problem in verify(storage, options.version, show):
            problems += 1
            meter.clear()
            print(printable(str(problem)), flush=True)
    if problems:
        print(f"{counted(problems, 'problem')} in {printable(storage.url)}")
        return 1
    cache = Cache(storage, options.version)
    shards = counted(len(cache.snapshot.entries), "shard")
    rows = cache.snapshot.commit.totals["rows"]
    print(
        f"{printable(storage.url)} version {cache.version} is sound: "
        f"{counted(rows, 'row')} in {shards}, content {cache.snapshot.digest}"
    )
    if collected:
        print(f"not checked: {counted(collected, 'shard')} of older versions that a gc gave up")
    remains = garbage(storage, options.version)
    if remains:
        print(f"{counted(remains, 'attempt')} named by no version: forebay gc deletes what is old")
    if options.against is None:
        return 0
    other = Cache(options.against)
    differs = difference(cache, other)
    name = f"{printable(other.storage.url)} version {other.version}"
    print(
        f"its rows are those of {name}"
        if differs is None
        else f"its rows are not those of {name}: {printable(differs)}"
    )
    return 0 if differs is None else 1


class _Meter:
    """One line of progress on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._next = time.monotonic() + 0.5
        self._shown = False

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, line: str) -> None:
        if self._on and time.monotonic() >= self._next:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._next = time.monotonic() + 0.2
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False


# stats --------------------------------------------------------------------------------------------


def _stats(options: argparse.Namespace) -> int:
    with _Meter() as meter:
        found = statistics(
            options.cache,
            options.version,
            quick=options.quick,
            progress=lambda done, total: meter.show(f"{done:,} of {counted(total, 'shard')}"),
        )
    if options.json:
        print_json(found.to_json())
        return 0
    name = found.field or "values"
    print(f"{printable(found.url)} version {found.version}")
    deleted = f"; {found.deleted:,} more were deleted" if found.deleted else ""
    print(f"  rows       {found.rows:,}, {found.empty:,} of them empty{deleted}")
    if found.field is not None:
        between = "" if found.smallest is None else f", from {found.smallest} to {found.largest}"
        print(f"  {name:<10} {found.tokens:,}{between}")
        print(f"  lengths    {_length_words(found)}")
    tally = "".join(f", {count:,} {what}" for what, count in found.counts.items())
    print(f"  records    {found.records:,}{tally}")
    print(f"  rejects    {sum(reject.count for reject in found.rejects):,}")
    for reject in found.rejects:
        print(f"    {reject.count:,} x {printable(reject.reason)}")
        if reject.example is not None:
            print(f"      as {' '.join(printable(example(reject.example, 160)).split())}")
    if found.deletions:
        print("  (records and rejects are all that were read, also what was deleted since)")
    if found.sources is not None:
        _print_sources(found.sources, name, options.all)
    return 0


def _length_words(found: Statistics) -> str:
    if found.rows == 0:
        return "none"
    if found.lengths is None:
        ranges = {name: histogram_range(found.histogram, share)
                  for name, share in {"min": 0, **QUANTILES, "max": 1}.items()}  # fmt: skip
        words = [
            f"{name} {low:,}" if low == high else f"{name} {low:,} to {high:,}"
            for name, (low, high) in ranges.items()
        ]
        return ", ".join([f"mean {found.tokens / found.rows:,.1f}", *words])
    measures = found.lengths.to_json() or {}
    return ", ".join(
        f"{name} {value:,.1f}" if name == "mean" else f"{name} {value:,}"
        for name, value in measures.items()
    )


def _print_sources(sources: Sources, name: str, everything: bool) -> None:
    header = ["", "rows", name, "empty"]
    groups = sources.groups()
    if len(sources.names) > SOURCES_SHOWN or 1 < len(groups.names) < len(sources.names):
        of = counted(len(sources.names), "source")
        print(f"\n{counted(len(groups.names), 'group')} of {of}")
        print_table(header, _largest(groups, everything))
    if everything or len(sources.names) <= SOURCES_SHOWN:
        print(f"\n{counted(len(sources.names), 'source')}")
        print_table(header, _largest(sources, everything))
    else:
        print("\n(every source with --all, or with --json)")


def _largest(sources: Sources, everything: bool) -> list[list[Any]]:
    """Cells of the sources in their order; of many, those with the most values, and the rest."""
    cells = [
        [printable(row["name"]), row["rows"], row["tokens"], row["empty"]]
        for row in sources.to_json()
    ]
    if everything or len(cells) <= SOURCES_SHOWN:
        return cells
    cells.sort(key=lambda cell: (-cell[2], -cell[1]))
    rest = cells[SOURCES_SHOWN:]
    sums = [sum(cell[column] for cell in rest) for column in (1, 2, 3)]
    return [*cells[:SOURCES_SHOWN], [f"({len(rest):,} more)", *sums]]


# explain ------------------------------------------------------------------------------------------


def _explain(options: argparse.Namespace) -> int:
    state = _loaded(options.state)
    near = [folder / DESCRIPTION for folder in options.state.resolve().parents[:2]]
    places = [options.description] if options.description else near
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise ForebayError(
            f"no description of the loader at {' or '.join(map(str, places))}: save what "
            "loader.description() gives once beside the states, and name it by --description"
        )
    description = _loaded(found)
    dataset = rebuild(description)
    with warnings.catch_warnings():
        # Steps are looked back at, also from the end.
        warnings.filterwarnings("ignore", "nothing is left", UserWarning)
        try:
            loader = _loader(dataset, state, description)
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatch(
                f"{options.state} and {found} do not tell how batches were cut: "
                f"{type(error).__name__}: {error}"
            ) from error
    samples = loader.span(options.step)
    rows = range(len(samples)) if options.row is None else [options.row]
    epochs = dataset.trace(samples)["epoch"].tolist()
    with ThreadPoolExecutor(EXPLAINED_AT_ONCE) as pool:
        explained = pool.map(partial(loader.explain, options.step), rows)
        for row, origins in zip(rows, explained, strict=True):
            sample, epoch = samples[row], epochs[row]
            if options.json:
                place = {"step": options.step, "row": row, "sample": sample, "epoch": epoch}
                print_json({**place, "origins": [asdict(origin) for origin in origins]})
                continue
            print(f"row {row}  sample {sample}, epoch {epoch}")
            for origin in origins:
                through = "".join(f"{name}, " for name in origin.through)
                place_in_source = f"{origin.source}:{origin.position}"
                print(f"  {printable(place_in_source)}  ({printable(through)}row {origin.row})")
    return 0


def _loaded(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ForebayError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise StateMismatch(f"{path} holds {type(value).__name__}, expected an object of JSON")
    return value


def _loader(dataset: Dataset, state: Mapping[str, Any], description: Mapping[str, Any]) -> Loader:
    """A loader for one rank in the batch sizes of a run; those of its state count most."""
    batches = description["batches"]
    options = {"last": batches["last"], "uneven": "pad", "prefetch": 0}
    loader = dataset.loader([(at, rows) for at, rows in batches["sizes"]], **options)
    loader.load_state_dict(state, description=description)
    if loader.state_dict()["batch_size"] != state["batch_size"]:
        loader = dataset.loader(state["batch_size"], start=state, **options)
    return loader


_COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
    "ls": (_ls, "Commits and totals of a cache."),
    "head": (_head, "Rows of a cache, decoded."),
    "verify": (_verify, "Check everything that is stored; exit status 1 if anything is wrong."),
    "stats": (_stats, "Rows, tokens, lengths and rejects, in all and by source."),
    "log": (versions.log, "What each version changed, newest first."),
    "diff": (versions.diff, "What changed between two versions."),
    "checkout": (versions.checkout, "How a version is opened, and whether all of it is there."),
    "pin": (versions.pin, "Keep a version, whatever gc collects."),
    "unpin": (versions.let_go, "Let go of a version that a pin keeps."),
    "explain": (_explain, "Source and record of every row in a batch of a loader."),
}
