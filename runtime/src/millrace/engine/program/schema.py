"""Declared schemas as Arrow's, and outputs of user code brought into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import MillraceError
from millrace.sources.arrow_types import SIMPLE_NAMES, UNHELD, type_name
from millrace.sources.decode import shown


class OutputError(MillraceError):
    """A processor put out what it did not declare; the message names it and the column."""


def normal_type(arrow: pa.DataType) -> pa.DataType:
    """The canonical type that holds every value of ``arrow``, or ``arrow`` itself."""
    if pa.types.is_dictionary(arrow):
        return normal_type(arrow.value_type)
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        return pa.binary()
    if pa.types.is_float16(arrow):
        return pa.float32()
    if pa.types.is_date(arrow):
        return pa.date32()
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_list(arrow) or _is_other_list(arrow):
        return pa.list_(normal_type(arrow.value_type))
    if pa.types.is_integer(arrow) and arrow not in (pa.int32(), pa.int64()):
        return pa.int32() if arrow.bit_width < 32 else pa.int64()
    return arrow


def _is_other_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow))


def is_carried(arrow: pa.DataType) -> bool:
    """Whether columns of a ``normal_type`` can go through processors into every sink.

    Declared outputs have the types of ``millrace.ddl``. What else sources and SQL may give
    (decimals, structs, maps, times of day) is handed on; what has no form in a file is not.
    """
    if pa.types.is_list(arrow):
        return is_carried(arrow.value_type)
    if pa.types.is_struct(arrow):
        return all(is_carried(field.type) for field in arrow)
    if pa.types.is_map(arrow):
        return is_carried(arrow.key_type) and is_carried(arrow.item_type)
    return bool(
        arrow in SIMPLE_NAMES
        or pa.types.is_decimal(arrow)
        or pa.types.is_time(arrow)
        or pa.types.is_null(arrow)
        or pa.types.is_timestamp(arrow)
    )


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """A schema of canonical types, for what comes from sources."""
    return pa.schema([pa.field(f.name, normal_type(f.type)) for f in schema])


def conform(data: Any, schema: pa.Schema, processor: str) -> pa.RecordBatch:
    """Bring a processor's output (RecordBatch, Table or dict of arrays) into its schema.

    Columns may come in another order; integers and floats are widened, dictionaries decoded.
    Raises ``OutputError`` naming processor, column, expected and got type.
    """
    columns = _columns_of(data, processor)
    extra = [name for name in columns if schema.get_field_index(name) < 0]
    if extra:
        raise OutputError(
            f"processor {processor!r} put out the column {extra[0]!r}, which it does not declare; "
            f"declared are {', '.join(schema.names)}"
        )
    arrays = []
    for field in schema:
        if field.name not in columns:
            raise OutputError(
                f"processor {processor!r} did not put out its column {field.name!r} "
                f"({type_name(field.type)})"
            )
        arrays.append(_conform_array(columns[field.name], field, processor))
    lengths = {len(a) for a in arrays}
    if len(lengths) > 1:
        raise OutputError(
            f"processor {processor!r} put out columns of different lengths: {sorted(lengths)}"
        )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check(data: pa.RecordBatch, what: str = "column") -> None:
    """Raises ``pa.ArrowInvalid`` naming a column whose values are not what its type says, such as a
    text that is not UTF-8."""
    for field, column in zip(data.schema, data.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"{what} {field.name!r}: {error}") from error


def own(data: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory that nobody else has: Arrow wraps arrays of numpy as they are, and
    user code may fill an array anew in its next call. Raises as ``check``."""
    # Whether a buffer is numpy's or was allocated by Arrow cannot be seen, so all are copied. Of a
    # slice of lists only then are other rows' values not looked at.
    arrays = [pa.concat_arrays([column]) for column in data.columns]
    copied = pa.RecordBatch.from_arrays(arrays, schema=data.schema)
    check(copied)
    return copied


def _columns_of(data: Any, processor: str) -> dict[str, Any]:
    if isinstance(data, pa.RecordBatch | pa.Table):
        return dict(zip(data.schema.names, data.columns, strict=True))
    if isinstance(data, dict):
        return data
    raise OutputError(
        f"processor {processor!r} returned {type(data).__name__}; "
        "return (pa.RecordBatch or dict of arrays, parents)"
    )


def _conform_array(values: Any, field: pa.Field, processor: str) -> pa.Array:
    if isinstance(values, np.ndarray | list):
        values = pa.array(values)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        raise OutputError(
            f"processor {processor!r}, column {field.name!r}: expected an Arrow array of "
            f"{type_name(field.type)}, got {type(values).__name__}"
        )
    if values.type == field.type:
        return values
    if not _fits(values.type, field.type):
        raise OutputError(
            f"processor {processor!r}, column {field.name!r}: expected "
            f"{type_name(field.type)}, got {type_name(values.type)}"
        )
    if pa.types.is_nested(values.type):
        # A cast of a slice of lists looks at the values of the other rows too.
        values = pa.concat_arrays([values])
    found = pc.cast(values, field.type, safe=True)
    _check_finite(values, found)
    return found


