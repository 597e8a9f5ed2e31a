"""Order: in which order the rows of a plan are stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cachelib.format.schema import Schema

TOKENS = "tokens"
"""What `by(tokens)` orders by: the number of a row's tokens."""

EXPECTED = "source, shuffle(SEED) with a seed from 0 to 2**64 - 1, or by(FIELD)"


@dataclass(frozen=True)
class Order:
    """An order of rows; rows that are alike in it are ordered by source name and position.

    Attributes:
        kind: "source": as sources and their records come; "shuffle": by a keyed hash of source name
            and position; "by": by a field, ascending.
        seed: of a shuffle, from 0 to 2**64 - 1.
        field: a kept field, or `TOKENS`; "" for other kinds.
    """

    kind: Literal["source", "shuffle", "by"] = "source"
    seed: int = 0
    field: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "source":
                return "source"
            case "shuffle":
                return f"shuffle({self.seed})"
            case "by":
                return f"by({self.field})"

    @property
    def sorts(self) -> bool:
        """Whether rows are stored in another order than they are read."""
        return self.kind != "source"

    def check(self, schema: Schema) -> None:
        """Refuse a field that rows cannot be ordered by.

        Raises:
            ValueError: it is not in the schema, or has a shape.
        """
        if self.kind != "by" or self.field == TOKENS:
            return
        if self.field not in schema.names:
            kept = ", ".join(name for name in schema.names if name != TOKENS) or "none"
            raise ValueError(f"field {self.field!r} is not kept; fields to order by: tokens (the "
                             f"number of tokens), and the kept ones: {kept}")  # fmt: skip
        field = schema[self.field]
        if field.shape or (field.ragged and not field.text):
            raise ValueError(f"field {self.field!r} is neither a number nor text")


SOURCE = Order()


def parse_order(text: str) -> Order:
    """The order that a text means, as `str` writes it.

    Raises:
        ValueError: it means none.
    """
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    kind, inside = match.groups() if match else (None, None)
    inside = None if inside is None else inside.strip()
    if kind == "source" and inside is None:
        return SOURCE
    if kind == "shuffle" and inside and re.fullmatch("[0-9]{1,20}", inside):
        seed = int(inside)
        if seed < 1 << 64:
            return Order("shuffle", seed=seed)
    if kind == "by" and inside:
        return Order("by", field=inside)
    raise ValueError(f"expected {EXPECTED}")
