"""Tuples combined by key within the task that produces them, before they are exchanged.

The trees of the tuples that come in end where they are combined. A combined row, and what the
aggregate emits, belongs to the window's own tree; its root number says from which aggregate and
key group it is. For the key groups that the plan names as *uncombined* tuples travel one by one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace.engine.program.aggregates import state_of
from millrace.engine.program.program import Channel, Component
from millrace.engine.task import kernels
from millrace.engine.task.batch import ID, Array, Batch, concat, dense, without_views
from millrace.engine.task.context import Task
from millrace.engine.task.crossings import Crossing, keyed_parts
from millrace.protocol.types import Guarantee
from millrace.state.keyed.aggregates import AggregateOverflowError
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.keys import hash_keys, key_groups
from millrace.state.keyed.keytable import Room

_PARTIAL = "+"


def lane_of_partials(edge: Channel) -> str:
    """Name under which an edge's combined rows travel."""
    return f"{edge.name}{_PARTIAL}"


def edge_of_lane(lane: str) -> str:
    return lane.removesuffix(_PARTIAL)


def is_partial(lane: str) -> bool:
    return lane.endswith(_PARTIAL)


def mask_array(mask: int, groups: int) -> Array:
    """Bit mask of key groups as a boolean array."""
    return np.array([mask >> group & 1 for group in range(groups)], bool)


def tree_roots(component: Component, groups: Array) -> Array:
    """Root numbers (uint32) of tuples that an aggregate emits for keys of these groups."""
    base = np.uint32(kernels.WINDOW_TREE | component.number << 16)
    return groups.astype(np.uint32) | base


class Merging(Protocol):
    """What merges combined rows and single tuples, where that is in the same task."""

    def accept(self, edge: Channel, batch: Batch) -> None: ...

    def accept_partial(self, edge: Channel, rows: pa.RecordBatch) -> None: ...


class Combiner:
    """Combines what one edge brings to an aggregate, within the producing task."""

    def __init__(self, task: Task, edge: Channel, component: Component) -> None:
        self.task, self.edge, self.component = task, edge, component
        self._groups = task.program.key_groups
        self._state = self._begun()
        self._hashes: Array | None = None
        mask = task.plan.uncombined.get(component.name, 0)
        self._apart = mask_array(mask, self._groups) if mask else None
        self._singles: list[Batch] = []
        self._merge: Merging | None = None

    def _begun(self) -> AggregateState:
        """At once as large as for the window before, unless that was a much larger one."""
        state = state_of(self.component, self._groups)
        roots, room = self.task.rooms.pop(self.edge.name, (0, Room()))
        if roots <= 2 * self.task.plan.intent.roots:
            try:
                state.make_room(room)
            except MemoryError:  # what comes may need less
                state = state_of(self.component, self._groups)
        state.begin()
        return state

    def deliver_to(self, merge: Merging) -> None:
        """The merging step is in this very task."""
        self._merge = merge

    def accept(self, batch: Batch) -> None:
        batch = self.task.failures.without_failed(batch)
        if self._apart is not None and len(batch):
            batch = self._set_apart(batch)
        if not len(batch):
            return
        try:
            self._state.update(aggregate_rows(self.component, self.edge, batch.data))
        except AggregateOverflowError as overflow:
            report_overflow(self.task, self.component, overflow)
        self.task.books.absorb(self.edge.name, batch)

    def finish(self) -> None:
        """Give everything to the merging step of this task."""
        assert self._merge is not None
        for batch in self._singles:
            self._merge.accept(self.edge, batch)
        partials = self.partials()
        if partials.num_rows:
            self._merge.accept_partial(self.edge, partials)

    def singles(self) -> Batch | None:
        """The tuples that travel one by one."""
        left = [self.task.failures.without_failed(b) for b in self._singles]
        left = [b for b in left if len(b)]
        return concat(left) if left else None

    def partials(self) -> pa.RecordBatch:
        """Combined rows with an id each, booked as emitted to the window's own tree."""
        rows = self._state.partials()
        self.task.rooms[self.edge.name] = (self.task.plan.intent.roots, self._state.room)
        books = self.task.books
        if not books.tracked or not rows.num_rows:
            return rows
        self._hashes = self._state.hashes()
        ids = kernels.emit_alike(self._hashes, self.task.id.partition, self.edge.id)
        books.add_to_tree(self.edge.name, kernels.xor(ids))
        return rows.append_column(ID, pa.array(ids))

    def groups(self) -> Array:
        """Key group of each combined row of ``partials``."""
        if self._hashes is None:
            return self._state.groups()
        return key_groups(self._hashes, self._groups)

    def _set_apart(self, batch: Batch) -> Batch:
        assert self._apart is not None
        columns = [batch.data.column(name) for name in self.edge.key]
        alone = self._apart[key_groups(hash_keys(columns), self._groups)]
        if not alone.any():
            return batch
        self._singles.append(batch.filter(alone))
        return batch.filter(~alone)


class CombineCrossing(Crossing):
    """A combined edge on its way to the partitions that merge it."""

    def __init__(self, task: Task, edge: Channel, component: Component) -> None:
        super().__init__(task, edge)
        self._combiner = Combiner(task, edge, component)

    def deliver(self, batch: Batch) -> None:
        self._combiner.accept(batch)

    def parts(self) -> dict[str, dict[int, pa.Table]]:
        lanes: dict[str, dict[int, pa.Table]] = {}
        partials = self._combiner.partials()
        if partials.num_rows:
            lanes[lane_of_partials(self.edge)] = {
                reader: pa.Table.from_batches([rows])
                for reader, rows in self._shared(partials).items()
            }
        singles = self._combiner.singles()
        if singles is not None:
            lanes[self.edge.name] = keyed_parts(self.task, self.edge, singles)
        return lanes

    def _shared(self, partials: pa.RecordBatch) -> dict[int, pa.RecordBatch]:
        """Combined rows by the partition that merges them."""
        if self.task.partitions == 1:
            return {0: partials}
        readers = self.task.partition_of(self._combiner.groups())
        return {
            reader: partials.take(pa.array(rows))
            for reader in range(self.task.partitions)
            if (rows := np.flatnonzero(readers == reader)).size
        }


def aggregate_rows(component: Component, edge: Channel, data: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that an aggregate looks at, under the names that its state has."""
    assert component.rows is not None
    renamed = dict(zip(component.key, edge.key, strict=True))
    arrays = [data.column(renamed.get(f.name, f.name)) for f in component.rows]
    picked = dense(pa.RecordBatch.from_arrays(arrays, names=component.rows.names))
    # Views are looked up as they are where they are the key, and nothing but the key.
    alone = len(component.key) == 1 and all(c.of != component.key[0] for c in component.columns)
    return without_views(picked, but=component.key[0] if alone else None)


def report_overflow(task: Task, component: Component, overflow: AggregateOverflowError) -> None:
    """A combined sum overflowed: its key group has to be run uncombined. Raises it where nothing
    is run again, and what wrapped around would be sealed."""
    if task.program.guarantee is Guarantee.AT_MOST_ONCE:
        raise overflow
    root = int(tree_roots(component, np.array([overflow.group]))[0])
    task.failures.add([root], component.name, str(overflow))
