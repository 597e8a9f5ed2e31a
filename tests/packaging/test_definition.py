"""What the package promises about itself: its parts, its pins, and what importing it costs."""

import ast
import importlib.metadata
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
NOT_ON_IMPORT = {"cachelib.torch", "cachelib.jax", "cachelib.__main__"}  # adapters, a command
PINNED_EXTRAS = ("pipelines", "gcs", "s3")


@pytest.fixture
def definition(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of setup(), without setuptools, which an environment need not have."""
    seen: dict[str, Any] = {}
    stub = types.ModuleType("setuptools")
    stub.setup = seen.update  # type: ignore[attr-defined]
    stub.find_packages = lambda include: include  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "setuptools", stub)
    runpy.run_path(str(ROOT / "setup.py"), run_name="__main__")
    return seen


def pins() -> dict[str, str]:
    """Normalised name -> version of requirements.txt, comments left out."""
    found = {}
    for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9-]+)==([0-9a-z.+!]+)", line)
            assert match, f"not a plain pin: {line!r}"
            found[match[1]] = match[2]
    return found


def required(definition: dict[str, Any]) -> list[Requirement]:
    extras = definition["extras_require"]
    lines = [*definition["install_requires"], *(r for e in PINNED_EXTRAS for r in extras[e])]
    return [Requirement(line) for line in lines]


def test_pins_satisfy_the_definition(definition: dict[str, Any]) -> None:
    pinned = pins()
    for requirement in required(definition):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} has no pin in requirements.txt"
        assert version in requirement.specifier, f"{requirement} against the pin {version}"


def test_pins_are_complete(definition: dict[str, Any]) -> None:
    """Whatever the installed packages ask for in turn is pinned too, at a version they accept."""
    pinned = pins()
    todo = [(r.name, frozenset(r.extras)) for r in required(definition)]
    done = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that this environment lacks; the pins are the test's subject
        for requirement in map(Requirement, lines):
            wanted = [{"extra": extra} for extra in extras] or [{"extra": ""}]
            marker = requirement.marker
            if marker and not any(marker.evaluate(environment) for environment in wanted):
                continue
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"{name} needs {requirement}, which has no pin"
            assert version in requirement.specifier, f"{name} needs {requirement}, pin {version}"
            todo.append((requirement.name, frozenset(requirement.extras)))


def imported(package: str) -> dict[str, str]:
    """Top-level module -> a file of the package that imports it, anywhere in the file."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str | None] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in filter(None, names):
                found[name.partition(".")[0]] = str(path.relative_to(ROOT))
    return {name: where for name, where in found.items() if name not in sys.stdlib_module_names}


def test_what_pipelines_imports_is_declared(definition: dict[str, Any]) -> None:
    """Not merely there because some other package happens to bring it."""
    modules = {
        "apache-beam": "apache_beam", "grpcio": "grpc", "huggingface-hub": "huggingface_hub",
        "pyyaml": "yaml",
    }  # fmt: skip
    extras = definition["extras_require"]
    lines = [*definition["install_requires"], *extras["pipelines"], *extras["dask"]]
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    declared = {modules.get(name, name) for name in names} | {"cachelib", "pipelines"}
    undeclared = {n: where for n, where in imported("pipelines").items() if n not in declared}
    assert not undeclared, f"not in the pipelines extra of setup.py: {undeclared}"


def test_every_folder_of_code_is_packaged(definition: dict[str, Any]) -> None:
    """A folder without __init__.py imports here and is missing from the wheel."""
    assert definition["packages"] == ["cachelib", "cachelib.*", "pipelines", "pipelines.*"]
    for package in ("cachelib", "pipelines"):
        assert (ROOT / package / "py.typed").is_file()
        folders = {path.parent for path in (ROOT / package).rglob("*.py")}
        lacking = [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").is_file()]
        assert not lacking, f"no __init__.py in {lacking}"


def test_the_reader_imports_what_it_is_installed_with_only() -> None:
    script = f"""
import sys, google_crc32c, numpy, tensorstore, zstandard
before = set(sys.modules)
import importlib, pkgutil, cachelib
for module in pkgutil.walk_packages(cachelib.__path__, "cachelib."):
    if module.name not in {NOT_ON_IMPORT!r}:
        importlib.import_module(module.name)
added = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(added - set(sys.stdlib_module_names) - {{"cachelib", "numpy", "tensorstore"}}))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "", f"importing cachelib also imports {result.stdout.strip()}"
