"""What a run costs the machine, as the scripts here report it."""

import os
from pathlib import Path

import psutil


def busy_seconds() -> float:
    """CPU seconds that all of the machine's processes have used."""
    t = psutil.cpu_times()
    return float(t.user + t.nice + t.system + getattr(t, "steal", 0.0))


def children_seconds() -> float:
    t = os.times()
    return t.children_user + t.children_system


def size_of(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
