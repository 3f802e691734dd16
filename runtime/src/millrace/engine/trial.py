"""One processor alone over rows given as dicts: the steps, types and state of a run, without one.

What the rows are to user code, what may come back, which tuples fail and what is kept is decided by
the steps that a task has. As in a run, the attempt is made again without the tuples that failed,
from the state before, until none fails: what they had put out or kept is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.ddl import Column, parse_schema
from millrace.engine.program.program import Channel, Component, Pass, Program, Route
from millrace.engine.program.schema import OutputError, rows_of
from millrace.engine.task.batch import Batch, dense, without_views
from millrace.engine.task.blackbox import Box
from millrace.engine.task.books import Books, Failures, NetPool
from millrace.engine.task.context import Task
from millrace.engine.task.steps import making
from millrace.engine.task.steps.base import Outlet
from millrace.engine.task.steps.output import RowBuffer
from millrace.errors import TopologyError
from millrace.functions import FunctionKind, FunctionSpec, spec_of
from millrace.protocol.types import Guarantee, TaskId
from millrace.sources.arrow_types import arrow_schema
from millrace.state.keyed.typedstate import TypedState
from millrace.topology.parts import Role

Key = Any
"""The value of a single key column, or a tuple with those of several."""

GIVEN, TAKEN = "rows", "taken"


@dataclass(frozen=True, slots=True)
class Tried:
    """``rows`` put out, failures by the number of the row given, and the state of each key that has
    some."""

    rows: list[dict[str, Any]]
    failures: dict[int, str]
    state: dict[Key, dict[str, Any]]


def run(
    target: object,
    rows: Sequence[Mapping[str, Any]],
    schema: str,
    key: Sequence[str] = (),
    state: Mapping[Key, Mapping[str, Any]] | None = None,
) -> Tried:
    """``target`` over the rows of one window, in their order.

    Raises ``TopologyError`` for what no topology may declare, ``OutputError`` for rows and state
    that do not fit their columns, and whatever stops a run.
    """
    spec = spec_of(target)
    columns = parse_schema(schema)
    names = [name for name, _ in columns]
    unknown = [one for one in key if one not in names]
    if unknown:
        raise TopologyError(f"key: there is no column {unknown[0]!r}; name one of {names}")
    if spec.keyed and not key:
        raise TopologyError("the processor keeps state and needs a key, e.g. key=['word']")
    trial = _Trial(spec, _name(target), columns, tuple(key), dict(state or {}))
    return trial.run(_batch(rows, columns, "rows"))


def _name(target: object) -> str:
    return str(getattr(target, "__name__", "processor"))


def _batch(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], what: str
) -> pa.RecordBatch:
    """Dicts as columns; one that a dict leaves out is null in it."""
    schema = arrow_schema(columns)
    buffer = RowBuffer(schema, what)
    empty = dict.fromkeys(schema.names)
    for number, one in enumerate(rows):
        buffer.add({**empty, **one}, number)
    data, _, misfits = buffer.build()
    for number, error in misfits.items():
        raise OutputError(f"number {number} of {what}: {error}")
    return data


class _Trial:
    def __init__(
        self,
        spec: FunctionSpec,
        name: str,
        columns: Sequence[Column],
        key: tuple[str, ...],
        state: Mapping[Key, Mapping[str, Any]],
    ) -> None:
        incoming = arrow_schema(columns)
        self._spec, self._name, self._columns = spec, name, columns
        self._key, self._before = key, state
        route = Route.KEYED if key else Route.LOCAL
        self._edge = Channel(GIVEN, name, route, key, ordered=bool(key))
        self._component = Component(
            name,
            Role.PROCESSOR,
            0,
            inputs=(self._edge,),
            output=incoming if spec.output is None else arrow_schema(spec.output),
            state=spec.state,
            key=key,
            many=spec.kind is not FunctionKind.WHERE,
        )
        source = Component(GIVEN, Role.SOURCE, 0, outputs=(self._edge,), output=incoming)
        self._program = Program(
            name="trial",
            uid="trial",
            guarantee=Guarantee.AT_LEAST_ONCE,
            tracking=False,
            parallelism=1,
            tuple_timeout_s=0.0,
            code_path="",
            base_path="",
            components={GIVEN: source, name: self._component},
            passes=(Pass(0, (GIVEN, name)),),
        )

    def run(self, given: pa.RecordBatch) -> Tried:
        failed: dict[int, str] = {}
        while True:
            attempt = self._attempt(given, failed)
            if not attempt.failed:
                return Tried(attempt.rows, dict(sorted(failed.items())), attempt.state)
            failed |= attempt.failed

    def _attempt(self, given: pa.RecordBatch, excluded: Mapping[int, str]) -> _Attempt:
        """All of it once, without the rows that are excluded."""
        count = given.num_rows
        task = Task(
            self._program,
            None,  # type: ignore[arg-type]  # the plan of a window, which steps of functions need not
            TaskId(0, 0, 0),
            1,
            Books(count, 1, False, NetPool()),
            Failures(count, {}),
            Box(None, None),
        )
        taken: list[Batch] = []
        way = Channel(self._name, TAKEN, Route.LOCAL, ordered=True)
        outlet = Outlet(task, self._component, [(way, taken.append)])
        states = _States(self._seed)
        step = making.function(
            making.Site(task, self._component, outlet, _Toolbox(self._spec), states)  # type: ignore[arg-type]
        )
        kept = np.array([at for at in range(count) if at not in excluded], np.int64)
        batch = Batch.of(given, np.arange(count, dtype=np.uint32)).take(kept)
        try:
            step.open()
            step.accept(self._edge, batch)
            step.finish()
        finally:
            step.close()
        rows = [row for one in taken for row in rows_of(dense(without_views(one.data)))]
        found = {one.sequence: one.error for one in task.failures.failed}
        return _Attempt(rows, found, self._kept(states) if not found else {})

    def _seed(self, state: TypedState) -> None:
        """Let the state hold what there was before."""
        held = [(key, kept) for key, kept in self._before.items() if kept]
        if not held:
            return
        keys = []
        for key, _ in held:
            values = key if isinstance(key, tuple) else (key,)
            if len(values) != len(self._key):
                raise OutputError(f"state: the key {key!r} has no {len(self._key)} columns")
            keys.append(dict(zip(self._key, values, strict=True)))
        types = dict(self._columns)
        of_keys = _batch(keys, [(name, types[name]) for name in self._key], "keys of state")
        values = _batch([kept for _, kept in held], self._spec.state or (), "state")
        deleted = pa.array([False] * len(held))
        columns = [*of_keys.columns, *values.columns, deleted]
        state.apply(pa.RecordBatch.from_arrays(columns, schema=state.schema))

    def _kept(self, states: _States) -> dict[Key, dict[str, Any]]:
        """The state of each key that has some, as a run would store it."""
        state = states.state
        if state is None:
            return {key: dict(kept) for key, kept in self._before.items()}
        state.delta()  # raises where a run would
        state.commit()
        with pa.ipc.open_stream(state.base().data) as stream:
            table = stream.read_all()
        columns = [column.to_pylist() for column in table.columns]
        width, names = len(self._key), [name for name, _ in self._spec.state or ()]
        keys = list(zip(*columns[:width], strict=True))
        held = zip(*columns[width : width + len(names)], strict=True)
        kept = [dict(zip(names, values, strict=True)) for values in held]
        return dict(zip([key if width > 1 else key[0] for key in keys], kept, strict=True))


class _States:
    """What stands where a task has its state: one that is made on first use."""

    def __init__(self, seed: Callable[[TypedState], None]) -> None:
        self._seed = seed
        self.state: TypedState | None = None

    def open(
        self, component: Component, shard: int, make: Callable[[], TypedState], touched: object
    ) -> TypedState:
        """As that of ``TaskState``, of the one shard that there is."""
        if self.state is None:
            self.state = make()
            self._seed(self.state)
            self.state.begin()
        return self.state


@dataclass(frozen=True, slots=True)
class _Toolbox:
    """Has the one processor."""

    spec: FunctionSpec

    def function(self, component: Component) -> FunctionSpec:
        return self.spec


@dataclass(frozen=True, slots=True)
class _Attempt:
    rows: list[dict[str, Any]]
    failed: dict[int, str]
    state: dict[Key, dict[str, Any]]
