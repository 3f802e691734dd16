"""Declared columns as Arrow types."""

from __future__ import annotations

import re

import pyarrow as pa

from millrace.ddl import parse_schema

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


def arrow_schema(ddl: str) -> pa.Schema:
    """Arrow schema of ``"word string, n long"``; every column may be null.

    Raises ``TopologyError`` for what ``millrace.ddl`` does not understand.
    """
    return pa.schema([pa.field(name, _arrow_type(kind)) for name, kind in parse_schema(ddl)])


def _arrow_type(kind: str) -> pa.DataType:
    array = re.fullmatch(r"array<(.*)>", kind)
    return pa.list_(_arrow_type(array[1])) if array else _SIMPLE[kind]


def type_label(arrow: pa.DataType) -> str:
    """Name of a type as a topology file writes it, for messages."""
    if pa.types.is_list(arrow):
        return f"array<{type_label(arrow.value_type)}>"
    return next((name for name, known in _SIMPLE.items() if known == arrow), str(arrow))
