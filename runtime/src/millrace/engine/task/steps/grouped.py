"""Grouped functions: the rows of many keys in one call, with arrays of their state in and out.

State is written when a call has gone well and what it gave back is sound, so whatever raises has
changed nothing. A batch on which the function raises is cut into halves, first between keys, then
within the rows of one, which go one half after the other and hand the state on; a row that it
cannot bear alone is tried once more, then its roots fail, and the key's state is as it was before.
What a function must not give back whatever the rows are (columns, types, lengths, parents) ends the
attempt and is nobody's root's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.program.program import Component
from millrace.engine.program.schema import OutputError, check, conform, own
from millrace.engine.task import kernels
from millrace.engine.task.batch import Array, Batch, concat, dense, one_batch, without_views
from millrace.engine.task.context import Task
from millrace.engine.task.state import TaskState
from millrace.engine.task.steps.base import CollectingStep, Outlet
from millrace.engine.task.steps.functions import parents_of
from millrace.engine.task.steps.keyed import KeyedInput, book, take_waiting
from millrace.errors import is_order
from millrace.functions import GroupedBatch, StateMigration
from millrace.sources.arrow_types import arrow_schema
from millrace.state.keyed.columnstate import ColumnState

MOST_ROWS = 131_072
"""Rows of one call. A key with more comes in several; other keys are never parted from theirs."""

MOST_BYTES = 64 << 20
"""Bytes of the rows of one call, by the mean of all of them."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some keys of what was sorted by key, and some of their rows: one key may have part of its
    rows here. Ends are behind the last ones."""

    first_key: int
    end_key: int
    first_row: int
    end_row: int


def spans(starts: Array, most: int) -> Iterator[Span]:
    """Cut into calls of at most ``most`` rows; ``starts`` (int64[k + 1]) as of ``rows_by_key``."""
    key, keys = 0, len(starts) - 1
    while key < keys:
        first = int(starts[key])
        end = int(np.searchsorted(starts, first + most, side="right")) - 1
        if end > key:
            yield Span(key, end, first, int(starts[end]))
            key = end
            continue
        last = int(starts[key + 1])
        for row in range(first, last, most):
            yield Span(key, key + 1, row, min(row + most, last))
        key += 1


Write = tuple[ColumnState, Array, list[tuple[Array, ...]]]
"""A state, rows (int64) of it, and what its columns are to hold there."""


class StateOfKeys:
    """The state of the distinct keys of a task's share, however many shards it lies in."""

    def __init__(self, found: Sequence[tuple[ColumnState, Array, Array]], keys: int) -> None:
        self._states = [state for state, _, _ in found]
        self._state_of = np.zeros(keys, np.int64)
        self._rows = np.zeros(keys, np.int64)
        for number, (_, chosen, rows) in enumerate(found):
            self._state_of[chosen] = number
            self._rows[chosen] = rows

    def read(self, first: int, end: int) -> pa.RecordBatch:
        """What the keys from ``first`` to before ``end`` have, one row for each."""
        rows, parts = self._rows[first:end], self._parts(first, end)
        if len(parts) == 1:
            return parts[0][0].read(rows)
        read = [pa.Table.from_batches([state.read(rows[at])]) for state, at in parts]
        order = np.argsort(np.concatenate([at for _, at in parts]))
        return one_batch(pa.concat_tables(read)).take(pa.array(order))

    def converted(self, first: int, end: int, values: pa.RecordBatch) -> list[Write]:
        """What sets these keys to the rows of a batch; nothing is changed yet. Raises as that of
        ``ColumnState``."""
        rows, parts = self._rows[first:end], self._parts(first, end)
        if len(parts) == 1:
            return [(parts[0][0], rows, parts[0][0].converted(values))]
        return [
            (state, rows[at], state.converted(values.take(pa.array(at)))) for state, at in parts
        ]

    def _parts(self, first: int, end: int) -> list[tuple[ColumnState, Array]]:
        """Each state that has some of the keys, and which (int64) of them."""
        numbers = self._state_of[first:end]
        if len(self._states) == 1:
            return [(self._states[0], np.arange(end - first))]
        return [
            (self._states[number], np.flatnonzero(numbers == number))
            for number in np.unique(numbers).tolist()
        ]


@dataclass
class SortedRows:
    """What a task got, sorted by key: ``order`` (int64) are rows of ``batch``, ``starts``
    (int64[k + 1]) where the rows of each key begin in it, ``keys`` has the key columns."""

    batch: Batch
    order: Array
    starts: Array
    keys: pa.RecordBatch
    state: StateOfKeys


@dataclass
class Portion:
    """The rows of one span, and what the function made of them: columns, and for each row the index
    of its parent."""

    span: Span
    batch: Batch
    rows: pa.RecordBatch
    made: list[tuple[pa.RecordBatch, Array]] = field(default_factory=list)


