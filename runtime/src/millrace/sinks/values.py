"""Arrow values as text, whole columns at a time."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_QUOTE, _BACKSLASH = ord('"'), ord("\\")

_FIRST_DAY, _LAST_DAY = -12_687_428, 11_248_737
"""January 1 of the year -32767 and December 31 of the year 32767, in days from 1970-01-01."""

_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
"""One day in each unit of a timestamp."""


def plain(column: pa.Array) -> pa.Array:
    """The column without dictionaries and with the usual string and binary layouts."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.binary())
    return column


def is_number(kind: pa.DataType) -> bool:
    """Whether the text of a value is a JSON literal (of a float: unless it is not finite)."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def as_text(column: pa.Array) -> pa.Array:
    """A ``plain`` column as strings; nulls stay null.

    Timestamps and dates are ISO 8601 (with Z where they have a zone, always in UTC), binary is
    base64, lists, structs and maps are JSON of the same values, floats that are not finite are
    NaN, Infinity and -Infinity. Raises ``ValueError`` for a moment that has no such text.
    """
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        check_calendar(column)
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            column = column.cast(pa.timestamp(kind.unit, "UTC"))
        return pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    if pa.types.is_floating(kind):
        return _float_text(column)
    if is_number(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return column.cast(pa.string())
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_binary(kind):
        values = column.to_pylist()
        return pa.array(
            [v if v is None else base64.b64encode(v).decode() for v in values], pa.string()
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_text(column)
    if pa.types.is_struct(kind) and kind.num_fields:
        return _struct_text(column)
    if pa.types.is_map(kind):
        return _map_text(column)
    text = _nested if pa.types.is_nested(kind) else lambda value: str(_jsonable(value))
    values = column.to_pylist()
    return pa.array([None if v is None else text(v) for v in values], pa.string())


def json_values(column: pa.Array) -> pa.Array:
    """A column as JSON literals; null is ``null``. Strings are escaped and quoted."""
    if pa.types.is_dictionary(column.type):
        values = json_values(column.dictionary)
        return pc.fill_null(values.take(column.indices), "null")
    column = plain(column)
    kind = column.type
    text = as_text(column)
    if pa.types.is_string(kind):
        text = _quoted(escaped(text))
    elif pa.types.is_floating(kind):
        text = pc.if_else(pc.is_finite(column), text, _quoted(text))
    elif not (is_number(kind) or pa.types.is_nested(kind)):
        text = _quoted(text)
    return pc.fill_null(text, "null") if text.null_count else text


def escaped(text: pa.Array) -> pa.Array:
    """Strings with quotes, backslashes and control characters escaped as JSON wants.

    A column that has none of them, the usual case, costs one look at its bytes.
    """
    present = _special_bytes(text)
    if _BACKSLASH in present:
        text = pc.replace_substring(text, "\\", "\\\\")
    for byte in present:
        if byte != _BACKSLASH:
            text = pc.replace_substring(text, chr(byte), json.dumps(chr(byte))[1:-1])
    return text


def _special_bytes(text: pa.Array) -> list[int]:
    """The bytes in a string column that JSON escapes, each once."""
    if not len(text) or text.buffers()[2] is None:
        return []
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    special = (data < 0x20) | (data == _QUOTE) | (data == _BACKSLASH)
    return [int(b) for b in np.unique(data[special])] if special.any() else []


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")


def check_calendar(column: pa.Array) -> None:
    """Arrow writes "value out of range" for years beyond its calendar, or another moment."""
    kind = column.type
    if pa.types.is_date32(kind):
        each, values = 1, column.view(pa.int32())
    else:
        each = _DAY[kind.unit if pa.types.is_timestamp(kind) else "ms"]
        values = column.view(pa.int64())
    found = pc.min_max(values).as_py()
    for value in (found["min"], found["max"]):
        if value is not None and not _FIRST_DAY <= value // each <= _LAST_DAY:
            raise ValueError(f"{value} is out of range for {kind}: its year has no text")


def _float_text(column: pa.Array) -> pa.Array:
    text = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return text
    for value, name in ((float("inf"), "Infinity"), (float("-inf"), "-Infinity")):
        text = pc.if_else(pc.equal(column, value), name, text)
    return pc.if_else(pc.is_nan(column), "NaN", text)


def _list_text(column: pa.Array) -> pa.Array:
    # Not flatten(), which leaves out what lies behind null lists while the offsets count it.
    return _joined(column, json_values(_within(column, column.values)))


def _map_text(column: pa.Array) -> pa.Array:
    keys, items = (json_values(_within(column, part)) for part in (column.keys, column.items))
    pairs = pc.binary_join_element_wise(keys, items, ",")
    return _joined(column, pc.binary_join_element_wise("[", pairs, "]", ""))


def _struct_text(column: pa.Array) -> pa.Array:
    names = [json.dumps(field.name, ensure_ascii=False) for field in column.type]
    fields = [
        pc.binary_join_element_wise(f"{name}:", json_values(values), "")
        for name, values in zip(names, column.flatten(), strict=True)
    ]
    text = pc.binary_join_element_wise("{", pc.binary_join_element_wise(*fields, ","), "}", "")
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def _within(column: pa.Array, values: pa.Array) -> pa.Array:
    """The values of a list's or map's rows alone, of those that it shares with others."""
    first, end = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
    return values.slice(first, end - first)


def _joined(column: pa.Array, parts: pa.Array) -> pa.Array:
    """The parts of each row as a JSON array."""
    offsets = pc.subtract(column.offsets, column.offsets[0]).cast(pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, parts), ",")
    text = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def _nested(value: Any) -> str:
    return json.dumps(_jsonable(value), ensure_ascii=False, separators=(",", ":"))


def _jsonable(value: Any) -> Any:
    """What ``json`` writes as ``as_text`` and ``json_values`` would write the parts."""
    if isinstance(value, dict):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        utc = value.astimezone(dt.UTC).replace(tzinfo=None)
        return f"{utc.isoformat(timespec='microseconds')}Z"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
