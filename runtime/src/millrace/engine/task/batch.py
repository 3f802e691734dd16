"""A batch of tuples inside a worker: Arrow data beside the columns of its tracking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.task import kernels
from millrace.engine.task.lineage import Lineage
from millrace.errors import EngineError, UserCodeError

Array = np.ndarray[Any, np.dtype[Any]]

ROOT, ID, ORDER, ANCHORS = "__mr_root", "__mr_id", "__mr_order", "__mr_anchors"
"""Names of the tracking columns where a batch travels."""

_TRACKING = (ROOT, ID, ORDER, ANCHORS)

MOST_TEXT = (1 << 31) - 1
"""Bytes of text that one column of a record batch can hold."""

MOST_TAKEN = 1 << 28
"""Bytes that tuples get at once of other rows, which each may come many times; far below what a
column can hold."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tuples on one edge.

    ``order`` uint64[n] is the place within the root (``None`` where nothing behind it depends on
    order). ``anchors`` lists every root of a tuple that has several; ``roots`` then holds the
    first.
    """

    data: pa.RecordBatch
    lineage: Lineage
    order: Array | None = None
    anchors: pa.ListArray | None = None

    @staticmethod
    def of(
        data: pa.RecordBatch,
        roots: Array,
        ids: Array | None = None,
        order: Array | None = None,
        anchors: pa.ListArray | None = None,
    ) -> Batch:
        """Tuples whose roots (uint32[n]) and ids (uint64[n]) are known."""
        return Batch(data, Lineage(roots, ids), order, anchors)

    @property
    def roots(self) -> Array:
        """The root of each tuple, uint32[n] (see ``kernels``)."""
        return self.lineage.roots

    @property
    def ids(self) -> Array | None:
        """The id of each tuple, uint64[n], ``None`` with tracking off."""
        return self.lineage.ids

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def take(self, indices: Array) -> Batch:
        """Rows at ``indices`` (int64)."""
        where = pa.array(indices)
        return Batch.of(
            without_views(self.data).take(where),
            self.roots[indices],
            None if self.ids is None else self.ids[indices],
            None if self.order is None else self.order[indices],
            None if self.anchors is None else self.anchors.take(where),
        )

    def with_data(self, data: pa.RecordBatch) -> Batch:
        """The same tuples with other columns. Raises ``EngineError`` for fewer rows, or more."""
        if data.num_rows != len(self):
            raise EngineError(f"{data.num_rows} rows are to stand for {len(self)} tuples")
        return replace(self, data=data)

    def keep(self) -> Batch:
        """The same tuples, for later than they are processed."""
        return replace(self, lineage=Lineage(self.roots, self.ids))

    def filter(self, keep: Array) -> Batch:
        """Rows where the boolean mask ``keep`` is true."""
        return self.take(np.flatnonzero(keep))

    def in_root_order(self) -> Batch:
        """The same tuples sorted by root, place within the root, and id."""
        order = self.root_order()
        return self if order is None else self.take(order)

    def root_order(self) -> Array | None:
        """The places (int64) of the tuples in root order, ``None`` where they are in it."""
        order = self.order if self.order is not None else np.zeros(len(self), np.uint64)
        if kernels.in_order(self.roots, order):
            return None
        ids = self.ids if self.ids is not None else order
        return np.lexsort((ids, order, self.roots))

    def all_anchors(self) -> pa.ListArray:
        """The roots of each tuple as lists, also where every tuple has one."""
        if self.anchors is not None:
            return self.anchors
        offsets = pa.array(np.arange(len(self) + 1, dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, pa.array(self.roots, pa.uint32()))

    def to_arrow(self) -> pa.RecordBatch:
        """Data and tracking columns in one record batch."""
        arrays = [*self.data.columns, pa.array(self.roots)]
        names = [*self.data.schema.names, ROOT]
        for name, column in ((ID, self.ids), (ORDER, self.order)):
            if column is not None:
                arrays.append(pa.array(column))
                names.append(name)
        if self.anchors is not None:
            arrays.append(self.anchors)
            names.append(ANCHORS)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    @staticmethod
    def from_arrow(carried: pa.RecordBatch) -> Batch:
        """What ``to_arrow`` made, without copying."""
        names = carried.schema.names
        data = carried.select([n for n in names if n not in _TRACKING])
        anchors = carried.column(ANCHORS) if ANCHORS in names else None
        return Batch.of(
            data,
            carried.column(ROOT).to_numpy(),
            carried.column(ID).to_numpy() if ID in names else None,
            carried.column(ORDER).to_numpy() if ORDER in names else None,
            anchors,
        )

    def roots_at(self, index: int) -> list[int]:
        """Every root of one tuple."""
        if self.anchors is not None:
            return list(self.anchors[index].as_py())
        return [int(self.roots[index])]

    def span(self) -> tuple[int, int] | None:
        """First and last root, without the tuples of the window's own tree."""
        own = self.roots[self.roots < kernels.WINDOW_TREE]
        return (int(own.min()), int(own.max())) if own.size else None


