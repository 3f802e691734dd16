"""State of a vectorised keyed function inside a worker: an array for each declared column.

Undo works as in ``AggregateState``: what rows hold is saved at their first touch. Not safe for use
by several threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.state.keyed.aggregates import column_of
from millrace.state.keyed.blobs import Blob
from millrace.state.keyed.keybytes import Array
from millrace.state.keyed.migrations import NO_MIGRATIONS, Migrations
from millrace.state.keyed.typedstate import TypedState

_Saved = tuple[Array, list[tuple[Array, ...]], Array]
"""Table rows (int64), what each column held for them, and their times (int64)."""


class ColumnState(TypedState):
    """Typed columns by key: ``find`` gives table rows for keys, ``read`` what they hold, and
    ``write`` sets it, to what was ``converted`` before."""

    def __init__(
        self,
        keys: pa.Schema,
        values: pa.Schema,
        key_groups: int,
        ttl_ms: int = 0,
        migrations: Migrations = NO_MIGRATIONS,
    ) -> None:
        super().__init__(keys, values, key_groups, ttl_ms, migrations)
        self.values = pa.schema(self._columns)
        self._held = [column_of(field.type) for field in self._columns]
        self._undo: list[_Saved] = []

    @property
    def size_bytes(self) -> int:
        ages = self._ages.size_bytes if self._ages is not None else 0
        return self._table.size_bytes + ages + sum(column.size_bytes for column in self._held)

    # -- a window attempt

    def find(self, keys: Sequence[pa.Array]) -> Array:
        """Table row (int64) of each key; all of them count as touched."""
        self._changing = True
        touched, before = self._table.touched_count, self._table.rows
        found = self._table.find_or_insert(keys)
        fresh = self._table.touched(touched)
        known = fresh[fresh < self._kept_rows]
        self._reserve(before)
        times = np.zeros(len(known), np.int64)
        saved = [column.save(known) for column in self._held]
        if self._ages is not None:
            times = self._ages.of(known)
            self._ages.reserve(before, self._table.rows)
            self._clear(known[self._ages.meet(known)])
        if len(known):
            self._undo.append((known, saved, times))
        self._changing = False
        return found

    def read(self, rows: Array) -> pa.RecordBatch:
        """What table rows hold: one row for each, null in all columns where there is no state."""
        return pa.RecordBatch.from_arrays(self._arrays(rows), schema=self.values)

    def converted(self, values: pa.RecordBatch) -> list[tuple[Array, ...]]:
        """The rows of a batch of the declared columns as ``write`` takes them; changes nothing.

        Raises ``ValueError`` for a value that cannot be held, such as an instant in a list that
        Python has not.
        """
        found = []
        for field, column, given in zip(self._columns, self._held, values.columns, strict=True):
            try:
                found.append(column.converted(given))
            except (pa.ArrowException, ValueError, OverflowError) as error:
                raise ValueError(f"state column {field.name!r}: {error}") from error
        return found

    def write(self, rows: Array, values: list[tuple[Array, ...]]) -> None:
        """Set table rows, each named once, to rows that are ``converted``; those that change are as
        young as the window."""
        self._changing = True
        timed = self._ages is not None
        before = [column.save(rows) for column in self._held] if timed else []
        for column, one in zip(self._held, values, strict=True):
            column.restore(rows, one)
        if self._ages is not None:
            self._ages.update(rows[self._differs(rows, before)])
        self._changing = False

    def delta(self) -> Blob | None:
        rows, held, changed, now = self._changes()
        rows = rows[changed & (held | now)]
        return self._blob(rows) if len(rows) else None

    # -- what rows hold

    def _forget_undo(self) -> None:
        self._undo = []

    def _settle(self) -> None:
        rows, held, _, now = self._changes()
        fresh = rows >= self._kept_rows
        self._deleted += int((fresh & ~now).sum()) + int((held & ~now).sum())
        self._deleted -= int((~fresh & ~held & now).sum())

    def _restore(self) -> None:
        for rows, saved, _ in self._undo:
            for column, one in zip(self._held, saved, strict=True):
                column.restore(rows, one)

    def _changes(self) -> tuple[Array, Array, Array, Array]:
        """Touched table rows (int64), and masks of them: had state before the attempt, changed or
        made younger by it, have state now."""
        rows = self.touched()
        held, changed = np.zeros(len(rows), bool), rows >= self._kept_rows
        for known, saved, times in self._undo:
            at = np.searchsorted(rows, known)
            for column, one in zip(self._held, saved, strict=True):
                held[at] |= column.present(one)
            changed[at] = self._differs(known, saved)
            if self._ages is not None:
                changed[at] |= self._ages.of(known) != times
        return rows, held, changed, self._present(rows)

    def _differs(self, rows: Array, saved: list[tuple[Array, ...]]) -> Array:
        """Mask of the rows of which some column does not hold what was saved."""
        found = np.zeros(len(rows), bool)
        for column, one in zip(self._held, saved, strict=True):
            found |= column.differs(rows, one)
        return found

    def _present(self, rows: Array) -> Array:
        found = np.zeros(len(rows), bool)
        for column in self._held:
            found |= column.present(column.save(rows))
        return found

    def _clear(self, rows: Array) -> None:
        for column in self._held:
            column.clear(rows)

    def _reserve(self, known: int) -> None:
        for column in self._held:
            column.reserve(known, self._table.rows)

    def _set(self, rows: Array, columns: list[pa.Array]) -> None:
        for held, column in zip(self._held, columns, strict=True):
            held.replace(rows, column)

    def _keep(self, rows: Array) -> None:
        kept = self._arrays(rows)
        self._held = [column_of(field.type) for field in self._columns]
        for held in self._held:
            held.reserve(0, len(rows))
        self._set(np.arange(len(rows)), kept)

    def _arrays(self, rows: Array) -> list[pa.Array]:
        return [column.column(rows) for column in self._held]
