"""Row functions, vectorised functions and filters.

A tuple on which user code raises has its outputs dropped and is called again at the end of the
batch; what raises again fails the tuple's roots. A vectorised function that raises is called with
halves of the batch, down to the tuples that it cannot bear.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.program.program import Component
from millrace.engine.program.schema import OutputError, conform, own, rows_held
from millrace.engine.task.batch import Array, Batch, one_batch
from millrace.engine.task.context import Task
from millrace.engine.task.steps.base import Outlet, StreamingStep
from millrace.engine.task.steps.output import RowBuffer
from millrace.errors import is_order


class RowStep(StreamingStep):
    """Calls ``f(row)`` for each tuple."""

    def __init__(
        self, task: Task, component: Component, outlet: Outlet, function: Callable[..., Any]
    ) -> None:
        super().__init__(task, component, outlet)
        self._function = function

    def process(self, batch: Batch) -> None:
        assert self.component.output is not None
        buffer = RowBuffer(self.component.output, self.name)
        batch, rows = self.held(batch)
        function, box, add = self._function, self.task.box, buffer.adder()
        again: list[int] = []
        self.task.worked_on(self.name, batch)
        for index, row in enumerate(rows):
            if monotonic() >= box.due_s:
                box.progress()
            try:
                add(function(row), index)
            except BaseException as error:
                if is_order(error):
                    raise
                again.append(index)
        if again:
            fresh, _ = rows_held(batch.data)  # the first call may have changed its row
            for index in again:
                self._call_again(buffer, batch, fresh[index], index)
        box.end()
        self._emit(buffer, batch)

    def _call_again(self, buffer: RowBuffer, batch: Batch, row: dict[str, Any], index: int) -> None:
        self.task.box.progress()
        try:
            buffer.add_all(self._function(row), index)
        except BaseException as error:
            if is_order(error):
                raise
            self.task.fail(batch, index, self.name, error)

    def _emit(self, buffer: RowBuffer, batch: Batch) -> None:
        data, parents, misfits = buffer.build()
        for index, error in misfits.items():
            self.task.fail(batch, index, self.name, error)
        self.outlet.emit(data, batch, parents)


class WhereStep(StreamingStep):
    """Calls ``f(row) -> bool`` for each tuple and lets through those for which it is true."""

    def __init__(
        self, task: Task, component: Component, outlet: Outlet, function: Callable[..., Any]
    ) -> None:
        super().__init__(task, component, outlet)
        self._function = function

    def process(self, batch: Batch) -> None:
        batch, rows = self.held(batch)
        function, box = self._function, self.task.box
        wanted = bytearray(len(batch))
        again: list[int] = []
        self.task.worked_on(self.name, batch)
        for index, row in enumerate(rows):
            if monotonic() >= box.due_s:
                box.progress()
            try:
                found = function(row)
                if found is True or (found is not False and self._is_wanted(found)):
                    wanted[index] = True
            except BaseException as error:
                if is_order(error):
                    raise
                again.append(index)
        fresh = rows_held(batch.data)[0] if again else []
        for index in again:
            box.progress()
            try:
                if self._is_wanted(function(fresh[index])):
                    wanted[index] = True
            except BaseException as error:
                if is_order(error):
                    raise
                self.task.fail(batch, index, self.name, error)
        box.end()
        keep = np.frombuffer(wanted, bool)
        if keep.all():
            self.outlet.emit(batch.data, batch, None)
        else:
            kept = np.flatnonzero(keep)
            self.outlet.emit(batch.data.take(pa.array(kept)), batch, kept)

    def _is_wanted(self, found: Any) -> bool:
        """The truth of what the function gave; what has not run yet says nothing of it."""
        if isinstance(found, Generator | Awaitable | AsyncGenerator):
            raise OutputError(
                f"processor {self.name!r} returned {type(found).__name__}, which is always true; "
                "return True or False"
            )
        return bool(found)


class VectorStep(StreamingStep):
    """Calls ``f(record batch) -> (columns, parents)`` for whole batches."""

    def __init__(
        self, task: Task, component: Component, outlet: Outlet, function: Callable[..., Any]
    ) -> None:
        super().__init__(task, component, outlet)
        self._function = function

    def process(self, batch: Batch) -> None:
        parts: list[tuple[pa.RecordBatch, Array]] = []
        again: list[int] = []
        self.task.worked_on(self.name, batch)
        self._bisect(batch.data, 0, len(batch), parts, again)
        for index in again:
            self.task.box.progress()
            try:
                parts.append(self._call(batch.data, index, 1))
            except BaseException as error:
                if is_order(error):
                    raise
                self.task.fail(batch, index, self.name, error)
        self.task.box.end()
        if not parts:
            return
        if len(parts) == 1:
            data, parents = parts[0]
        else:
            data = one_batch(pa.Table.from_batches([p[0] for p in parts]))
            parents = np.concatenate([p[1] for p in parts])
        self.outlet.emit(data, batch, parents)

    def _bisect(
        self,
        data: pa.RecordBatch,
        start: int,
        count: int,
        parts: list[tuple[pa.RecordBatch, Array]],
        again: list[int],
    ) -> None:
        self.task.box.progress()
        try:
            parts.append(self._call(data, start, count))
            return
        except BaseException as error:
            if is_order(error):
                raise
            if count == 1:
                again.append(start)
                return
        half = count // 2
        self._bisect(data, start, half, parts, again)
        self._bisect(data, start + half, count - half, parts, again)

    def _call(self, data: pa.RecordBatch, start: int, count: int) -> tuple[pa.RecordBatch, Array]:
        part = data if count == data.num_rows else data.slice(start, count)
        result = self._function(part)
        if not isinstance(result, tuple) or len(result) != 2:
            raise OutputError(
                f"processor {self.name!r} returned {type(result).__name__}; return "
                "(columns, parents), parents being the index of each output row's input row"
            )
        assert self.component.output is not None
        columns = own(conform(result[0], self.component.output, self.name))
        return columns, parents_of(result[1], columns.num_rows, count, self.name) + start


def parents_of(given: Any, rows: int, count: int, processor: str) -> Array:
    """What a function gave as the parents of its output rows, out of ``count`` input rows: int64.

    Raises ``OutputError`` unless they are ``rows`` indices below ``count``.
    """
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, pa.Array):
        given = given.to_numpy(zero_copy_only=False)
    try:
        parents = np.asarray(given)
    except ValueError as error:
        raise OutputError(
            f"processor {processor!r} returned parents that are no array ({error}); return one "
            "integer for each output row"
        ) from error
    if parents.size == 0:
        parents = parents.astype(np.int64)
    if parents.ndim != 1 or parents.dtype.kind not in "iu":
        raise OutputError(
            f"processor {processor!r} returned parents of type {parents.dtype} with "
            f"{parents.ndim} dimensions; return one integer for each output row"
        )
    if parents.size != rows:
        raise OutputError(
            f"processor {processor!r} returned {parents.size} parents for {rows} output rows; "
            "return one for each"
        )
    if rows and (int(parents.min()) < 0 or int(parents.max()) >= count):
        raise OutputError(
            f"processor {processor!r} returned parents from {parents.min()} to "
            f"{parents.max()} for a batch of {count} rows; they must lie in 0..{count - 1}"
        )
    return parents.astype(np.int64, copy=False)
