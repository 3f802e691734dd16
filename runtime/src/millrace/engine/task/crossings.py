"""Edges on their way out of a pass: which tuple goes to which partition, under which check."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pyarrow as pa

from millrace.engine.program.program import Channel, Route
from millrace.engine.task import kernels
from millrace.engine.task.batch import Array, Batch, concat, dense
from millrace.engine.task.context import Task
from millrace.engine.task.exchange import Check, check_of
from millrace.engine.task.keys import encode_keys
from millrace.ids import mix64


class Crossing(ABC):
    """Collects what leaves over one edge; ``parts`` cuts it by reader."""

    def __init__(self, task: Task, edge: Channel) -> None:
        self.task = task
        self.edge = edge
        self._batches: list[Batch] = []

    def deliver(self, batch: Batch) -> None:
        if len(batch):
            self._batches.append(batch)

    def collected(self) -> Batch | None:
        """Everything that leaves, without tuples of roots that failed in this task."""
        batches = [self.task.failures.without_failed(b) for b in self._batches]
        self._batches = []
        batches = [b for b in batches if len(b)]
        return concat(batches) if batches else None

    @abstractmethod
    def parts(self) -> dict[str, dict[int, pa.Table]]:
        """Tables by lane and reader. A lane is an edge's name, or that of its partial totals."""


class ForwardCrossing(Crossing):
    """Everything goes to the same partition of the next pass."""

    def parts(self) -> dict[str, dict[int, pa.Table]]:
        batch = self.collected()
        if batch is None:
            return {}
        # A lane is one of several tasks whose tuples one task takes.
        return {self.edge.name: {self.task.id.partition % self.task.partitions: _table(batch)}}


class BroadcastCrossing(Crossing):
    """Every partition gets a copy of each tuple, with an id of its own."""

    def parts(self) -> dict[str, dict[int, pa.Table]]:
        batch = self.collected()
        if batch is None:
            return {}
        copies = enumerate(broadcast(self.task, self.edge, batch))
        return {self.edge.name: {reader: _table(copy) for reader, copy in copies}}


class KeyedCrossing(Crossing):
    """Tuples go to the partition that has their key group."""

    def parts(self) -> dict[str, dict[int, pa.Table]]:
        batch = self.collected()
        if batch is None:
            return {}
        return {self.edge.name: keyed_parts(self.task, self.edge, batch)}


def keyed_parts(task: Task, edge: Channel, batch: Batch) -> dict[int, pa.Table]:
    """Cut a batch by the partition of each tuple's key group; key columns travel encoded."""
    keys = encode_keys(batch.data, edge.key, task.program.key_groups)
    readers = task.partition_of(keys.groups)[keys.codes]
    if keys.single is not None:  # only what the key is encoded as leaves
        batch = batch.with_data(_replaced(batch.data, edge.key[0], pa.nulls(len(batch))))
    found, starts, order = kernels.rows_by_key(readers, task.partitions)
    parts = {}
    for at, reader in enumerate(found.tolist()):
        rows = order[starts[at] : starts[at + 1]]
        part = batch.take(rows)
        if keys.single is not None:
            part = _with_encoded(part, edge.key[0], keys.single, keys.codes[rows])
        parts[reader] = _table(part)
    return parts


def broadcast(task: Task, edge: Channel, batch: Batch) -> list[Batch]:
    """The copies of a batch, one for each partition in order, booked as emitted."""
    copies = []
    for partition in range(task.partitions):
        copy = batch
        if batch.ids is not None:
            ids = broadcast_ids(batch.ids, partition, edge)
            copy = Batch.of(batch.data, batch.roots, ids, batch.order, batch.anchors)
            task.books.book(edge.name, copy)
        copies.append(copy)
    return copies


def broadcast_ids(ids: Array, partition: int, edge: Channel) -> Array:
    """Ids of the copies that one partition gets of broadcast tuples."""
    return kernels.emit_alike(ids, partition, mix64(edge.id))


def crossing_for(task: Task, edge: Channel) -> Crossing:
    """The crossing of an edge that is not combined."""
    kinds: dict[Route, type[Crossing]] = {
        Route.FORWARD: ForwardCrossing,
        Route.BROADCAST: BroadcastCrossing,
        Route.KEYED: KeyedCrossing,
    }
    return kinds[edge.route](task, edge)


def checks_of(tables: dict[str, pa.Table]) -> dict[str, Check]:
    """What a reader must find again, taken before a transport has the tables."""
    return {lane: check_of(table) for lane, table in tables.items()}


def _table(batch: Batch) -> pa.Table:
    return pa.Table.from_batches([batch.to_arrow()])


def _with_encoded(part: Batch, column: str, distinct: pa.Array, codes: Array) -> Batch:
    """Replace a key column by its encoded form with only the keys of this part."""
    used = np.zeros(len(distinct), bool)
    used[codes] = True
    places = np.cumsum(used, dtype=np.int32) - np.int32(1)
    values = pa.DictionaryArray.from_arrays(
        pa.array(places[codes]), distinct.filter(pa.array(used))
    )
    return part.with_data(_replaced(dense(part.data), column, values))


def _replaced(data: pa.RecordBatch, column: str, values: pa.Array) -> pa.RecordBatch:
    """The same data with other values in one column."""
    arrays = list(data.columns)
    arrays[data.schema.get_field_index(column)] = values
    return pa.RecordBatch.from_arrays(arrays, names=data.schema.names)
