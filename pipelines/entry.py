"""The `forebay` command: hands each subcommand to the package that has it.

It lies outside `cachelib`, since PyPI has another package of that name, which may have overwritten
ours; then the command says so.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

_MODULES = {
    "build": "pipelines.cli",
    "plan": "pipelines.cli",
    "submit": "pipelines.cli",
    "watch": "pipelines.growing",
    "stream": "pipelines.growing",
    "compact": "pipelines.maintenance.cli",
    "delete": "pipelines.maintenance.cli",
    "gc": "pipelines.maintenance.cli",
    "ls": "cachelib.commands.cli",
    "head": "cachelib.commands.cli",
    "verify": "cachelib.commands.cli",
    "stats": "cachelib.commands.cli",
    "explain": "cachelib.commands.cli",
    "log": "cachelib.commands.cli",
    "diff": "cachelib.commands.cli",
    "checkout": "cachelib.commands.cli",
    "pin": "cachelib.commands.cli",
    "unpin": "cachelib.commands.cli",
}

GARBAGE_AFTER = 50_000
"""New objects after which Python looks for garbage."""

_USAGE = """usage: forebay COMMAND ...

  build    bring a cache up to date with its sources
  plan     show what build would do
  submit   hand a build to an engine, and return while it is carried out
  watch    take files in as they come, by one batch run after another
  stream   take files in as they come, by an unbounded pipeline
  compact  pack small shards into larger ones, and drop the bytes of deleted rows
  delete   delete rows by source, by row or by what their columns hold
  gc       delete what no version needs that is kept, and what killed writers left
  ls       commits and totals of a cache
  log      history of a cache: what each version changed
  diff     what changed between two versions
  checkout how to open an old version, and whether all of it is still there
  pin      keep a version, whatever is collected
  unpin    let go of one
  head     decoded rows
  verify   check everything that is stored
  stats    rows, tokens, lengths and rejects by source
  explain  source and record of every row in a batch of a loader

forebay COMMAND --help tells more, forebay --version the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    # A closed stream is None; what is printed then goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"forebay: {error}", file=sys.stderr)
        return 1
    return status


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if given else 2
    if given[0] == "--version":
        from importlib import metadata

        print(f"forebay {metadata.version('forebay')}")
        return 0
    if given[0] not in _MODULES:
        print(f"forebay: no command {given[0]!r}\n{_USAGE}", file=sys.stderr)
        return 2
    wrong = overwritten()
    if wrong:
        print(f"forebay: {wrong}", file=sys.stderr)
        return 1
    try:
        module = importlib.import_module(_MODULES[given[0]])
    except ModuleNotFoundError as error:
        print(
            f"forebay: {given[0]} needs {error.name}: pip install 'forebay[pipelines]'",
            file=sys.stderr,
        )
        return 1
    with warnings.catch_warnings():
        warnings.showwarning = partial(_warn, warnings.showwarning)
        status: int = module.main(given)
    return status


def _warn(others: Callable[..., None], warning: Warning | str, *rest: Any) -> None:
    """Say that a store is slow, over a line of progress if there is one; leave other warnings."""
    from cachelib.errors import StoreSlow

    if not isinstance(warning, StoreSlow):
        others(warning, *rest)
        return
    with suppress(OSError):  # the terminal may be what has gone
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{clear}forebay: {warning}", file=sys.stderr, flush=True)


def command() -> NoReturn:
    """The installed command: `main`, and then an end at once.

    Taking down an interpreter with Beam and TensorStore in it takes half a second, and all that
    counts is stored by then. Imports make a million objects that stay: looking for garbage among
    them after every 700 new ones, as is usual, takes as long again.
    """
    gc.set_threshold(GARBAGE_AFTER)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)
    status = main()
    sys.stderr.flush()
    os._exit(status)


def _stop(signum: int, frame: object) -> NoReturn:
    """Ends at once: an interrupted import would look like a broken installation."""
    os.write(2, b"forebay: stopped\n")
    os._exit(128 + signum)


def overwritten() -> str | None:
    """What to do where another package has taken the place of our `cachelib`, else None."""
    try:
        import cachelib
    except ImportError as error:
        return f"cachelib cannot be imported ({error}): pip install --force-reinstall forebay"
    if hasattr(cachelib, "Cache") and hasattr(cachelib, "LedgerConflict"):
        return None
    return (
        f"{cachelib.__file__} is another package called cachelib, which some Flask extensions "
        "bring along. Uninstall it (pip uninstall cachelib) and install Forebay again (pip install "
        "--force-reinstall --no-deps forebay), or use an environment of its own"
    )


if __name__ == "__main__":
    command()
