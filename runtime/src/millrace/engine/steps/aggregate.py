"""Declared aggregates: combined by key before the exchange, merged into the state behind it.

The trees of the tuples that come in end where they are combined. A combined row, and what the
aggregate emits, belongs to the window's own tree; its root number says from which aggregate and
key group it is. For the key groups that the plan names as *uncombined* tuples travel one by one,
and what the aggregate emits for a key carries every root that contributed to it in this window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from millrace.engine import kernels
from millrace.engine.crossings import Crossing, keyed_parts
from millrace.engine.exchange import EnvelopeError
from millrace.engine.program import Component, Edge
from millrace.engine.rows import ID, Array, Batch, concat, dense
from millrace.engine.stateio import TaskState
from millrace.engine.steps.base import CollectingStep, Outlet, Task
from millrace.protocol.types import Guarantee
from millrace.state.aggregates import Aggregate, AggregateOverflowError
from millrace.state.aggregatestate import AggregateState
from millrace.state.keys import hash_keys, key_groups

_PARTIAL = "+"


def lane_of_partials(edge: Edge) -> str:
    """Name under which an edge's combined rows travel."""
    return f"{edge.name}{_PARTIAL}"


def edge_of_lane(lane: str) -> str:
    return lane.removesuffix(_PARTIAL)


def is_partial(lane: str) -> bool:
    return lane.endswith(_PARTIAL)


def make_state(component: Component, groups: int) -> AggregateState:
    """An empty state of an aggregate."""
    assert component.rows is not None
    aggregates = [Aggregate(c.name, c.function, c.of) for c in component.columns]
    return AggregateState(component.rows, component.key, aggregates, groups)


def mask_array(mask: int, groups: int) -> Array:
    """Bit mask of key groups as a boolean array."""
    return np.array([mask >> group & 1 for group in range(groups)], bool)


def tree_roots(component: Component, groups: Array) -> Array:
    """Root numbers (uint32) of tuples that an aggregate emits for keys of these groups."""
    base = np.uint32(kernels.WINDOW_TREE | component.number << 16)
    return groups.astype(np.uint32) | base


class Combiner:
    """Combines what one edge brings to an aggregate, within the producing task."""

    def __init__(self, task: Task, edge: Edge, component: Component) -> None:
        self.task, self.edge, self.component = task, edge, component
        self._groups = task.program.key_groups
        self._state = make_state(component, self._groups)
        self._state.begin()
        mask = task.plan.uncombined.get(component.name, 0)
        self._apart = mask_array(mask, self._groups) if mask else None
        self._singles: list[Batch] = []
        self._merge: MergeStep | None = None

    def deliver_to(self, merge: MergeStep) -> None:
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
        books = self.task.books
        if not books.tracked or not rows.num_rows:
            return rows
        hashes = self._state.hashes()
        ids = kernels.emit_alike(hashes, self.task.id.partition, self.edge.id)
        books.net(self.edge.name).loose[0] ^= np.uint64(kernels.xor(ids))
        return rows.append_column(ID, pa.array(ids))

    def groups(self) -> Array:
        """Key group of each combined row."""
        return self._state.groups()

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

    def __init__(self, task: Task, edge: Edge, component: Component) -> None:
        super().__init__(task, edge)
        self._combiner = Combiner(task, edge, component)

    def deliver(self, batch: Batch) -> None:
        self._combiner.accept(batch)

    def parts(self) -> dict[str, dict[int, pa.Table]]:
        lanes: dict[str, dict[int, pa.Table]] = {}
        partials = self._combiner.partials()
        if partials.num_rows:
            readers = self.task.partition_of(self._combiner.groups())
            lanes[lane_of_partials(self.edge)] = {
                reader: pa.Table.from_batches([partials.take(pa.array(rows))])
                for reader in range(self.task.partitions)
                if (rows := np.flatnonzero(readers == reader)).size
            }
        singles = self._combiner.singles()
        if singles is not None:
            lanes[self.edge.name] = keyed_parts(self.task, self.edge, singles)
        return lanes


