"""The commands that fill caches: build and plan."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cachelib.errors import ForebayError
from pipelines.config import BuildConfig, build_config, read_yaml
from pipelines.launcher import Planned, Request, Summary, build, inquire, next_plan
from pipelines.plan import Plan
from pipelines.progress import terminal

_STOPPED = "\nforebay: stopped. What is committed can be read; the same command goes on from here"


def _stop_at_once(signum: int, frame: object) -> None:
    """End this process: a build needs no tidying up, and Beam's takes long and complains."""
    print(_STOPPED, file=sys.stderr, flush=True)
    os._exit(130)


def main(arguments: Sequence[str]) -> int:
    """Run ``build`` or ``plan``; returns the exit status."""
    command = arguments[0]
    parser = _parser(command)
    known, rest = parser.parse_known_args(arguments[1:])
    if not known.verbose:
        # What Beam logs as errors comes with the error that is raised, too.
        logging.disable(logging.CRITICAL)
    try:
        config = _config(known)
        if rest and config.runner in ("embedded", "bundles"):
            parser.error(f"unknown options {' '.join(rest)}")
        if command == "plan":
            request = inquire(config)
            _print_plan(request, next_plan(request))
            return 0
        if config.runner in ("embedded", "bundles") and not config.processes:
            signal.signal(signal.SIGINT, _stop_at_once)
        show = None if known.quiet else terminal()
        summary = build(config, show=show, beam_arguments=[r for r in rest if r != "--"])
    except KeyboardInterrupt:
        print(_STOPPED, file=sys.stderr)
        return 130
    except ForebayError as error:
        print(f"\nforebay: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if known.verbose:
            raise
        print(f"\nforebay: the engine failed: {_last_line(error)}\n"
              "What is committed stays; the same command goes on from here. --verbose tells more",
              file=sys.stderr)  # fmt: skip
        return 1
    if not known.quiet:
        print(file=sys.stderr)
    _print_summary(summary, known.json_summary)
    return 0


def _last_line(error: Exception) -> str:
    """What an engine's error says in the end: Beam puts whole tracebacks into its messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _parser(command: str) -> argparse.ArgumentParser:
    """Options from the described configuration, so that the two cannot differ."""
    parser = argparse.ArgumentParser(
        prog=f"forebay {command}",
        description="INPUTS may be one YAML file with the keys below; options outrank it.",
        allow_abbrev=False,
    )
    parser.add_argument("inputs", nargs="*", help=BuildConfig.model_fields["inputs"].description)
    for name, field in BuildConfig.model_fields.items():
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
    parser.add_argument("--json-summary", action="store_true", help="Print the summary as JSON.")
    return parser


def _config(known: argparse.Namespace) -> BuildConfig:
    given = {
        name: value
        for name, value in vars(known).items()
        if name in BuildConfig.model_fields and value is not None and value != []
    }
    values: dict[str, Any] = {}
    where = "options"
    inputs = given.get("inputs", [])
    if len(inputs) == 1 and inputs[0].endswith((".yaml", ".yml")):
        where = inputs[0]
        values = read_yaml(Path(inputs[0]))
        del given["inputs"]
    return build_config({**values, **given}, where)


def _print_summary(summary: Summary, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(summary)))
        return
    s = summary
    for note in s.notes:
        print(f"note: {note}")
    if s.records == 0:
        print(f"{s.url} is up to date: version {s.version}, {s.rows:,} rows, {s.tokens:,} tokens")
        return
    rate = s.bytes / s.working / 1e6 if s.working else 0.0
    speed = s.new_tokens / s.working if s.working else 0.0
    print(f"{s.url} version {s.version}: {s.rows:,} rows, {s.tokens:,} tokens")
    print(
        f"  this build   {s.new_rows:,} rows and {s.new_tokens:,} tokens from {s.records:,} records"
        f" in {s.seconds:.1f} s ({s.working:.1f} s of work: {rate:.1f} MB/s, {speed:,.0f} tokens/s)"
    )
    if s.stored_bytes is not None and s.new_tokens:
        print(f"  stored       {s.stored_bytes / 1e6:,.1f} MB, "
              f"{s.stored_bytes / s.new_tokens:.2f} bytes a token")  # fmt: skip
    rejected = ", ".join(f"{count:,} x {reason}" for reason, count in s.rejects.items())
    print(f"  rejects      {sum(s.rejects.values()):,}{f': {rejected}' if rejected else ''}")
    counted = ", ".join(f"{count:,} {name}" for name, count in s.counts.items())
    if counted:
        print(f"  counted      {counted}")


def _print_plan(request: Request, planned: Planned) -> None:
    sources = request.discovery.sources
    print(f"cache      {request.storage.url}")
    print(f"sources    {len(sources):,} files, {sum(s.size for s in sources) / 1e6:,.1f} MB stored")
    print(f"reused     {planned.reused:,} files are in the cache already")
    for name in planned.changed[:5]:
        print(f"changed    {name}: left out")
    for name, why in request.discovery.skipped[:5]:
        print(f"left out   {name}: {why}")
    if len(request.discovery.skipped) > 5:
        print(f"left out   {len(request.discovery.skipped) - 5:,} more")
    edges = request.prepared.identity.edges
    print(
        f"tokenizer  {request.prepared.identity.vocabulary:,} tokens, engine "
        f"{request.prepared.engine}, bos {edges.bos or 'none'}, eos {edges.eos or 'none'}"
    )
    for note in planned.notes:
        print(f"note       {note}")
    if planned.plan is None:
        print("work       none: the cache is up to date")
        return
    _print_work(planned.plan, planned, request.tokens_per_byte)


def _print_work(plan: Plan, planned: Planned, tokens_per_byte: float) -> None:
    print(
        f"work       {len(plan.splits):,} splits, {plan.size / 1e6:,.1f} MB of text, about "
        f"{plan.size * tokens_per_byte / 1e6:,.1f} million tokens"
        + (f" (a stored plan; {planned.waves_done} waves of it are done)" if planned.stored else "")
    )
    for wave in range(plan.wave_count):
        size = sum(plan.splits[split].size for split in plan.wave(wave))
        print(f"  wave {wave + 1:3d}  {len(plan.wave(wave)):6,} splits {size / 1e6:12,.1f} MB")
