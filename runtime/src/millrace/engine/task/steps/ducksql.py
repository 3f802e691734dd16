"""SQL steps inside the worker: DuckDB evaluates them, a batch at a stroke (``sql.engine``).

A row on which an expression raises is found by halving, and fails its own roots for good: with
the same values it would raise again. So is a row that needs more memory than DuckDB may have, which
fails as where a function of the user's does. What is wrong with DuckDB itself blames nobody.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

from millrace.engine.program import duck
from millrace.engine.program.program import Component, SqlExpressions
from millrace.engine.program.schema import check, conform
from millrace.engine.task.batch import Array, Batch, one_batch, without_views
from millrace.engine.task.context import Task
from millrace.engine.task.steps.base import CertainStep, Outlet
from millrace.errors import EngineError

_ROW_ERRORS = (*duck.ROW_ERRORS, pa.ArrowInvalid, MemoryError)

Part = tuple[pa.RecordBatch, Array]
"""Rows that come out, and the row (int64) that each is made of."""


class DuckStep(CertainStep):
    """Emits what is selected of each row for which the condition holds."""

    def __init__(self, task: Task, component: Component, outlet: Outlet) -> None:
        super().__init__(task, component, outlet)
        assert isinstance(component.settings, SqlExpressions)
        self._settings = component.settings
        self._query = ""

    def process(self, batch: Batch) -> None:
        data = without_views(batch.data)
        if not self._query:
            self._query = duck.query_of(self._settings, data.schema.names)
        self.task.worked_on(self.name, batch)
        parts: list[Part] = []
        self._take(batch, data, 0, parts)
        self.task.box.end()
        if not parts:
            return
        rows = np.concatenate([rows for _, rows in parts])
        whole = one_batch(pa.Table.from_batches([made for made, _ in parts]))
        parents = None if rows.size == len(batch) else rows
        self.outlet.emit(whole, batch, parents)

    def _take(self, batch: Batch, data: pa.RecordBatch, start: int, parts: list[Part]) -> None:
        """Evaluate the rows from ``start`` on that ``data`` holds, in halves where that fails."""
        self.task.box.progress()
        try:
            made, rows = self._evaluate(data)
            parts.append((made, rows + start))
            return
        except _ROW_ERRORS as error:
            if data.num_rows == 1:
                self._fail(batch, start, error)
                return
        half = data.num_rows // 2
        self._take(batch, data.slice(0, half), start, parts)
        self._take(batch, data.slice(half), start + half, parts)

    def _fail(self, batch: Batch, index: int, error: Exception) -> None:
        if isinstance(error, MemoryError):
            self.task.fail(batch, index, self.name, error)
        else:
            self.fail_for_good(batch, index, duck.reason(error))

    def _evaluate(self, data: pa.RecordBatch) -> Part:
        assert self.component.output is not None
        try:
            found = duck.evaluate(self._query, duck.numbered(data))
        except duckdb.OutOfMemoryException as error:
            duck.renew()
            told = str(error).split("\n")[0]  # the advice behind it is for who has settings
            raise MemoryError(told.removeprefix("Out of Memory Error: ")) from error
        except duckdb.Error as error:
            if self._blames_rows(error, data):
                raise
            duck.renew()
            raise EngineError(
                f"SQL step {self.name!r}: DuckDB failed: {duck.reason(error)}"
            ) from error
        rows = found.column(found.num_columns - 1).to_numpy()
        self._check(rows, data.num_rows)
        names = self.component.output.names
        columns = dict(zip(names, found.columns[:-1], strict=True))
        data = conform(columns, self.component.output, self.name)
        check(data)
        return data, rows

    def _blames_rows(self, error: Exception, data: pa.RecordBatch) -> bool:
        """Whether DuckDB raised this for values. What it says it has not may be a value of one row,
        which names a part of a date, or the query: that is then so without rows, too."""
        if isinstance(error, duckdb.NotSupportedError) and data.num_rows == 1:
            return duck.blames_row(error) and duck.can_evaluate(self._query, data)
        return duck.blames_row(error)

    def _check(self, rows: Array, count: int) -> None:
        """Raises ``EngineError`` where rows came out that did not go in, or in another order."""
        rising = not rows.size or (rows[0] >= 0 and rows[-1] < count and (np.diff(rows) > 0).all())
        if not rising or (self._settings.where is None and rows.size != count):
            raise EngineError(
                f"SQL step {self.name!r}: DuckDB gave {rows.size} rows of {count} that are not "
                "those that it was given"
            )
