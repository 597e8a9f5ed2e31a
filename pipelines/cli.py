"""The commands that fill caches: build and plan."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.fields import FieldInfo

from cachelib.words import about, counted, size
from pipelines.config import BuildConfig, ConfigError, build_config, read_yaml
from pipelines.ending import failed, handling, interrupt, silence, stop_at_once, stopped
from pipelines.launcher import Request, Summary, build, inquire
from pipelines.order.orders import TOKENS
from pipelines.order.passes import passes, range_count
from pipelines.plan import Plan
from pipelines.planning import Planned, next_plan
from pipelines.progress import Terminal
from pipelines.submission import Submitted, submit

PASSES = {1: "one pass over all rows", 2: "two passes over all rows"}

SKIPPED_SHOWN = 5
"""Files that are no sources that `plan` names, of each reason."""

BYTES_A_TOKEN_FROM = 100_000
"""New tokens from which on bytes a token are told: small shards are mostly metadata."""


def main(arguments: Sequence[str]) -> int:
    """Run ``build`` or ``plan``; returns the exit status."""
    command = arguments[0]
    parser = _parser(command)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    known, rest = parser.parse_known_args(arguments[1:])
    if not known.verbose:
        silence()
    screen = Terminal()
    try:
        with naming_misspelt(parser, rest):
            config = _config(known)
        here = config.runner in ("embedded", "bundles")
        if rest and here:
            parser.error(unknown(parser, rest))
        if command == "plan":
            requests = [inquire(config)]
            if config.holdout is not None:
                requests.append(inquire(config, requests[0].discovery, held=True))
            tell = partial(_print_plans, [(each, next_plan(each)) for each in requests])
        elif command == "submit":
            with handling(interrupt):
                submitted = submit(config, beam_arguments=[r for r in rest if r != "--"])
            tell = partial(_print_submitted, submitted, known.json_summary)
        else:
            show = None if known.quiet else screen.show
            with handling(stop_at_once(screen) if here else interrupt):
                summary = build(config, show=show, beam_arguments=[r for r in rest if r != "--"])
            tell = partial(_print_summary, summary, known.json_summary)
    except KeyboardInterrupt as stop:
        screen.end()
        return stopped(stop)
    except BrokenPipeError:
        raise
    except Exception as error:
        screen.end()
        return failed(error, known.verbose)
    screen.end()
    tell()
    return 0


def _parser(command: str) -> argparse.ArgumentParser:
    return parser_of(command, BuildConfig.model_fields)


def parser_of(command: str, fields: Mapping[str, FieldInfo]) -> argparse.ArgumentParser:
    """Options from described configurations, so that the two cannot differ."""
    parser = argparse.ArgumentParser(
        prog=f"forebay {command}",
        description="INPUTS may be one YAML file with the keys below; options outrank it.",
        allow_abbrev=False,
    )
    parser.add_argument("inputs", nargs="*", help=BuildConfig.model_fields["inputs"].description)
    for name, field in fields.items():
        if name == "inputs":
            continue
        options: dict[str, Any] = {"help": (field.description or "").replace("%", "%%")}
        if field.annotation is bool:
            options |= {"action": argparse.BooleanOptionalAction}
        elif name == "keep":
            options |= {"action": "append", "metavar": "NAME:TYPE"}
        parser.add_argument("--" + name.replace("_", "-"), default=None, **options)
    parser.add_argument("--quiet", action="store_true", help="Show no progress.")
    parser.add_argument("--verbose", action="store_true", help="Show what the engine logs.")
    if command != "plan":  # which has no summary
        parser.add_argument(
            "--json-summary", action="store_true", help="Print the summary as JSON."
        )
    return parser


@contextmanager
def naming_misspelt(parser: argparse.ArgumentParser, rest: Sequence[str]) -> Iterator[None]:
    """A ConfigError also tells of options that are almost known ones: a key may miss for them."""
    try:
        yield
    except ConfigError as error:
        if any(_close(parser, option) for option in rest):
            raise ConfigError(f"{error}\n{unknown(parser, rest)}") from None
        raise


def unknown(parser: argparse.ArgumentParser, rest: Sequence[str]) -> str:
    """That options are not known, and what may have been meant."""
    meant = [f"; did you mean {close}?" for option in rest if (close := _close(parser, option))]
    return f"unknown options {' '.join(rest)} (inputs come first){meant[0] if meant else ''}"


def _close(parser: argparse.ArgumentParser, option: str) -> str | None:
    """The option that is spelt almost like this one, if it is one."""
    if not option.startswith("--"):
        return None
    known = [name for action in parser._actions for name in action.option_strings]
    return next(iter(difflib.get_close_matches(option.split("=")[0], known, 1, 0.7)), None)


def _config(known: argparse.Namespace) -> BuildConfig:
    return build_config(*options_of(known, BuildConfig.model_fields))


def options_of(
    known: argparse.Namespace, fields: Mapping[str, FieldInfo]
) -> tuple[dict[str, Any], str]:
    """The values that a command line and the YAML file it names give, and what to call them.

    Raises:
        ConfigError: the file cannot be read, or comes with other inputs.
    """
    given = {
        name: value
        for name, value in vars(known).items()
        if name in fields and value is not None and value != []
    }
    values: dict[str, Any] = {}
    where = "options"
    inputs = given.get("inputs", [])
    if len(inputs) == 1 and inputs[0].endswith((".yaml", ".yml")):
        values = read_yaml(Path(inputs[0]))
        del given["inputs"]
        where = f"{inputs[0]} and options" if given else inputs[0]
    elif "to" not in given and (found := [i for i in inputs if i.endswith((".yaml", ".yml"))]):
        raise ConfigError(
            f"{found[0]}: a configuration comes without other inputs: name them in it, as inputs"
        )
    return {**values, **given}, where


def _print_summary(summary: Summary, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(summary)))
        return
    _print_one(summary)
    if summary.holdout is not None:
        _print_one(summary.holdout)


def _print_one(s: Summary) -> None:
    for note in s.notes:
        print(f"note: {note}")
    holds = f"{counted(s.rows, 'row')}, {counted(s.tokens, 'token')}"
    if s.records == 0:
        print(f"{s.url} is up to date: version {s.version}, {holds}")
        return
    rate = s.bytes / s.working if s.working else 0.0
    speed = (s.new_tokens - s.earlier_tokens) / s.working if s.working else 0.0
    print(f"{s.url} version {s.version}: {holds}")
    print(
        f"  this build   {counted(s.new_rows, 'row')} and {counted(s.new_tokens, 'token')} from "
        f"{counted(s.records, 'record')} in {s.seconds:.1f} s"
    )
    if s.earlier_tokens:
        print(f"               {counted(s.earlier_tokens, 'token')} written by an earlier run")
    print(f"  work         {s.working:.1f} s: {size(rate)}/s, {speed:,.0f} tokens/s")
    if s.stored_bytes is not None and s.new_tokens:
        density = f", {s.stored_bytes / s.new_tokens:.2f} bytes a token"
        told = s.new_tokens >= BYTES_A_TOKEN_FROM
        print(f"  stored       {size(s.stored_bytes)}{density if told else ''}")
    rejected = ", ".join(f"{count:,} x {reason}" for reason, count in s.rejects.items())
    print(f"  rejects      {sum(s.rejects.values()):,}{f': {rejected}' if rejected else ''}")
    tally = ", ".join(f"{count:,} {name}" for name, count in s.counts.items())
    if tally:
        print(f"  counted      {tally}")


def _print_submitted(submitted: Submitted, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(submitted)))
        return
    for note in submitted.notes:
        print(f"note: {note}")
    for url, plan in submitted.plans.items():
        print(f"submitted plan {plan} for {url}")
    if not submitted.plans:
        print("nothing is left to do")


def _print_plans(plans: Sequence[tuple[Request, Planned]]) -> None:
    for request, planned in plans:
        _print_plan(request, planned)


def _print_plan(request: Request, planned: Planned) -> None:
    sources = request.discovery.sources
    stored = size(sum(source.size for source in sources))
    print(f"cache      {request.storage.url}")
    print(f"sources    {counted(len(sources), 'file')}, {stored} stored")
    print(f"reused     {counted(planned.reused, 'file')} that the cache has already")
    for name in planned.changed[:5]:
        print(f"changed    {name}: left out")
    _print_skipped(request.discovery.skipped)
    edges = request.prepared.identity.edges
    print(
        f"tokenizer  {counted(request.prepared.identity.vocabulary, 'token')}, engine "
        f"{request.prepared.engine}, bos {edges.bos or 'none'}, eos {edges.eos or 'none'}"
    )
    for note in planned.notes:
        print(f"note       {note}")
    if planned.plan is None:
        print("work       none: the cache is up to date")
        return
    _print_work(planned.plan, planned, request.tokens_per_byte)


def _print_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """What is no source, the first of each reason by name."""
    reasons: dict[str, list[str]] = {}
    for name, why in skipped:
        reasons.setdefault(why, []).append(name)
    for why, names in sorted(reasons.items()):
        for name in names[:SKIPPED_SHOWN]:
            print(f"left out   {name}: {why}")
        if len(names) > SKIPPED_SHOWN:
            print(f"left out   {len(names) - SKIPPED_SHOWN:,} more: {why}")


def _print_work(plan: Plan, planned: Planned, tokens_per_byte: float) -> None:
    done = f"; {counted(planned.waves_done, 'wave')} of it committed"
    print(
        f"work       {counted(len(plan.splits), 'split')}, {size(plan.size)} of text, about "
        f"{about(plan.size * tokens_per_byte)} tokens"
        + (f" (a stored plan{done})" if planned.stored else "")
    )
    if plan.order.sorts:
        _print_order(plan, plan.size * tokens_per_byte)
        return
    for wave in range(plan.wave_count):
        text = size(sum(plan.splits[split].size for split in plan.wave(wave)))
        print(f"  wave {wave + 1:3d}  {counted(len(plan.wave(wave)), 'split'):>13} {text:>14}")


def _print_order(plan: Plan, tokens: float) -> None:
    """How rows get into order; from here on all is estimated from the number of tokens."""
    stored = int(tokens * np.dtype(plan.schema[TOKENS].dtype).itemsize)
    runs, ranges = len(plan.splits), range_count(stored, plan.split_bytes)
    print(
        f"order      {plan.order}: about {counted(runs, 'sorted run')}, then "
        f"{counted(ranges, 'range')} of keys ({PASSES[passes(runs, stored, plan.split_bytes)]}), "
        "one commit"
    )
