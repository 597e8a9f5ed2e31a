"""Programs written in Go that tests start: found, made, or else the test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODULES = {
    "prism": "github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0",
    "fake-gcs-server": "github.com/fsouza/fake-gcs-server@v1.56.1",
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
}
"""What Go makes each program of, by its name."""


def program(name: str) -> str:
    """The path of a program: from PATH, of Go's own folder, or made by Go now.

    Where none is to be had, the test is skipped with the reason.
    """
    found = shutil.which(name) or str(Path.home() / "go" / "bin" / name)
    if os.access(found, os.X_OK):
        return found
    if shutil.which("go") is None:
        pytest.skip(f"{name} is not there, nor Go to make it with")
    command = ["go", "install", MODULES[name]]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode or not os.access(found, os.X_OK):
        pytest.skip(f"Go could not make {name}: {made.stderr[-200:]}")
    return found
