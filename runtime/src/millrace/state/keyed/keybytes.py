"""Keys between Arrow columns and the bytes that a key table compares.

One column: the bytes of the text, or 8 bytes of a number; null is a length of -1. Several
columns, one after the other: a flag byte (0: null), then 8 bytes of a number, or 4 bytes of
length and the text; so different keys have different bytes. Numbers of any width are widened to
64 bits, all NaN are one key, and -0.0 is 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.state.errors import KeyTypeError
from millrace.state.keyed import kernels

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_TEXT_BYTES = (1 << 31) - 1
_NONE = np.zeros(1, np.uint8)
ALL_VALID = np.empty(0, np.uint8)
for _constant in (_NONE, ALL_VALID):
    _constant.setflags(write=False)


@dataclass(frozen=True, slots=True)
class KeyBytes:
    """``data`` uint8, ``offsets`` int64 (n + 1), ``valid`` uint8 (n, or none: all valid).

    All are read-only, so that the kernels are compiled once.
    """

    data: Array
    offsets: Array
    valid: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def hashes(self) -> Array:
        """64-bit hash of each key (uint64), the same in every process."""
        out = np.empty(len(self), np.uint64)
        kernels.hash_keys(self.data, self.offsets, self.valid, out)
        return out


def check_key_type(name: str, kind: pa.DataType) -> None:
    """Raise ``KeyTypeError`` when a column of this type cannot be (part of) a key."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (_is_text(kind) or _is_number(kind)):
        raise KeyTypeError(
            f"key column {name} has type {kind}; a key may consist of strings, binaries, "
            "integers, floats, booleans, dates and timestamps"
        )


def encode(columns: Sequence[pa.Array]) -> KeyBytes:
    """Key bytes of the rows of columns of equal length; one text column is not copied.

    Raises ``KeyTypeError`` for a type that cannot be a key.
    """
    plain = [_plain(column) for column in columns]
    if len(plain) == 1:
        return _encode_one(plain[0])
    count = len(plain[0])
    parts = [(_texts(c) if _is_text(c.type) else (_numbers(c),), _valid(c)) for c in plain]
    sizes = np.zeros(count, np.int64)
    for values, valid in parts:
        width = 9 if len(values) == 1 else 5 + np.diff(values[1])
        sizes += width if not valid.size else np.where(valid, width, 1)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(max(int(offsets[-1]), 1), np.uint8)
    ends = offsets[:-1].copy()
    for values, valid in parts:
        put = kernels.put_numbers if len(values) == 1 else kernels.put_texts
        put(data, ends, *values, valid)
    return KeyBytes(_fixed(data), _fixed(offsets), ALL_VALID)


