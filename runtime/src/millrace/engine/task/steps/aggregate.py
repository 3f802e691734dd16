"""Declared aggregates: what was combined before the exchange is merged into the state behind it.

What the aggregate emits for a key of an *uncombined* group (``combine``) carries every root that
contributed to it in this window; the rest belongs to the window's own tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from millrace.engine.program.aggregates import state_of
from millrace.engine.program.program import Channel, Component
from millrace.engine.task import kernels
from millrace.engine.task.batch import ID, Array, Batch
from millrace.engine.task.combine import aggregate_rows, report_overflow, tree_roots
from millrace.engine.task.context import Task
from millrace.engine.task.exchange import EnvelopeError
from millrace.engine.task.state import TaskState
from millrace.engine.task.steps.base import CombiningStep, Outlet
from millrace.protocol.types import Guarantee
from millrace.state.keyed.aggregates import AggregateOverflowError
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.cache import Touched
from millrace.state.keyed.keys import hash_keys, key_groups, mask_of


class MergeStep(CombiningStep):
    """Merges combined rows and single tuples into the totals, and emits what changed."""

    def __init__(self, task: Task, component: Component, outlet: Outlet, state: TaskState) -> None:
        super().__init__(task, component, outlet)
        self._state = state
        self._partials: list[tuple[Channel, pa.RecordBatch]] = []
        self._touched: Touched | None = None

    def accept_partial(self, edge: Channel, rows: pa.RecordBatch) -> None:
        self._partials.append((edge, rows))

    def finish(self) -> None:
        states: dict[int, AggregateState] = {}
        final = self.component.emit_final and self.task.final
        self._touched = None if final else self._groups_of_all()
        for edge, rows in self._partials:
            ids = rows.column(ID).to_numpy() if ID in rows.schema.names else None
            for shard, part in self._by_shard(rows):
                state = self._open(states, shard)
                try:
                    state.merge(part)
                except AggregateOverflowError as overflow:
                    report_overflow(self.task, self.component, overflow)
            if ids is not None:
                self.task.books.add_to_tree(edge.name, kernels.xor(ids))
        self._partials = []
        contributors = self._merge_singles(states)
        for shard, state in states.items():
            self._belong(shard, state)
        self._touched = None
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
                    found = state.update(mine)
                except AggregateOverflowError as overflow:
                    overflows.setdefault(overflow.hashed, overflow)
                    continue
                contributors.setdefault(shard, []).append((found, part))
        if overflows:
            self._fail_singles([(batch, e) for e, batch in singles], overflows)
        return contributors

    def _singles_by_edge(self) -> list[tuple[Channel, Batch]]:
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
                self.component,
                shard,
                lambda: state_of(self.component, groups, self.component.ttl_ms),
                self._touched,
            )
        return states[shard]

    def _groups_of_all(self) -> Touched:
        """Says once it is asked which key groups the rows that wait now belong to."""
        waiting = [(self.component.key, rows) for _, rows in self._partials]
        waiting += [(edge.key, batch.data) for edge, batch in self.waiting]
        count = self.task.program.key_groups

        @cache
        def touched() -> int:
            mask = 0
            for names, rows in waiting:
                mask |= mask_of(key_groups(hash_keys([rows.column(n) for n in names]), count))
            return mask

        return touched

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

    def _belong(self, shard: int, state: AggregateState) -> None:
        """Refuse keys that belong to another partition. Raises ``EnvelopeError``."""
        strangers = state.groups(state.touched()) % self.task.program.parallelism != shard
        if strangers.any():
            raise EnvelopeError(
                f"partition {shard} of {self.name!r} got {int(strangers.sum())} keys that belong "
                "to another partition"
            )

    def _fail_singles(
        self,
        singles: Sequence[tuple[Batch, Channel]],
        overflows: Mapping[int, AggregateOverflowError],
    ) -> None:
        """All tuples of the keys (by hash) whose sums overflowed fail, whichever tipped it over."""
        if self.task.program.guarantee is not Guarantee.EXACTLY_ONCE:
            raise next(iter(overflows.values()))  # else a sum that wrapped around would be sealed
        for batch, edge in singles:
            hashes = hash_keys([batch.data.column(name) for name in edge.key])
            for hashed, overflow in overflows.items():
                for index in np.flatnonzero(hashes == np.uint64(hashed)).tolist():
                    self.task.fail(batch, index, self.name, overflow)

    # -- emitting

    def _emit_changes(
        self, state: AggregateState, contributors: Sequence[tuple[Array, Batch]]
    ) -> None:
        touched = state.touched()
        if not touched.size:
            return
        if contributors:
            named = np.unique(np.concatenate([found for found, _ in contributors]))
            anchored = np.isin(touched, named)
            self._emit_anchored(state, touched[anchored], contributors)
            touched = touched[~anchored]
        self._emit_tree(state, touched)

    def _emit_final(self, states: dict[int, AggregateState]) -> None:
        if not self.task.final:
            return
        for shard in self._state.shards():
            state = self._open(states, shard)
            self._emit_tree(state, state.live())

    def _emit_tree(self, state: AggregateState, rows: Array) -> None:
        """Emit totals to the window's own tree."""
        if not rows.size:
            return
        data = state.rows(rows)
        roots = tree_roots(self.component, state.groups(rows))
        hashes = state.hashes(rows)
        parent = Batch.of(data, roots, hashes if self.task.books.tracked else None)
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
