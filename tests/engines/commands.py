"""`forebay build` and `stream` on an engine, as users start them, and what they have published."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cachelib
from cachelib.format.storage import Storage
from cachelib.verification import verify

ROOT = Path(__file__).parents[2]
SPLIT = 96 << 10

LONGEST = 90
"""Seconds after which a command counts as hanging."""


def environment() -> dict[str, str]:
    """That of a process which runs the code that is tested, wherever another copy is installed.

    Beam's worker pool starts `python`, so that of the tests comes first.
    """
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join(programs),
    }


def command(
    folder: Path, tokenizer: str, to: Path, engine: Sequence[str], order: str = "source"
) -> list[str]:
    options = ["--tokenizer", tokenizer, "--to", str(to), "--keep", "id", "--order", order]
    return [sys.executable, "-m", "pipelines.entry", "build", str(folder), *options,
            "--split-bytes", str(SPLIT), *engine]  # fmt: skip


def streaming(folder: Path, tokenizer: str, to: Path, engine: Sequence[str]) -> list[str]:
    options = ["--tokenizer", tokenizer, "--to", str(to), "--settle", "0", "--every", "1"]
    return [sys.executable, "-m", "pipelines.entry", "stream", str(folder), *options, *engine]


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env=environment(),
    )  # fmt: skip


def output_of(process: subprocess.Popen[str]) -> str:
    """All that a command prints, once it has ended; it is killed where it hangs."""
    try:
        return process.communicate(timeout=LONGEST)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def run(arguments: Sequence[str]) -> tuple[int, str]:
    """Status and output of a command."""
    process = start(arguments)
    output = output_of(process)
    return process.returncode, output


def fails(process: subprocess.Popen[str], *words: str) -> None:
    """See that a command ends with an error in words, and says how to go on."""
    output = output_of(process)
    assert process.returncode == 1, output
    assert "Traceback" not in output, output
    for word in (*words, "the same command goes on from here"):
        assert word in output, output


def manifests(to: Path) -> dict[str, bytes]:
    """The manifests of a cache by their paths, those of runs included."""
    found = {}
    for folder, _, files in os.walk(to):
        if "manifest.json" in files:
            path = Path(folder, "manifest.json")
            found[str(path)] = path.read_bytes()
    return found


def wait_for(process: subprocess.Popen[str], to: Path, more: int) -> bool:
    """Wait until so many more parts are published; False if the command ended before."""
    goal = len(manifests(to)) + more
    while process.poll() is None:
        if len(manifests(to)) >= goal:
            return True
        time.sleep(0.01)
    return False


def check_same(to: Path, local: Path) -> None:
    """See that a cache has the rows of another one, and that all that is stored is right."""
    assert cachelib.open(to).snapshot.digest == cachelib.open(local).snapshot.digest
    assert not list(verify(Storage.at(to)))
