"""Types of columns: those that a topology file names, as Arrow's and back."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
