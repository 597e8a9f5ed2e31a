"""The commands that take in files as they come: watch and stream."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from cachelib.words import counted, legible
from pipelines.cli import naming_misspelt, options_of, parser_of, unknown
from pipelines.config import (
    NOT_GROWING,
    BuildConfig,
    GrowthConfig,
    growing_config,
)
from pipelines.ending import descendants, failed, handling, silence
from pipelines.progress import Terminal
from pipelines.tally import Tally
from pipelines.watching import watch

FIELDS = {
    **{name: f for name, f in BuildConfig.model_fields.items() if name not in NOT_GROWING},
    **GrowthConfig.model_fields,
}
"""Every key of a cache that grows."""

_STOPPING = {
    "watch": "stopping when what is in work is committed",
    "stream": "stopping; what is in work is cancelled, and taken in by the next stream",
}


def main(arguments: Sequence[str]) -> int:
    """Run ``watch`` or ``stream``; returns the exit status."""
    command = arguments[0]
    parser = parser_of(command, FIELDS)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    known, rest = parser.parse_known_args(arguments[1:])
    if not known.verbose:
        silence()
    screen = Terminal()
    stopped = threading.Event()

    def tell(line: str) -> None:
        screen.end()
        if not known.quiet:
            print(time.strftime("%H:%M:%S"), legible(line), flush=True)

    def stop(signum: int, frame: object) -> None:
        if stopped.is_set():
            _end_at_once(signum)
        stopped.set()
        with suppress(OSError):  # the terminal may be what has gone
            os.write(2, f"\nforebay: {_STOPPING[command]}; again: at once\n".encode())

    try:
        with naming_misspelt(parser, rest):
            config, growth = growing_config(*options_of(known, FIELDS))
        if rest and command == "watch" and config.runner in ("embedded", "bundles"):
            parser.error(unknown(parser, rest))
        beam_arguments = [r for r in rest if r != "--"]
        with handling(stop):
            if command == "stream":
                from pipelines.streams.launcher import stream  # it imports Beam

                seen = stream(
                    config, growth, stopped=stopped, tell=tell, beam_arguments=beam_arguments
                )
            else:
                # A log would get many lines; each batch has one in the end anyway.
                show = screen.show if screen.live and not known.quiet else None
                seen = watch(
                    config,
                    growth,
                    stopped=stopped,
                    tell=tell,
                    show=show,
                    beam_arguments=beam_arguments,
                )
    except BrokenPipeError:
        raise
    except Exception as error:
        screen.end()
        return failed(error, known.verbose)
    screen.end()
    _print_seen(seen, known.json_summary)
    return 0


def _end_at_once(signum: int) -> None:
    """End this process and its workers: nothing that is committed can be lost."""
    for child in descendants():
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
    os._exit(128 + signum)


def _print_seen(seen: Tally, as_json: bool) -> None:
    if as_json:
        print(json.dumps(seen.to_json()))
        return
    _print_taken(seen)
    print(f"  changed      {counted(len(seen.changed), 'file')} left out")
    print(f"  vanished     {counted(seen.vanished, 'file')}")
    print(f"  set aside    {counted(len(seen.damaged), 'file')}")
    for name, fault in sorted(seen.damaged.items()):
        print(f"    {name}: {fault}")
    if seen.holdout is not None:
        _print_taken(seen.holdout)


def _print_taken(seen: Tally) -> None:
    """What a cache holds, and what was taken into it."""
    if seen.version < 0:
        print(f"{seen.url}: no cache was made, since nothing was taken in")
    else:
        print(f"{seen.url} version {seen.version}: {counted(seen.rows, 'row')}")
    print(
        f"  taken in     {counted(seen.files, 'file')}, {counted(seen.records, 'record')}: "
        f"{counted(seen.new_rows, 'row')} and {counted(seen.new_tokens, 'token')} in "
        f"{counted(seen.commits, 'commit')}"
    )
    rejected = ", ".join(f"{count:,} x {reason}" for reason, count in seen.rejects.items())
    print(f"  rejects      {sum(seen.rejects.values()):,}{f': {rejected}' if rejected else ''}")
