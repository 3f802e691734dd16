"""Stateful functions and keyed classes: each key's tuples in root order, with typed state.

A call that raises is repeated at once, with the key's state as it was before; when that raises
too, the tuple's roots fail and the state stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from millrace.ddl import Column
from millrace.engine.program.program import Channel, Component
from millrace.engine.program.schema import rows_held
from millrace.engine.task.batch import Array, Batch, concat
from millrace.engine.task.context import Task
from millrace.engine.task.exchange import EnvelopeError
from millrace.engine.task.keys import Keys, encode_keys
from millrace.engine.task.state import TaskState
from millrace.engine.task.steps.base import CollectingStep, Outlet
from millrace.engine.task.steps.classes import ClassStep, TupleFailedError, numbered_rows
from millrace.engine.task.steps.output import RowBuffer
from millrace.errors import is_order
from millrace.functions import Processor, Row, StateMigration
from millrace.sources.arrow_types import arrow_schema
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.keys import mask_of
from millrace.state.keyed.migrations import Migration, Migrations
from millrace.state.keyed.typedstate import TypedState

S = TypeVar("S", bound=TypedState)


class StateError(ValueError):
    """A function left a value in its state that the declared type cannot hold."""


class KeyedInput:
    """The keys of what reached a keyed step, and their state."""

    def __init__(
        self,
        task: Task,
        component: Component,
        state: TaskState,
        migrations: Sequence[StateMigration] = (),
    ) -> None:
        self._task = task
        self._component = component
        self._state = state
        known = tuple(Migration(tuple(arrow_schema(one.state)), one.function) for one in migrations)
        self.migrations = Migrations(component.name, known, self._watched)

    def keys(self, batch: Batch) -> Keys:
        """Keys of the batch, all of which belong here.

        Raises ``EnvelopeError`` where one belongs to another partition.
        """
        program = self._task.program
        keys = encode_keys(batch.data, self._component.key, program.key_groups)
        if self._task.partitions > 1:
            strangers = keys.groups % program.parallelism != self._task.id.partition
            if strangers.any():
                raise EnvelopeError(
                    f"partition {self._task.id.partition} of {self._component.name!r} got tuples "
                    f"of {int(strangers.sum())} keys that belong to another partition"
                )
        return keys

    def states(
        self, keys: Sequence[pa.Array], groups: Array, form: type[S]
    ) -> list[tuple[S, Array, Array]]:
        """Each state that has some of the distinct keys (columns, and their key groups), which ones
        (int64) these are, and their rows (int64) in it."""
        found = []
        shard_of = groups % self._task.program.parallelism
        for shard in np.unique(shard_of).tolist():
            chosen = np.flatnonzero(shard_of == shard)
            state = self._open(shard, keys, groups, form)
            rows = state.find([column.take(pa.array(chosen)) for column in keys])
            found.append((state, chosen, rows))
        return found

    def dicts(self, keys: Keys) -> list[tuple[DictState, int]]:
        """State and its row for each distinct key."""
        places: list[tuple[DictState, int] | None] = [None] * len(keys)
        for state, chosen, rows in self.states(keys.values, keys.groups, DictState):
            for at, row in zip(chosen.tolist(), rows.tolist(), strict=True):
                places[at] = (state, row)
        return [one for one in places if one is not None]

    @contextmanager
    def _watched(self) -> Iterator[Callable[[], None]]:
        """Around migrations: no root is in hand, and each key has ``tupleTimeout``."""
        box = self._task.box
        box.begin(self._component.name)
        try:
            yield box.progress
        finally:
            box.end()

    def _open(self, shard: int, keys: Sequence[pa.Array], touched: Array, form: type[S]) -> S:
        component = self._component
        names = zip(component.key, keys, strict=True)
        schema = pa.schema([pa.field(name, column.type) for name, column in names])
        columns: tuple[Column, ...] = component.state or ()
        groups = self._task.program.key_groups
        opened: S = self._state.open(
            component,
            shard,
            lambda: form(schema, arrow_schema(columns), groups, component.ttl_ms, self.migrations),
            lambda: mask_of(touched),
        )
        return opened


class StatefulStep(CollectingStep):
    """Calls ``f(row, state)`` for each tuple."""

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

    def finish(self) -> None:
        waiting = take_waiting(self)
        if not waiting:
            return
        batch, rows = self.held(concat([batch for _, batch in waiting]).in_root_order())
        if rows:
            self._process_all(batch, rows)
        book(self, waiting)

    def _process_all(self, batch: Batch, rows: list[dict[str, Any]]) -> None:
        keys = self._input.keys(batch)
        states = self._input.dicts(keys)
        assert self.component.output is not None
        buffer = RowBuffer(self.component.output, self.name)
        self.task.worked_on(self.name, batch)
        self._call_all(batch, rows, keys.codes, states, buffer)
        self.task.box.end()
        data, parents, misfits = buffer.build()
        for index, error in misfits.items():
            self.task.fail(batch, index, self.name, error)
        self.outlet.emit(data, batch, parents)

    def _call_all(
        self,
        batch: Batch,
        rows: list[dict[str, Any]],
        codes: Array,
        states: list[tuple[DictState, int]],
        buffer: RowBuffer,
    ) -> None:
        # Whatever is done here is done for each tuple: what does not change is looked up before.
        function, box, add = self._function, self.task.box, buffer.adder()
        timed = bool(self.component.ttl_ms)
        state = states[0][0]  # all are of the same columns
        columns, copy, problem_of = len(state.empty), state.copy, state.problem_of
        dicts = [state.values[place] for state, place in states]
        for index, row, code in zip(range(len(rows)), rows, codes.tolist(), strict=True):
            if monotonic() >= box.due_s:
                box.progress()
            held = dicts[code]
            before = copy(held)
            try:
                add(function(row, held), index)
                if len(held) < columns or problem_of(held) is not None:
                    dicts[code] = settle(*states[code])
                if timed:
                    state, place = states[code]
                    state.updated(place, before)
            except BaseException as error:
                if is_order(error):
                    raise
                buffer.cut_parent(index)
                state, place = states[code]
                state.values[place] = before
                self._call_again(batch, index, states[code], buffer)
                dicts[code] = state.values[place]

    def _call_again(
        self, batch: Batch, index: int, where: tuple[DictState, int], buffer: RowBuffer
    ) -> None:
        state, place = where
        before = state.copy(state.values[place])
        self.task.box.progress()
        (row,), _ = rows_held(batch.data.slice(index, 1))
        try:
            buffer.add_all(self._function(row, state.values[place]), index)
            settle(state, place)
            state.updated(place, before)
        except BaseException as error:
            if is_order(error):
                raise
            buffer.cut_parent(index)
            state.values[place] = before
            self.task.fail(batch, index, self.name, error)


class KeyedClassStep(ClassStep):
    """One instance of a class whose inputs are keyed, with state where it declares some."""

    at_once = True

    def __init__(
        self,
        task: Task,
        component: Component,
        outlet: Outlet,
        instance: Processor,
        state: TaskState,
        migrations: Sequence[StateMigration] = (),
    ) -> None:
        super().__init__(task, component, outlet, instance)
        self._input = KeyedInput(task, component, state, migrations)
        self.waiting: list[tuple[Channel, Batch]] = []

    def accept(self, edge: Channel, batch: Batch) -> None:
        if len(batch):
            self.waiting.append((edge, batch))

    def finish(self) -> None:
        waiting = take_waiting(self)
        if waiting:
            self._process_all(concat([batch for _, batch in waiting]).in_root_order())
            book(self, waiting)
        super().finish()

    def _process_all(self, batch: Batch) -> None:
        batch, held = self.held(batch)
        if not held:
            return
        keys = self._input.keys(batch)
        states = None
        if self.component.state is not None:
            states = self._input.dicts(keys)
        rows = numbered_rows(held, self.seen.add(batch))
        box = self.task.box
        self.task.worked_on(self.name, batch)
        for index, (row, code) in enumerate(zip(rows, keys.codes.tolist(), strict=True)):
            if monotonic() >= box.due_s:
                box.progress()
            where = states[code] if states is not None else None
            error = self._call_with(row, where)
            if error is None:
                continue
            if not isinstance(error, TupleFailedError):
                box.progress()
                alone, _ = rows_held(batch.data.slice(index, 1))
                error = self._call_with(numbered_rows(alone, row.at)[0], where)
            if error is not None:
                self.fail(batch, index, error)
        box.end()
        self.send()

    def _call_with(self, row: Row, where: tuple[DictState, int] | None) -> BaseException | None:
        """Call once; after an error the outputs are gone and the state is as it was."""
        if where is None:
            return self.call(row, None)
        state, place = where
        before = state.copy(state.values[place])
        mark = self.out.begin(row)
        error = self.call(row, state.values[place])
        if error is None:
            try:
                settle(state, place)
            except StateError as wrong:
                self.out.back_to(mark)
                error = wrong
        if error is not None:
            state.values[place] = before
        elif state.timed:
            state.updated(place, before)
        return error


def settle(state: DictState, place: int) -> dict[str, Any]:
    """Bring the dict that a function left behind into form, and give it back. Raises
    ``StateError``."""
    if len(state.values[place]) < len(state.empty):
        state.revive(place)
    problem = state.check(place)
    if problem is not None:
        raise StateError(f"state: {problem}")
    return state.values[place]


def take_waiting(step: CollectingStep | KeyedClassStep) -> list[tuple[Channel, Batch]]:
    """What has been collected, less tuples of roots that failed in this task."""
    waiting = [(edge, step.task.failures.without_failed(b)) for edge, b in step.waiting]
    step.waiting = []
    return [(edge, batch) for edge, batch in waiting if len(batch)]


def book(step: CollectingStep | KeyedClassStep, batches: list[tuple[Channel, Batch]]) -> None:
    """Everything that was collected has been processed."""
    for edge, batch in batches:
        step.task.books.absorb(edge.name, batch)
