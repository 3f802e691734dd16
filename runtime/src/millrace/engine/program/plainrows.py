"""Rows of plain values: what an expression that raises on all of them raises on every row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

_TEXTS = ("1", "a", "", '{"a": [1]}', "2024-01-31")
_NUMBERS = (1, 0, -1, 2, 40)
_DAY = dt.datetime(2024, 1, 31, 12, 30, tzinfo=dt.UTC)


def plain_rows(schema: pa.Schema) -> list[pa.RecordBatch]:
    """Some batches of one row, in which no column has the same value twice where it can help
    it; a type that has no plain value is null."""
    return [
        pa.RecordBatch.from_arrays([_array(f.type, n) for f in schema], schema=schema)
        for n in range(len(_TEXTS))
    ]


def _array(kind: pa.DataType, n: int) -> pa.Array:
    try:
        return pa.array([_value(kind, n)], kind)
    except (pa.ArrowException, ValueError, TypeError):
        return pa.nulls(1, kind)


def _value(kind: pa.DataType, n: int) -> Any:
    """The plain value of a type in a row; lists and maps differ in how many they hold."""
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, n) for field in kind}
    if pa.types.is_map(kind):
        return [(_value(kind.key_type, m), _value(kind.item_type, m)) for m in range(n)]
    if pa.types.is_list(kind):
        return [_value(kind.value_type, m) for m in range(n)]
    day = _DAY + n * dt.timedelta(days=-20_000, hours=1)
    if pa.types.is_timestamp(kind):
        return day
    if pa.types.is_date(kind):
        return day.date()
    if pa.types.is_time(kind):
        return day.time()
    if pa.types.is_boolean(kind):
        return n % 2 == 0
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _NUMBERS[n]
    if pa.types.is_decimal(kind):
        return Decimal(_NUMBERS[n])
    if pa.types.is_binary(kind):
        return _TEXTS[n].encode()
    return _TEXTS[n] if pa.types.is_string(kind) else None