class MergeStep(CollectingStep):
    """Merges combined rows and single tuples into the totals, and emits what changed."""

    def __init__(self, task: Task, component: Component, outlet: Outlet, state: TaskState) -> None:
        super().__init__(task, component, outlet)
        self._state = state
        self._partials: list[tuple[Edge, pa.RecordBatch]] = []

    def accept_partial(self, edge: Edge, rows: pa.RecordBatch) -> None:
        self._partials.append((edge, rows))

    def finish(self) -> None:
        states: dict[int, AggregateState] = {}
        for edge, rows in self._partials:
            ids = rows.column(ID).to_numpy() if ID in rows.schema.names else None
            for shard, part in self._by_shard(rows):
                state = self._open(states, shard)
                try:
                    self._belong(shard, state, state.merge(part))
                except AggregateOverflowError as overflow:
                    report_overflow(self.task, self.component, overflow)
            if ids is not None:
                self.task.books.net(edge.name).loose[0] ^= np.uint64(kernels.xor(ids))
        self._partials = []
        contributors = self._merge_singles(states)
        if self.component.emit_final:
            self._emit_final(states)
            return
        for shard, state in sorted(states.items()):
            self._emit_changes(state, contributors.get(shard, []))

    # -- merging

    def _merge_singles(
        self, states: dict[int, AggregateState]
    ) -> dict[int, list[tuple[Array, Batch]]]:
        """Merge tuples that came one by one; by shard the table rows that each batch went into."""
        contributors: dict[int, list[tuple[Array, Batch]]] = {}
        overflows: dict[int, AggregateOverflowError] = {}
        singles = self._singles_by_edge()
        for edge, batch in singles:
            rows = aggregate_rows(self.component, edge, batch.data)
            for shard, chosen in self._shard_rows(rows):
                part = batch if chosen is None else batch.take(chosen)
                mine = rows if chosen is None else rows.take(pa.array(chosen))
                state = self._open(states, shard)
                try:
                    found = self._belong(shard, state, state.update(mine))
                except AggregateOverflowError as overflow:
                    overflows.setdefault(overflow.group, overflow)
                    continue
                contributors.setdefault(shard, []).append((found, part))
        if overflows:
            self._fail_singles([(batch, e) for e, batch in singles], overflows)
        return contributors

    def _singles_by_edge(self) -> list[tuple[Edge, Batch]]:
        found = []
        for edge, batch in self.waiting:
            left = self.task.failures.without_failed(batch)
            if len(left):
                found.append((edge, left))
                self.task.books.absorb(edge.name, left)
        self.waiting = []
        return found

    def _open(self, states: dict[int, AggregateState], shard: int) -> AggregateState:
        if shard not in states:
            groups = self.task.program.key_groups
            states[shard] = self._state.open(
                self.component, shard, lambda: make_state(self.component, groups)
            )
        return states[shard]

    def _by_shard(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        return [
            (shard, rows if chosen is None else rows.take(pa.array(chosen)))
            for shard, chosen in self._shard_rows(rows)
        ]

    def _shard_rows(self, rows: pa.RecordBatch) -> list[tuple[int, Array | None]]:
        """Shards and the rows of each, ``None`` for all."""
        shards = self._state.shards()
        if len(shards) == 1:
            return [(shards[0], None)]
        columns = [rows.column(name) for name in self.component.key]
        groups = key_groups(hash_keys(columns), self.task.program.key_groups)
        shard_of = groups % len(shards)
        return [(s, found) for s in shards if (found := np.flatnonzero(shard_of == s)).size]

    def _belong(self, shard: int, state: AggregateState, found: Array) -> Array:
        """Refuse keys that belong to another partition. Raises ``EnvelopeError``."""
        strangers = state.groups(found) % self.task.program.parallelism != shard
        if strangers.any():
            raise EnvelopeError(
                f"partition {shard} of {self.name!r} got {int(strangers.sum())} rows of keys that "
                "belong to another partition"
            )
        return found

    def _fail_singles(
        self,
        singles: Sequence[tuple[Batch, Edge]],
        overflows: Mapping[int, AggregateOverflowError],
    ) -> None:
        """All tuples of the key groups whose sums overflowed fail, whichever tipped it over."""
        if self.task.program.guarantee is not Guarantee.EXACTLY_ONCE:
            raise next(iter(overflows.values()))  # else a sum that wrapped around would be sealed
        for batch, edge in singles:
            columns = [batch.data.column(name) for name in edge.key]
            groups = key_groups(hash_keys(columns), self.task.program.key_groups)
            for group, overflow in overflows.items():
                for index in np.flatnonzero(groups == group).tolist():
                    self.task.fail(batch, index, self.name, overflow)

    # -- emitting

    def _emit_changes(
        self, state: AggregateState, contributors: Sequence[tuple[Array, Batch]]
    ) -> None:
        touched = state.touched()
        if not touched.size:
            return
        anchored = np.zeros(touched.size, bool)
        if contributors:
            named = np.unique(np.concatenate([found for found, _ in contributors]))
            anchored = np.isin(touched, named)
            self._emit_anchored(state, touched[anchored], contributors)
        self._emit_tree(state, touched[~anchored])

    def _emit_final(self, states: dict[int, AggregateState]) -> None:
        if not self.task.final:
            return
        for shard in self._state.shards():
            state = self._open(states, shard)
            self._emit_tree(state, np.arange(state.size, dtype=np.int64))

    def _emit_tree(self, state: AggregateState, rows: Array) -> None:
        """Emit totals to the window's own tree."""
        if not rows.size:
            return
        data = state.rows(rows)
        roots = tree_roots(self.component, state.groups(rows))
        hashes = state.hashes(rows)
        parent = Batch(data, roots, hashes if self.task.books.tracked else None)
        self.outlet.emit(data, parent, None)

    def _emit_anchored(
        self,
        state: AggregateState,
        rows: Array,
        contributors: Sequence[tuple[Array, Batch]],
    ) -> None:
        """Emit totals that carry every root that contributed to them."""
        place = {int(row): at for at, row in enumerate(rows)}
        roots: list[dict[int, None]] = [{} for _ in place]
        parents = np.zeros(rows.size, np.uint64)
        for found, batch in contributors:
            for index, row in enumerate(found.tolist()):
                at = place[row]
                if not roots[at] and batch.ids is not None:
                    parents[at] = batch.ids[index]
                roots[at].update(dict.fromkeys(batch.roots_at(index)))
        self.outlet.emit_anchored(
            state.rows(rows),
            parents,
            np.zeros(rows.size, np.uint32),
            np.array([next(iter(r)) for r in roots], np.uint32),
            pa.array([list(r) for r in roots], pa.list_(pa.uint32())),
            np.zeros(rows.size, np.uint64),
        )


def aggregate_rows(component: Component, edge: Edge, data: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that an aggregate looks at, under the names that its state has."""
    assert component.rows is not None
    renamed = dict(zip(component.key, edge.key, strict=True))
    arrays = [data.column(renamed.get(f.name, f.name)) for f in component.rows]
    picked = pa.RecordBatch.from_arrays(arrays, names=component.rows.names)
    return dense(picked)


def report_overflow(task: Task, component: Component, overflow: AggregateOverflowError) -> None:
    """A combined sum overflowed: its key group has to be run uncombined."""
    root = int(tree_roots(component, np.array([overflow.group]))[0])
    task.failures.add([root], component.name, str(overflow))