def _check_finite(given: pa.Array, stored: pa.Array) -> None:
    """Raises ``pa.ArrowInvalid`` where a number, also one in a list, has become infinite: a safe
    cast lets it."""
    if pa.types.is_null(given.type):
        return  # of lists, too: there is nothing in it
    if pa.types.is_list(stored.type):
        _check_finite(pc.list_flatten(given), pc.list_flatten(stored))
        return
    if not pa.types.is_float32(stored.type):
        return
    if pa.types.is_dictionary(given.type):
        given = given.dictionary_decode()
    if not pa.types.is_floating(given.type):
        return
    if pc.any(pc.and_(pc.is_inf(stored), pc.is_finite(given))).as_py():
        raise pa.ArrowInvalid("a number is too large for a float")


def _fits(got: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast can only fail for a single value's size, never for its kind."""
    if pa.types.is_date64(got):
        return bool(wanted == pa.date32())
    if pa.types.is_fixed_size_list(got):
        return _fits(pa.list_(got.value_type), wanted)
    if pa.types.is_null(got):
        return True
    if pa.types.is_dictionary(got):
        return got.value_type == wanted or _fits(got.value_type, wanted)
    if pa.types.is_integer(got):
        return bool(pa.types.is_integer(wanted) or pa.types.is_floating(wanted))
    if pa.types.is_floating(got):
        return bool(pa.types.is_floating(wanted))
    if pa.types.is_list(got) or pa.types.is_large_list(got):
        return bool(pa.types.is_list(wanted)) and (
            got.value_type == wanted.value_type or _fits(got.value_type, wanted.value_type)
        )
    return bool(normal_type(got) == wanted)


def fitting(
    data: pa.RecordBatch, schema: pa.Schema, source: str, sound: bool = True
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """A source's records in its schema, and by row what does not fit it: that row is null.

    An instant finer than a microsecond does not fit, nor does an integer beyond 64 bits, nor, which
    is looked at unless the values are ``sound``, a text that is not UTF-8. Raises ``OutputError``
    as ``conform`` does.
    """
    try:
        found = conform(data, schema, source)
        if not sound:
            check(found)
        return found, {}
    except pa.ArrowInvalid as error:
        if data.num_rows == 1:
            nothing = [pa.nulls(1, field.type) for field in schema]
            text = _misfit(data, schema, source) or str(error)
            return pa.RecordBatch.from_arrays(nothing, schema=schema), {0: text}
    half = data.num_rows // 2
    # Copies: a cast of a slice of lists looks at the values of the other rows too.
    low, bad = fitting(data.take(pa.array(range(half))), schema, source, sound)
    high, more = fitting(data.take(pa.array(range(half, data.num_rows))), schema, source, sound)
    whole = pa.Table.from_batches([low, high]).combine_chunks().to_batches()[0]
    return whole, {**bad, **{half + row: text for row, text in more.items()}}


def _misfit(row: pa.RecordBatch, schema: pa.Schema, source: str) -> str | None:
    """The column of one record that does not fit, in the words of the topology file."""
    for field in schema:
        column = row.column(field.name)
        try:
            _conform_array(column, field, source)
        except pa.ArrowInvalid:
            given = column.cast(pa.string())[0].as_py() if _has_text(column.type) else "its value"
            return f"column {field.name!r}: {given} does not fit into {type_name(field.type)}"
    return None


def _has_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(arrow))


def pylist(column: pa.Array) -> list[Any]:
    """Values of a column as Python objects; several times as fast as ``to_pylist`` for text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        entries = pylist(column.dictionary)
        if column.null_count == 0:
            return [entries[code] for code in column.indices.to_numpy().tolist()]
        return [None if code is None else entries[code] for code in column.indices.to_pylist()]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return list(column.to_numpy(zero_copy_only=False).tolist())
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if plain and column.null_count == 0:
        return list(column.to_numpy(zero_copy_only=False).tolist())
    return list(column.to_pylist())


def rows_of(data: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of a batch as dicts."""
    names = data.schema.names
    if len(names) == 1:
        name = names[0]
        return [{name: value} for value in pylist(data.column(0))]
    columns = [pylist(column) for column in data.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def rows_held(data: pa.RecordBatch) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """``rows_of`` those that Python can hold, and by row what it has not in the others."""
    try:
        return rows_of(data), {}
    except UNHELD as error:
        cause = error
    encoded = [pa.types.is_dictionary(field.type) for field in data.schema]
    if any(encoded):  # every part has all of the entries
        arrays = [
            column.dictionary_decode() if one else column
            for column, one in zip(data.columns, encoded, strict=True)
        ]
        return rows_held(pa.RecordBatch.from_arrays(arrays, names=data.schema.names))
    if data.num_rows == 1:
        return [], {0: _unheld(data, cause)}
    half = data.num_rows // 2
    low, bad = rows_held(data.slice(0, half))
    high, more = rows_held(data.slice(half))
    return low + high, {**bad, **{half + row: text for row, text in more.items()}}


def _unheld(row: pa.RecordBatch, error: Exception) -> str:
    """The column of one row in which Python has no such value."""
    for field, column in zip(row.schema, row.columns, strict=True):
        try:
            pylist(column)
        except UNHELD as cause:
            kind = type_name(field.type)
            return (
                f"column {field.name!r}: Python has no {kind} {shown(column[0])} ({cause}); change "
                "it or leave it out in front, in SQL"
            )
    return str(error)