def concat(batches: Sequence[Batch]) -> Batch:
    """All tuples of several batches of one schema, in the order given."""
    if len(batches) == 1:
        return batches[0]
    if any(b.data.schema != batches[0].data.schema for b in batches):
        names = batches[0].data.schema.names
        batches = [b.with_data(dense(b.data).select(names)) for b in batches]
    data = one_batch(pa.Table.from_batches([b.data for b in batches]))
    anchors = None
    if any(b.anchors is not None for b in batches):
        anchors = pa.concat_arrays([b.all_anchors() for b in batches])
    return Batch.of(
        data,
        np.concatenate([b.roots for b in batches]),
        _join([b.ids for b in batches]),
        _join([b.order for b in batches]),
        anchors,
    )


def slices(batch: Batch, rows: int) -> list[Batch]:
    """A batch in parts of at most ``rows`` tuples, without copying."""
    if len(batch) <= rows:
        return [batch]
    parts = []
    for at in range(0, len(batch), rows):
        end = min(at + rows, len(batch))
        parts.append(
            Batch.of(
                batch.data.slice(at, end - at),
                batch.roots[at:end],
                None if batch.ids is None else batch.ids[at:end],
                None if batch.order is None else batch.order[at:end],
                None if batch.anchors is None else batch.anchors.slice(at, end - at),
            )
        )
    return parts


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as a single record batch; dictionaries are unified.

    Raises ``UserCodeError`` where a column cannot hold so much: fewer roots fit.
    """
    if table.num_rows == 0:
        return pa.RecordBatch.from_arrays(
            [pa.array([], f.type) for f in table.schema], schema=table.schema
        )
    if table.nbytes > MOST_TEXT:
        for name, column in zip(table.column_names, table.columns, strict=True):
            if is_text(column.type) and pc.sum(pc.binary_length(column)).as_py() > MOST_TEXT:
                raise _too_much(table, name)
    try:
        batches = table.unify_dictionaries().combine_chunks().to_batches()
    except pa.ArrowInvalid as error:
        if "offset overflow" not in str(error):
            raise
        raise _too_much(table, "of lists or structs") from error
    assert len(batches) == 1
    return batches[0]


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of the type is bounded by ``MOST_TEXT``."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def widest_row(columns: Sequence[pa.Array]) -> int:
    """Most bytes that one row takes in some columns, or somewhat more."""
    return sum(_widest(column) for column in columns)


def _widest(column: pa.Array) -> int:
    kind = column.type
    if not len(column):
        return 1
    if is_text(kind):
        return 4 + int(pc.max(pc.binary_length(column)).as_py() or 0)
    if pa.types.is_list(kind):
        most = int(pc.max(pc.list_value_length(column)).as_py() or 0)
        return 4 + most * _widest(pc.list_flatten(column))
    if pa.types.is_struct(kind):
        return 1 + sum(_widest(inner) for inner in column.flatten())
    if pa.types.is_map(kind):
        return int(column.nbytes)
    return 16


def _too_much(table: pa.Table, column: str) -> UserCodeError:
    return UserCodeError(
        f"{table.num_rows:,} tuples of {table.nbytes:,} bytes are together in one task, and their "
        f"column {column} is more than the 2 GiB that one can hold; lower spec.window.maxRecords, "
        "raise spec.parallelism, or leave large columns out before tuples are exchanged"
    )


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of the same columns as one, also where only some have a column encoded."""
    if any(table.schema != tables[0].schema for table in tables):
        tables = [pa.Table.from_batches([dense(one_batch(table))]) for table in tables]
    return pa.concat_tables(tables)


def dense(data: pa.RecordBatch) -> pa.RecordBatch:
    """The same data with dictionary columns decoded."""
    if not any(pa.types.is_dictionary(f.type) for f in data.schema):
        return data
    arrays = [
        pc.cast(c, c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in data.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=data.schema.names)


def without_views(data: pa.RecordBatch, but: str | None = None) -> pa.RecordBatch:
    """The same data with copies of texts that are views into other columns' bytes, ``but`` for
    those of one column."""
    views = {f.name for f in data.schema if pa.types.is_string_view(f.type)} - {but}
    if not views:
        return data
    named = zip(data.schema.names, data.columns, strict=True)
    arrays = [pc.cast(c, pa.string()) if name in views else c for name, c in named]
    return pa.RecordBatch.from_arrays(arrays, names=data.schema.names)


def _join(columns: list[Array | None]) -> Array | None:
    present = [c for c in columns if c is not None]
    return np.concatenate(present) if len(present) == len(columns) else None
