"""The tables of options in docs/, made from the models that check them.

`python -m tests.docs.options` writes them anew.
"""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from pipelines.config import BuildConfig, GrowthConfig, HoldoutConfig

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN = "<!-- options: begin (written by: python -m tests.docs.options) -->\n"
END = "<!-- options: end -->\n"

_WORDS = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    HoldoutConfig: "number, or fraction and seed",
}


GROWTH = Path(__file__).parents[2] / "docs" / "streaming.md"
GROWTH_MARKS = (
    "<!-- growth: begin (written by: python -m tests.docs.options) -->\n",
    "<!-- growth: end -->\n",
)


def table(model: type[BaseModel] = BuildConfig) -> str:
    """The table of a model, one row a key, in its order."""
    lines = ["| Key | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else _shown(name, field.default)
        kind = "size" if name.endswith("_bytes") else _kind(field.annotation)
        lines.append(f"| `{name}` | {kind} | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


def _kind(annotation: Any) -> str:
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if get_origin(annotation) is tuple:
        return "text, or a list of texts"
    if get_origin(annotation) is dict:
        return "mapping of text to text"
    if NoneType in arguments:
        (inner,) = (each for each in arguments if each is not NoneType)
        return _kind(inner)
    return _WORDS[annotation]


def _shown(name: str, value: Any) -> str:
    if value is None or value == {}:
        return "none"
    if name.endswith("_bytes"):
        return f"`{value >> 20}MB`"
    return f"`{str(value).lower()}`"


def renewed(
    document: str, model: type[BaseModel] = BuildConfig, marks: tuple[str, str] = (BEGIN, END)
) -> str:
    """A document with the table of a model between its marks."""
    begin, end = marks
    before, _, rest = document.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"the document lacks the marks {begin!r} and {end!r}")
    return before + begin + table(model) + mark + after


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text("utf-8")), "utf-8")
    grown = renewed(GROWTH.read_text("utf-8"), GrowthConfig, GROWTH_MARKS)
    GROWTH.write_text(grown, "utf-8")
