"""State of a declared keyed aggregation inside a worker: a key table beside accumulators.

Between ``begin`` and ``commit`` or ``rollback`` the state belongs to one window attempt: the
first change of a key saves what it had, new keys are the newest rows, so undoing costs as much
as was touched. Not safe for use by several threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.state.errors import StateSchemaError
from millrace.state.keyed import blobs
from millrace.state.keyed.ages import Ages, bare, parted
from millrace.state.keyed.aggregates import (
    Accumulator,
    Aggregate,
    AggregateOverflowError,
    TextAccumulator,
    accumulator_of,
    final,
    partial_columns,
    partials,
)
from millrace.state.keyed.blobs import Blob
from millrace.state.keyed.keybytes import Array, check_key_type
from millrace.state.keyed.keys import groups_in, order_by_group, shown_columns, shown_key
from millrace.state.keyed.keys import key_groups as group_of
from millrace.state.keyed.keytable import KeyTable, Room


class AggregateState:
    """Totals by key.

    ``inputs`` is the schema of the rows to aggregate, ``keys`` names its key columns;
    ``key_groups`` is K. With ``ttl_ms`` a key that had no row for so long begins anew (``ages``).
    Raises ``KeyTypeError`` and ``TopologyError`` for what cannot be.
    """

    kind = "aggregate"

    def __init__(
        self,
        inputs: pa.Schema,
        keys: Sequence[str],
        aggregates: Sequence[Aggregate],
        key_groups: int,
        ttl_ms: int = 0,
    ) -> None:
        self.aggregates = tuple(aggregates)
        self._ages = Ages(ttl_ms) if ttl_ms else None
        self._time_ms = 0
        self.key_groups = key_groups
        self._keys = [inputs.field(name).remove_metadata() for name in keys]
        for field in self._keys:
            check_key_type(field.name, field.type)
        self._parts = [partial_columns(aggregate, inputs) for aggregate in aggregates]
        self._accumulators = [accumulator_of(part) for parts in self._parts for part in parts]
        self._table = KeyTable([field.type for field in self._keys])
        self.columns = blobs.digest_of_columns(self.partial_schema, self.kind)
        self._kept_rows = 0
        self._undo: list[tuple[Array, list[tuple[Array, ...]]]] = []
        self._in_order: Array | None = None
        self._their_hashes: Array | None = None
        self._changing = False

    # -- schemas

    @property
    def partial_schema(self) -> pa.Schema:
        """Key columns and partial columns: what ``merge`` takes, and blobs hold beside times."""
        fields = [pa.field(a.part.name, a.part.kind) for a in self._accumulators]
        return pa.schema([*self._keys, *fields])

    @property
    def output_schema(self) -> pa.Schema:
        """Key columns and one column for each aggregate: what ``rows`` gives."""
        kinds = [
            pa.float64() if a.function == "avg" else parts[0].kind
            for a, parts in zip(self.aggregates, self._parts, strict=True)
        ]
        named = zip(self.aggregates, kinds, strict=True)
        return pa.schema([*self._keys, *(pa.field(a.name, kind) for a, kind in named)])

    @property
    def size(self) -> int:
        """Number of keys."""
        return self._table.rows

    @property
    def size_bytes(self) -> int:
        ages = self._ages.size_bytes if self._ages is not None else 0
        return self._table.size_bytes + ages + sum(a.size_bytes for a in self._accumulators)

    @property
    def room(self) -> Room:
        """What the keys take, for ``make_room`` of another."""
        return self._table.room

    def make_room(self, room: Room) -> None:
        """Be as large at once as it will be; where nothing is held yet."""
        keys = self._table.make_room(room)
        for accumulator in self._accumulators if keys else ():
            accumulator.reserve(0, keys)

    @property
    def broken(self) -> bool:
        """Whether a change was interrupted half-way, so that nothing can be undone."""
        return self._changing

    # -- a window attempt

    def begin(self, time_ms: int = 0) -> None:
        """Start an attempt of a window of this time: nothing is touched, and from here all can be
        undone."""
        self._time_ms = time_ms
        self._table.begin()
        self._kept_rows = self._table.rows
        self._undo = []
        self._in_order = self._their_hashes = None
        if self._ages is not None:
            self._ages.begin(time_ms)

    def commit(self) -> None:
        """Keep what the attempt changed; frees expired keys when they are many."""
        if self._ages is not None and self._ages.sweep_due():
            self._sweep(self._ages)
        self.begin(self._time_ms)

    def rollback(self) -> None:
        """Undo what the attempt changed."""
        for rows, saved in self._undo:
            for accumulator, one in zip(self._accumulators, saved, strict=True):
                accumulator.restore(rows, one)
        self._table.truncate(self._kept_rows)
        if self._ages is not None:
            self._ages.rollback()
        self.begin(self._time_ms)

    def merge(self, batch: pa.RecordBatch) -> Array:
        """Merge partial rows (``partial_schema``, any order of columns, keys may repeat).

        Returns the table row (int64) of each row. Raises ``AggregateOverflowError``; the attempt
        can still be rolled back then.
        """
        columns = [batch.column(a.part.name) for a in self._accumulators]
        return self._merge(batch, columns)

    def update(self, batch: pa.RecordBatch) -> Array:
        """Merge single input rows; returns and raises as ``merge``."""
        if all(a.function == "count" and a.of is None for a in self.aggregates):
            return self._merge(batch, None)
        parts = [part for one in self.aggregates for part in partials(one, batch)]
        return self._merge(batch, parts)

    def touched(self) -> Array:
        """Table rows (int64) that this attempt touched, each once, ascending.

        Reading rows in this order is several times as fast as in the order of touch; which row a
        key has depends on what this process did before. Until more is touched it is one and the
        same array.
        """
        if self._in_order is None or len(self._in_order) != self._table.touched_count:
            self._in_order, self._their_hashes = self._table.touched_in_order(), None
        return self._in_order

    # -- reading

    def live(self) -> Array:
        """Table rows (int64) of the keys that have not expired."""
        rows = np.arange(self._table.rows)
        return rows if self._ages is None else rows[~self._ages.expired(rows)]

    def rows(self, rows: Array | None = None) -> pa.RecordBatch:
        """Keys and results of table rows (None: all)."""
        rows = self._all(rows)
        columns = iter(self._partial_columns(rows))
        results = [
            final(aggregate, [next(columns) for _ in parts])
            for aggregate, parts in zip(self.aggregates, self._parts, strict=True)
        ]
        return pa.RecordBatch.from_arrays(
            [*self._table.keys(rows), *results], schema=self.output_schema
        )

    def partials(self, rows: Array | None = None) -> pa.RecordBatch:
        """Keys and partial values of table rows (None: all)."""
        rows = self._all(rows)
        return pa.RecordBatch.from_arrays(
            [*self._table.keys(rows), *self._partial_columns(rows)], schema=self.partial_schema
        )

    def hashes(self, rows: Array | None = None) -> Array:
        """Key hashes (uint64) of table rows (None: all)."""
        if rows is None or rows is not self._in_order:
            return self._table.hashes(rows)
        if self._their_hashes is None:
            self._their_hashes = self._table.hashes(rows)
        return self._their_hashes

    def groups(self, rows: Array | None = None) -> Array:
        """Key groups (int64) of table rows (None: all)."""
        return group_of(self.hashes(rows), self.key_groups)

    # -- blobs

    def delta(self) -> Blob | None:
        """State object of the touched keys' whole partial values; None when there are none."""
        rows = self.touched()
        return self._blob(rows) if len(rows) else None

    def base(self, groups: int = -1) -> Blob:
        """State object of all keys in key groups (mask; -1: all)."""
        rows = self.live()
        return self._blob(rows if groups == -1 else rows[groups_in(self.groups(rows), groups)])

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises ``StateSchemaError`` unless rows of an object of this schema can be applied."""
        stored = bare(schema, self.partial_schema)
        if stored.remove_metadata() != self.partial_schema:
            raise StateSchemaError(
                f"stored totals have columns ({shown_columns(stored)}), the processor now has "
                f"({shown_columns(self.partial_schema)}): give the processor another name, or "
                "start over with --fresh"
            )

    def apply(self, batch: pa.RecordBatch) -> Array:
        """Set keys to the values of a state object's rows; not within an attempt. Returns the table
        row (int64) of each."""
        self.check_columns(batch.schema)
        batch, times = parted(batch, self.partial_schema)
        self._changing = True
        self._table.begin()
        before = self._table.rows
        columns = batch.columns
        found = self._table.find_or_insert(columns[: len(self._keys)])
        for accumulator, column in zip(self._accumulators, columns[len(self._keys) :], strict=True):
            accumulator.reserve(before, self._table.rows)
            accumulator.replace(found, column)
        if self._ages is not None:
            self._ages.reserve(before, self._table.rows)
            self._ages.load(found, times)
        self.begin(self._time_ms)
        self._changing = False
        return found

    def forget(self, groups: int, but: Array) -> None:
        """Forget the keys of key groups (mask) but for some table rows (int64), which may be
        others afterwards; not within an attempt."""
        stays = ~groups_in(self.groups(), groups)
        stays[but] = True
        if not stays.all():
            self._changing = True
            self._keep(np.flatnonzero(stays))
            self.begin(self._time_ms)
            self._changing = False

    # -- helpers

    def _merge(self, batch: pa.RecordBatch, columns: list[pa.Array] | None) -> Array:
        self._changing = True
        touched, before = self._table.touched_count, self._table.rows
        found = self._table.find_or_insert([batch.column(f.name) for f in self._keys])
        fresh = self._table.touched(touched)
        known = fresh[fresh < self._kept_rows]
        for accumulator in self._accumulators:
            accumulator.reserve(before, self._table.rows)
        if len(known):
            self._undo.append((known, [a.save(known) for a in self._accumulators]))
        if self._ages is not None:
            self._ages.reserve(before, self._table.rows)
            expired = known[self._ages.meet(known)]
            for accumulator in self._accumulators if len(expired) else ():
                accumulator.clear(expired)
            self._ages.update(fresh)
        overflow: tuple[Accumulator | TextAccumulator, int] | None = None
        for at, accumulator in enumerate(self._accumulators):
            if columns is None:
                assert isinstance(accumulator, Accumulator)
                accumulator.count(found)
                continue
            item = accumulator.merge(found, columns[at])
            overflow = (accumulator, item) if item >= 0 else overflow
        self._changing = False
        if overflow is not None:
            raise self._overflow(*overflow, found)
        return found

    def _overflow(
        self, at: Accumulator | TextAccumulator, item: int, found: Array
    ) -> AggregateOverflowError:
        row = found[item : item + 1]
        key = shown_key(self._table.keys(row))
        group, hashed = int(self.groups(row)[0]), int(self.hashes(row)[0])
        return AggregateOverflowError(at.part.name, key, group, hashed)

    def _all(self, rows: Array | None) -> Array:
        return np.arange(self._table.rows) if rows is None else rows

    def _partial_columns(self, rows: Array) -> list[pa.Array]:
        return [accumulator.column(rows) for accumulator in self._accumulators]

    def _sweep(self, ages: Ages) -> None:
        """Build table and accumulators anew once most keys have expired."""
        live = self.live()
        if self._table.rows - len(live) <= max(1024, len(live)):
            return
        self._keep(live)

    def _keep(self, rows: Array) -> None:
        """Build table and accumulators anew, of some rows alone."""
        kept = self.partials(rows)
        times = np.zeros(0, np.int64) if self._ages is None else self._ages.of(rows)
        self._table = KeyTable([field.type for field in self._keys])
        self._accumulators = [accumulator_of(a.part) for a in self._accumulators]
        found = self._table.find_or_insert([kept.column(f.name) for f in self._keys])
        for accumulator in self._accumulators:
            accumulator.reserve(0, len(rows))
            accumulator.replace(found, kept.column(accumulator.part.name))
        if self._ages is not None:
            self._ages.load(found, times)

    def _blob(self, rows: Array) -> Blob:
        order, starts = order_by_group(self.hashes(rows), self.key_groups)
        rows = rows[order]
        times = None if self._ages is None else self._ages.of(rows)
        return blobs.write_sorted(self.partials(rows), starts, self.kind, self._time_ms, times)
