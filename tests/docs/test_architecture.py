"""docs/architecture.md lists every file, and imports go the way it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def listed(package: str) -> list[str]:
    """The files and folders that the document lists for a package, in its order."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = text.partition(f"| `{package}/` | decides |\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()]
    return [name for cell in cells for name in re.findall(r"`([\w.]+)/?`", cell)]


def present(package: str) -> set[str]:
    """The modules of a package as files, its packages as folders."""
    files = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    return files | {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


def imported(path: Path, package: str) -> Iterator[str]:
    """The files and folders of a package that a module imports anything from."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            part = rest.partition(".")[0]
            if first == package and part:
                yield part if (ROOT / package / part).is_dir() else f"{part}.py"


@pytest.mark.parametrize("package", ["pipelines", "cachelib"])
def test_every_file_is_listed_and_imports_go_down(package: str) -> None:
    order = {name: place for place, name in enumerate(listed(package))}
    assert set(order) == present(package)
    for path in (ROOT / package).rglob("*.py"):
        inside = path.relative_to(ROOT / package)
        if inside.name == "__init__.py" and len(inside.parts) == 1:
            continue
        here = inside.parts[0]
        up = {n for n in imported(path, package) if n in order and order[n] < order[here]}
        assert not up, f"{path} imports {up}, which docs/architecture.md lists before it"


def test_cachelib_never_imports_pipelines() -> None:
    for path in (ROOT / "cachelib").rglob("*.py"):
        assert not list(imported(path, "pipelines")), path