class GroupedStep(CollectingStep):
    """Calls ``f(batch, state) -> (state, columns, parents)`` for the rows of many keys."""

    at_once = True

    def __init__(
        self,
        task: Task,
        component: Component,
        outlet: Outlet,
        function: Callable[..., Any],
        state: TaskState,
        migrations: Sequence[StateMigration] = (),
    ) -> None:
        super().__init__(task, component, outlet)
        self._function = function
        self._input = KeyedInput(task, component, state, migrations)
        self._columns = arrow_schema(component.state or ())

    def finish(self) -> None:
        waiting = take_waiting(self)
        if not waiting:
            return
        everything = self._sort(concat([batch for _, batch in waiting]))
        for span in spans(everything.starts, self._most_rows(everything.batch)):
            self._process(everything, span)
        book(self, waiting)

    def _most_rows(self, batch: Batch) -> int:
        mean = batch.data.nbytes / len(batch)
        return max(1, min(MOST_ROWS, int(MOST_BYTES / max(mean, 1))))

    def _sort(self, batch: Batch) -> SortedRows:
        batch = batch.with_data(without_views(batch.data))
        encoded = self._input.keys(batch)
        roots = batch.root_order()
        codes = encoded.codes if roots is None else encoded.codes[roots]
        chosen, starts, order = kernels.rows_by_key(codes, len(encoded))
        starts.setflags(write=False)
        columns = [column.take(pa.array(chosen)) for column in encoded.values]
        found = self._input.states(columns, encoded.groups[chosen], ColumnState)
        keys = plain(pa.RecordBatch.from_arrays(columns, names=list(self.component.key)))
        state = StateOfKeys(found, len(chosen))
        return SortedRows(batch, order if roots is None else roots[order], starts, keys, state)

    def _process(self, everything: SortedRows, span: Span) -> None:
        batch = everything.batch.take(everything.order[span.first_row : span.end_row])
        portion = Portion(span, batch, plain(batch.data))
        self.task.worked_on(self.name, batch)
        self._bisect(everything, portion, span)
        self.task.box.end()
        if not portion.made:
            return
        data, parents = portion.made[0]
        if len(portion.made) > 1:
            data = one_batch(pa.Table.from_batches([made for made, _ in portion.made]))
            parents = np.concatenate([parents for _, parents in portion.made])
        self.outlet.emit(data, batch, parents)

    def _bisect(self, everything: SortedRows, portion: Portion, span: Span) -> None:
        error = self._call(everything, portion, span)
        if error is None:
            return
        if span.end_row - span.first_row == 1:
            error = self._call(everything, portion, span)
            if error is not None:
                row = span.first_row - portion.span.first_row
                self.task.fail(portion.batch, row, self.name, error)
            return
        if span.end_key - span.first_key > 1:
            key = (span.first_key + span.end_key) // 2
            row = int(everything.starts[key])
            low = Span(span.first_key, key, span.first_row, row)
            high = Span(key, span.end_key, row, span.end_row)
        else:
            row = (span.first_row + span.end_row) // 2
            low = Span(span.first_key, span.end_key, span.first_row, row)
            high = Span(span.first_key, span.end_key, row, span.end_row)
        self._bisect(everything, portion, low)
        self._bisect(everything, portion, high)

    def _call(self, everything: SortedRows, portion: Portion, span: Span) -> BaseException | None:
        """Call the function once, and take what it gives back; what went wrong with these rows.

        Raises ``OutputError`` for what is wrong whatever the rows are.
        """
        keys = span.end_key - span.first_key
        begin = span.first_row - portion.span.first_row
        rows = portion.rows.slice(begin, span.end_row - span.first_row)
        offsets = everything.starts[span.first_key : span.end_key + 1]
        offsets = np.clip(offsets, span.first_row, span.end_row) - span.first_row
        offsets.setflags(write=False)
        given = GroupedBatch(rows, everything.keys.slice(span.first_key, keys), offsets)
        self.task.box.progress()
        try:
            result = self._function(given, everything.state.read(span.first_key, span.end_key))
        except BaseException as error:
            if is_order(error):
                raise
            return error
        try:
            state, output = self._taken(result, keys, rows.num_rows)
            writes = everything.state.converted(span.first_key, span.end_key, state)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return error  # a value that its column cannot hold
        for held, held_rows, values in writes:
            held.write(held_rows, values)
        if output is not None:
            portion.made.append((output[0], output[1] + begin))
        return None

    def _taken(
        self, result: Any, keys: int, rows: int
    ) -> tuple[pa.RecordBatch, tuple[pa.RecordBatch, Array] | None]:
        """State, and the columns put out with their parents, as they were declared."""
        found = result if isinstance(result, tuple) else (result,)
        if len(found) not in (1, 3) or not isinstance(found[0], pa.RecordBatch | pa.Table | dict):
            raise OutputError(
                f"processor {self.name!r} returned {_described(result)}; return (state, columns, "
                "parents), parents being the index of each output row's input row, or the state "
                "alone; state and columns are a pa.RecordBatch or a dict of arrays"
            )
        try:
            state = conform(found[0], self._columns, self.name)
        except OutputError as error:
            raise OutputError(f"{error} (in the state that it returned)") from None
        if state.num_rows != keys:
            raise OutputError(
                f"processor {self.name!r} returned {state.num_rows} rows of state for {keys} keys; "
                "return one for each key of the batch, in their order, null in all columns where "
                "the key has no state any more"
            )
        check(state, "state column")
        if len(found) == 1:
            return state, None
        assert self.component.output is not None
        columns = own(conform(found[1], self.component.output, self.name))
        return state, (columns, parents_of(found[2], columns.num_rows, rows, self.name))


def plain(data: pa.RecordBatch) -> pa.RecordBatch:
    """The same data in the types that were declared, without metadata."""
    return dense(without_views(data)).replace_schema_metadata(None)


def _described(result: Any) -> str:
    if not isinstance(result, tuple):
        return type(result).__name__
    return f"a tuple of {', '.join(type(one).__name__ for one in result) or 'nothing'}"
