"""Kept fields: values as they are found to the declared types, or the reason why not.

Nothing is guessed and nothing is lost: no number from a string of JSON, no string from a number,
no fraction dropped, no value out of range. Floats are rounded to the nearest of their type.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources import unicode
from pipelines.sources.records import KEEP_TYPES

INT_RANGES: Final = {"int32": 1 << 31, "int64": 1 << 63}
FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity)", re.I
)
BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}


class Unfit(Exception):
    """A value is not of the declared type; the message is what it is instead."""


class _Missing:
    pass


MISSING: Final = _Missing()
"""Stands for the value of a field that a record does not have."""


def describe(value: Any) -> str:
    """What a value of JSON is: "null", "a number", ..."""
    if value is MISSING:
        return "missing"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, dict) else "a list"


def from_json(value: Any, kind: str) -> Any:
    """A value of JSON as the declared type. Raises Unfit."""
    if kind == "str":
        if isinstance(value, str):
            return value
    elif kind == "bool":
        if isinstance(value, bool):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return _int(value, kind) if kind in INT_RANGES else _float(value, kind)
    raise Unfit(describe(value))


def from_cell(cell: str, kind: str) -> Any:
    """A cell of CSV as the declared type, parsed from its text. Raises Unfit."""
    if kind == "str":
        return cell
    cell = cell.strip()
    if not cell:
        raise Unfit("empty")
    if kind == "bool":
        if (known := BOOLEANS.get(cell.lower())) is not None:
            return known
    elif kind in INT_RANGES:
        if WHOLE_NUMBER.fullmatch(cell):
            # No number of the type has so many digits, and Python refuses to parse very long ones.
            return _int(int(cell) if len(cell) < 4000 else math.inf, kind)
    elif NUMBER.fullmatch(cell):
        value = float(cell)
        if math.isinf(value) and any(digit.isdigit() for digit in cell):
            raise Unfit("out of range")
        return _float(value, kind)
    raise Unfit("not a boolean" if kind == "bool" else "not a number")


def _int(value: float, kind: str) -> int:
    if isinstance(value, float):
        if math.isnan(value):
            raise Unfit("not a whole number")
        if math.isinf(value):
            raise Unfit("out of range")
        if not value.is_integer():
            raise Unfit("not a whole number")
        value = int(value)
    if not -INT_RANGES[kind] <= value < INT_RANGES[kind]:
        raise Unfit("out of range")
    return value


def _float(value: float, kind: str) -> float:
    try:
        value = float(value)
    except OverflowError as error:
        raise Unfit("out of range") from error
    if kind == "float32" and math.isfinite(value):
        with np.errstate(over="ignore"):
            if np.isinf(np.float32(value)):
                raise Unfit("out of range")
    return value


def is_text_type(kind: pa.DataType) -> bool:
    """Whether a column of that Arrow type holds strings, or bytes that may be text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def fits(found: pa.DataType, kind: str) -> bool:
    """Whether a column of that Arrow type can hold values of the declared type."""
    if kind == "str":
        return is_text_type(found)
    if kind == "bool":
        return pa.types.is_boolean(found)
    return pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_decimal(found)


def from_column(
    column: pa.Array, kind: str, policy: str
) -> tuple[pa.Array, dict[int, str], np.ndarray]:
    """An Arrow column, of a type that `fits`, as the declared type.

    Returns:
        the array of shape (n,), null where a value is unfit; what the unfit rows hold instead; and
        the rows with invalid Unicode, bool of shape (n,).
    """
    if kind == "str":
        texts, invalid = unicode.decode_column(column, policy)
        return texts, _nulls(unicode.is_null(texts) & ~invalid), invalid
    nulls, no_rows = _nulls(unicode.is_null(column)), np.zeros(len(column), bool)
    target = KEEP_TYPES[kind]
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    try:
        if kind == "float32" and not pa.types.is_float32(column.type):
            raise pa.ArrowInvalid  # Arrow turns what is too large into infinity
        return pc.cast(column, target, safe=True), nulls, no_rows
    except pa.ArrowInvalid:
        pass
    values: list[Any] = []
    unfit = dict(nulls)
    for row, value in enumerate(column.to_pylist()):
        try:
            values.append(None if value is None else _from_number(value, kind))
        except Unfit as error:
            unfit[row] = str(error)
            values.append(None)
    return pa.array(values, target), unfit, no_rows


def _nulls(rows: np.ndarray) -> dict[int, str]:
    return dict.fromkeys(np.flatnonzero(rows).tolist(), "null")


def _from_number(value: Any, kind: str) -> float:
    """An integer, float or decimal as the declared type of number."""
    if isinstance(value, int | float):
        return _int(value, kind) if kind in INT_RANGES else _float(value, kind)
    if kind in INT_RANGES:
        if value != value.to_integral_value():
            raise Unfit("not a whole number")
        return _int(int(value), kind)
    return _float(float(value), kind)
