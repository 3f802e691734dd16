"""Tuples looked up in a small table without user code (``lookup``).

The table's keys are hashed once for each process; a batch is looked up at a stroke by the tables
that keep keyed state (``state.keyed``), whose rule of what is equal this is: numbers of any width,
-0.0 and 0.0, every NaN and every other. A null is equal to nothing: keys of the table have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa

from millrace.engine.program.program import Component, Matching
from millrace.engine.program.tablefile import opened
from millrace.engine.task.batch import (
    MOST_TAKEN,
    Array,
    Batch,
    slices,
    widest_row,
    without_views,
)
from millrace.engine.task.context import Task
from millrace.engine.task.steps.base import CertainStep, Outlet
from millrace.errors import EngineError
from millrace.sources.decode import shown
from millrace.state.keyed.keytable import KeyTable
from millrace.topology.parts import OnMissing


class TableIndex:
    """The rows of a table by key; safe for several threads. ``rows`` is a record batch, ``widest``
    the most bytes that one of them takes.

    Raises ``EngineError`` where the file is not one of ``Program.tables``.
    """

    def __init__(self, file: Path) -> None:
        self.rows, names = opened(file)
        columns = [self.rows.column(name) for name in names]
        self.widest = widest_row(self.rows.columns)
        self._finding = Lock()
        self._keys = KeyTable([column.type for column in columns])
        self._keys.begin()
        self._keys.find_or_insert(columns)
        if self._keys.rows != len(self.rows):
            raise EngineError(f"{file}: a table has {len(self.rows)} rows and fewer keys")

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def find(self, columns: Sequence[pa.Array]) -> Array:
        """For each row of the columns (one for each of the key's) the row of the table that has its
        key: int64, not below the number of rows where none has."""
        with self._finding:
            self._keys.begin()
            try:
                return self._keys.find_or_insert(columns)
            finally:
                self._keys.truncate(len(self))


class LookupStep(CertainStep):
    """Emits each tuple with columns of its row of the table."""

    def __init__(self, task: Task, component: Component, outlet: Outlet, table: TableIndex) -> None:
        super().__init__(task, component, outlet)
        settings = component.settings
        assert isinstance(settings, Matching)
        assert component.output is not None
        self._settings = settings
        self._names = component.output.names
        self._kept = self._names[: len(self._names) - len(settings.added)]
        self._table = table
        self._added = [table.rows.column(name) for name in settings.added]
        self._slice = max(1, MOST_TAKEN // table.widest) if self._added else MOST_TAKEN

    def process(self, batch: Batch) -> None:
        for part in slices(batch, self._slice):
            self._process(part)

    def _process(self, batch: Batch) -> None:
        columns = [batch.data.column(name) for name, _ in self._settings.key]
        rows = self._table.find(columns)
        lacking = rows >= len(self._table)
        if not lacking.any():
            self.outlet.emit(self._with_added(batch.data, pa.array(rows)), batch, None)
            return
        if self._settings.missing is OnMissing.KEEP:
            where = pa.array(rows, mask=lacking)
            self.outlet.emit(self._with_added(batch.data, where), batch, None)
            return
        if self._settings.missing is OnMissing.FAIL:
            for index in np.flatnonzero(lacking).tolist():
                self.fail_for_good(batch, index, self._told(columns, index))
        good = np.flatnonzero(~lacking)
        data = without_views(batch.data).take(pa.array(good))
        self.outlet.emit(self._with_added(data, pa.array(rows[good])), batch, good)

    def _with_added(self, data: pa.RecordBatch, where: pa.Array) -> pa.RecordBatch:
        kept = [data.column(name) for name in self._kept]
        added = [column.take(where) for column in self._added]
        return pa.RecordBatch.from_arrays([*kept, *added], names=self._names)

    def _told(self, columns: Sequence[pa.Array], index: int) -> str:
        pairs = zip(self._settings.key, columns, strict=True)
        key = ", ".join(f"{of} = {shown(column[index])}" for (_, of), column in pairs)
        return f"{self._settings.path} has no row of {key}"
