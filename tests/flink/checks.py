"""What must hold on every engine of the job API: a build, one whose workers die, a stream."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cachelib
from cachelib.errors import CacheNotFound
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from tests.engines.commands import SPLIT, check_same, manifests, output_of, run, start
from tests.flink import templates
from tests.flink.services import Endpoint
from tests.pipelines.conftest import sentences, write_jsonl

SECONDS = 120
"""In which what is waited for must have come about."""

FILES, ROWS = 12, 200

PROGRAM = (sys.executable, "-m", "pipelines.entry")


def submission(folder: Path, tokenizer: str, to: Path, options: Sequence[str]) -> list[str]:
    """The submission of the templates, with a configuration of this test."""
    config = to.parent / f"{to.name}.yaml"
    config.write_text(
        f"inputs: {folder}\ntokenizer: {tokenizer}\nto: {to}\nkeep: {{id: str}}\n"
        f"split_bytes: {SPLIT}\nfinish: true\n"
    )
    return ours("submit", config, options)


def ours(container: str, config: Path, options: Sequence[str]) -> list[str]:
    """A container's command, run by this interpreter."""
    program, command, _ = templates.command(container)[:3]
    assert program == "forebay"
    return [*PROGRAM, command, str(config), *options]


def is_finished(to: Path) -> bool:
    ledger = Ledger(Storage.at(to))
    head = ledger.head()
    return head is not None and ledger.commit(head).finished


def wait_until(true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.05)


def submit(arguments: Sequence[str]) -> None:
    status, output = run(arguments)
    assert status == 0, output


def check_batch(endpoint: Endpoint, folder: Path, tokenizer: str, to: Path, local: Path) -> None:
    """A build that is submitted goes on without us, and gives what a local one gives."""
    submit(submission(folder, tokenizer, to, endpoint.options))
    wait_until(lambda: is_finished(to), "the cache is complete")
    check_same(to, local)


def check_failures(
    endpoint: Endpoint, folder: Path, tokenizer: str, to: Path, local: Path, kill: int = 2
) -> None:
    """Workers are killed while they write; what they had published is kept as it is."""
    arguments = submission(folder, tokenizer, to, endpoint.options)
    kept: dict[str, bytes] = {}
    for _ in range(kill):
        if not (kept and endpoint.restarts):
            submit(arguments)
        goal = len(manifests(to)) + 3
        wait_until(lambda goal=goal: len(manifests(to)) >= goal, "parts are published")  # type: ignore[misc]
        assert not is_finished(to), "there was nothing left to kill: make the corpus larger"
        kept |= manifests(to)
        endpoint.kill_workers()
    if not endpoint.restarts:
        submit(arguments)
    wait_until(lambda: is_finished(to), "the cache is complete")
    assert kept.items() <= manifests(to).items()
    check_same(to, local)


def check_stream(endpoint: Endpoint, tokenizer: str, place: Path) -> None:
    """Files arrive for some seconds while workers may die; each row is there once."""
    folder, to = place / "in", place / "cache"
    folder.mkdir()
    config = place / "stream.yaml"
    config.write_text(
        f"inputs: {folder}\ntokenizer: {tokenizer}\nto: {to}\nkeep: {{id: str}}\n"
        "settle: 0\nseal_after: 2\n"
    )
    stream = start(ours("stream", config, endpoint.options))
    try:
        for number in range(FILES):
            draft = folder / f"{number:02d}.tmp"
            write_jsonl(draft, sentences(ROWS, number), ROWS * number)
            draft.rename(folder / f"{number:02d}.jsonl")
            if endpoint.restarts and number == FILES // 2:
                endpoint.kill_workers()
            time.sleep(0.3)
        wait_until(lambda: rows(to) >= FILES * ROWS or stream.poll() is not None, "all rows")
        stream.send_signal(signal.SIGTERM)
        output = output_of(stream)
    finally:
        stream.kill()
    assert stream.returncode == 0, output
    column = cachelib.open(to).take(range(rows(to)))["id"]
    assert sorted(bytes(value).decode() for value in column) == sorted(
        f"r{number}" for number in range(FILES * ROWS)
    )


def rows(to: Path) -> int:
    with contextlib.suppress(CacheNotFound):
        return len(cachelib.open(to, partial=True))
    return 0
