"""Types of columns: those that a topology file names, as Arrow's and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millrace.ddl import Column

_SIMPLE = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}
SIMPLE_NAMES = {arrow: name for name, arrow in _SIMPLE.items()}
"""Canonical name of each Arrow type that has one and is no array."""

UNHELD = (OverflowError, ValueError, pa.ArrowException)
"""What is raised where Python has no such value as Arrow: a day beyond the years 1 to 9999, a text
that is not UTF-8."""


def arrow_type(name: str) -> pa.DataType:
    """Arrow type of a canonical type name."""
    array = re.fullmatch(r"array<(.*)>", name)
    if array:
        return pa.list_(arrow_type(array[1]))
    return _SIMPLE[name]


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Arrow schema of declared columns; every column may be null."""
    return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in columns])


def type_name(arrow: pa.DataType) -> str:
    """Canonical name of an Arrow type, or Arrow's own where it has none."""
    if pa.types.is_list(arrow):
        return f"array<{type_name(arrow.value_type)}>"
    return SIMPLE_NAMES.get(arrow, str(arrow))


def plain_value(value: pa.Scalar) -> Any:
    """A value as Python has it, or a text that shows it where Python has none such; so with what
    lists and structs hold."""
    try:
        return value.as_py()
    except UNHELD:
        if isinstance(value, pa.StringScalar):
            return value.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
        if isinstance(value, pa.DictionaryScalar):
            return plain_value(value.value)
        if isinstance(value, pa.StructScalar):
            return {name: plain_value(inner) for name, inner in value.items()}
        if isinstance(value, pa.ListScalar):
            return [plain_value(inner) for inner in value.values]
        return " ".join(pa.array([value], value.type).to_string()[1:-1].split())
