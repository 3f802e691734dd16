"""Hashes of keys over Arrow columns, and what follows from them: key groups and distinct keys.

The hash depends on the values alone: not on the process, the hash seed of Python, the width of an
integer column, chunks, or whether a column is dictionary-encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.state.keyed import kernels, keybytes
from millrace.state.keyed.keybytes import Array
from millrace.state.keyed.keytable import KeyTable


def hash_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Array:
    """64-bit hashes (uint64) of the rows of one or more columns of equal length.

    A dictionary-encoded column that stands alone is hashed once for each entry. Raises
    ``KeyTypeError`` for a column that cannot be part of a key.
    """
    if len(columns) == 1 and isinstance(columns[0], pa.DictionaryArray):
        return _hash_dictionary(columns[0])
    return keybytes.encode(list(columns)).hashes()


def key_groups(hashes: Array, groups: int) -> Array:
    """Key group (int64, 0 to ``groups`` - 1) of each hash.

    From the upper half of the hash; the lower bits stay free to place keys inside a group.
    """
    upper = hashes >> np.uint64(32)
    return ((upper * np.uint64(groups)) >> np.uint64(32)).astype(np.int64)


def order_by_group(hashes: Array, key_groups: int) -> tuple[Array, Array]:
    """Stable order (int64) of keys by key group, and the first place of each group (K + 1)."""
    order = np.empty(len(hashes), np.int64)
    starts = np.zeros(key_groups + 1, np.int64)
    kernels.order_by_group(hashes, key_groups, order, starts)
    return order, starts


def mask_of(groups: Array) -> int:
    """Bit mask of key groups (int64, in any order, as often as they come)."""
    return sum(1 << group for group in np.flatnonzero(np.bincount(groups)).tolist())


def groups_in(groups: Array, mask: int) -> Array:
    """Which of some key groups (int64) are in a bit mask, as a boolean array."""
    if not groups.size:
        return np.zeros(0, bool)
    wanted = np.array([mask >> group & 1 for group in range(int(groups.max()) + 1)], bool)
    return wanted[groups]


@dataclass(frozen=True, slots=True)
class Distinct:
    """Which rows have equal keys.

    ``codes`` (int64) numbers the key of each row in order of appearance, ``first`` (int64) is the
    row in which each key appears first, ``hashes`` (uint64) are those of the distinct keys.
    """

    codes: Array
    first: Array
    hashes: Array


def distinct(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Distinct:
    """Number the distinct keys of the rows of one or more columns; each is hashed once here and
    never needs to be again.
    """
    table = KeyTable([column.type for column in columns])
    table.begin()
    codes = table.find_or_insert(list(columns))
    first = np.empty(table.rows, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return Distinct(codes, first, table.hashes())


def shown_columns(schema: pa.Schema) -> str:
    """Columns and their types, as errors name them."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def shown_key(columns: Sequence[pa.Array], row: int = 0) -> str:
    """The key of a row as messages show it, also one that Python cannot hold."""
    return ", ".join(_shown(column.slice(row, 1)) for column in columns)


def _shown(value: pa.Array) -> str:
    try:
        return str(value[0].as_py())
    except (OverflowError, ValueError):
        return str(value.to_string()[1:-1].strip())


def _hash_dictionary(column: pa.DictionaryArray) -> Array:
    entries = keybytes.encode([column.dictionary]).hashes()
    missing = keybytes.encode([pa.array([None], column.type.value_type)]).hashes()
    codes = column.indices.fill_null(len(entries)).cast(pa.int64())
    found: Array = np.concatenate([entries, missing])[codes.to_numpy()]
    return found
