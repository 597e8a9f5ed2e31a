"""What templates/flink says, read from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "templates" / "flink"

MANIFESTS = (
    "storage.yaml", "jobmanager.yaml", "taskmanager.yaml", "jobserver.yaml",
    "submit.yaml", "stream.yaml",
)  # fmt: skip


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text("utf-8"))


def objects() -> list[dict[str, Any]]:
    """Everything that the manifests describe."""
    texts = ((FOLDER / name).read_text("utf-8") for name in MANIFESTS)
    return [each for text in texts for each in yaml.safe_load_all(text)]


def containers() -> dict[str, dict[str, Any]]:
    """The containers of all pods by their names."""
    return {
        container["name"]: container
        for each in objects()
        if "template" in each["spec"]
        for container in each["spec"]["template"]["spec"]["containers"]
    }


def command(container: str) -> list[str]:
    """What runs in a container of Forebay's image."""
    args: list[str] = containers()[container]["args"]
    return args


def engine(container: str) -> list[str]:
    """The options after a command and its configuration: where it runs."""
    return command(container)[3:]