def decode(data: Array, places: Array, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Columns of the keys whose (start, length) in ``data`` are ``places`` (int64, n by 2)."""
    places = np.ascontiguousarray(places)
    if len(types) == 1:
        valid = places[:, 1] >= 0
        if _is_text(types[0]):
            return [_text_array(data, places, valid, types[0])]
        values = _gathered(data, np.where(valid[:, None], places, (0, 0)), 8)
        numbers = np.zeros(len(places), np.int64)
        numbers[valid] = values.view(np.int64)
        return [_number_array(numbers, valid, types[0])]
    ends = places[:, 0].copy()
    columns = []
    for kind in types:
        flags = np.empty(len(places), np.uint8)
        if _is_text(kind):
            parts = np.empty_like(places)
            kernels.take_places(data, ends, parts, flags)
            columns.append(_text_array(data, parts, flags.view(np.bool_), kind))
        else:
            numbers = np.empty(len(places), np.int64)
            kernels.take_numbers(data, ends, numbers, flags)
            columns.append(_number_array(numbers, flags.view(np.bool_), kind))
    return columns


# --- Arrow to bytes


def _is_text(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    more = (pa.types.is_large_binary, pa.types.is_string_view, pa.types.is_binary_view)
    return any(check(kind) for check in (*checks, *more))


def _is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)
    return any(check(kind) for check in checks) or kind in (pa.float32(), pa.float64())


def _plain(column: pa.Array) -> pa.Array:
    """One array, without chunks, dictionary or views."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    if pa.types.is_binary_view(column.type):
        return column.cast(pa.binary())
    check_key_type("(unnamed)", column.type)
    return column


def _encode_one(column: pa.Array) -> KeyBytes:
    if _is_text(column.type):
        data, offsets = _texts(column)
    else:
        data = _fixed(_numbers(column).view(np.uint8)) if len(column) else _NONE
        offsets = _fixed(np.arange(0, 8 * len(column) + 1, 8, dtype=np.int64))
    return KeyBytes(data, offsets, _valid(column))


def _texts(column: pa.Array) -> tuple[Array, Array]:
    _, offsets_buffer, data_buffer = column.buffers()
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    if offsets_buffer is None or offsets_buffer.size == 0:
        offsets = np.zeros(1, np.int64)
    else:
        held = np.frombuffer(offsets_buffer, np.int64 if large else np.int32)
        offsets = held[column.offset : column.offset + len(column) + 1].astype(np.int64)
    empty = data_buffer is None or data_buffer.size == 0
    data = _NONE if empty else np.frombuffer(data_buffer, np.uint8)
    return _fixed(data), _fixed(offsets)


def _numbers(column: pa.Array) -> Array:
    """The values as int64; what stands where a value is null means nothing."""
    kind = column.type
    if pa.types.is_floating(kind):
        with np.errstate(invalid="ignore"):
            values = _buffer(column.cast(pa.float64()), np.float64) + 0.0
        values[np.isnan(values)] = np.nan
        return _fixed(values.view(np.int64))
    if pa.types.is_date32(kind):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_date64(kind) or kind == pa.uint64():
        column = column.view(pa.int64())
    return _fixed(_buffer(column.cast(pa.int64()), np.int64))


def _buffer(column: pa.Array, dtype: Any) -> Array:
    held = column.buffers()[1]
    if held is None or len(column) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(held, dtype)[column.offset : column.offset + len(column)]


def _valid(column: pa.Array) -> Array:
    if column.null_count == 0:
        return ALL_VALID
    return _fixed(column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8))


def _fixed(array: Array) -> Array:
    """The same array, aligned and read-only."""
    array = np.require(array, requirements=("C", "ALIGNED"))
    array.setflags(write=False)
    return array


# --- bytes to Arrow


def _gathered(data: Array, places: Array, width: int) -> Array:
    """Contents of equal width; places of length 0 are left out."""
    wanted = np.ascontiguousarray(places[places[:, 1] > 0])
    out = np.empty(len(wanted) * width, np.uint8)
    kernels.gather(data, wanted, np.arange(0, out.size + 1, width, dtype=np.int64), out)
    return out


def _text_array(data: Array, places: Array, valid: Array, kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(places) + 1, np.int64)
    np.cumsum(np.maximum(places[:, 1], 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    kernels.gather(data, places, offsets, out)
    bitmap = None if valid.all() else pa.array(valid).buffers()[1]
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not large and offsets[-1] > _MAX_TEXT_BYTES:
        raise KeyTypeError(
            f"{offsets[-1]} bytes of keys do not fit into one column; raise spec.parallelism, so "
            "that each task holds fewer keys"
        )
    stored = pa.large_binary() if large else pa.binary()
    held = offsets if large else offsets.astype(np.int32)
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        stored = pa.string()
    elif pa.types.is_large_string(kind):
        stored = pa.large_string()
    buffers = [bitmap, pa.py_buffer(held), pa.py_buffer(out)]
    array = pa.Array.from_buffers(stored, len(places), buffers)
    return array if stored == kind else array.cast(kind)


def _number_array(numbers: Array, valid: Array, kind: pa.DataType) -> pa.Array:
    mask = None if valid.all() else ~valid
    if pa.types.is_floating(kind):
        return pa.array(numbers.view(np.float64), pa.float64(), mask=mask).cast(kind)
    array = pa.array(numbers, pa.int64(), mask=mask)
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind) or kind == pa.uint64():
        return array.view(kind)
    if pa.types.is_date32(kind):
        return array.cast(pa.int32()).view(kind)
    return array.cast(kind)
