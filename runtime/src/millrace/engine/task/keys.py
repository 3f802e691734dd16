"""Keys of a batch: which rows have equal ones, and to which key group each belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.engine.task.batch import Array
from millrace.state.keyed import keys


@dataclass(frozen=True, slots=True)
class Keys:
    """The distinct keys of a batch, hashed once each.

    ``codes`` (int64) numbers the key of each row; ``values`` are the key columns of the distinct
    keys, ``hashes`` (uint64) and ``groups`` (int64) belong to them.
    """

    codes: Array
    values: tuple[pa.Array, ...]
    hashes: Array
    groups: Array

    @property
    def single(self) -> pa.Array | None:
        """The distinct keys where one column is the key and none of them is null."""
        if len(self.values) == 1 and self.values[0].null_count == 0:
            return self.values[0]
        return None

    def __len__(self) -> int:
        return len(self.hashes)


def encode_keys(data: pa.RecordBatch, columns: Sequence[str], key_groups: int) -> Keys:
    """Number the distinct keys in some columns of a batch.

    A single column that is dictionary-encoded is hashed by its entries alone.
    """
    arrays = [data.column(name) for name in columns]
    if len(arrays) == 1 and pa.types.is_dictionary(arrays[0].type):
        column = arrays[0]
        if column.null_count == 0 and column.dictionary.null_count == 0:
            return _of_dictionary(column, key_groups)
        arrays = [column.dictionary_decode()]
    found = keys.distinct(arrays)
    first = pa.array(found.first)
    values = tuple(array.take(first) for array in arrays)
    return Keys(found.codes, values, found.hashes, keys.key_groups(found.hashes, key_groups))


def _of_dictionary(column: pa.DictionaryArray, key_groups: int) -> Keys:
    entries = keys.distinct([column.dictionary])
    codes = entries.codes[column.indices.to_numpy()]
    values = column.dictionary.take(pa.array(entries.first))
    return Keys(codes, (values,), entries.hashes, keys.key_groups(entries.hashes, key_groups))
