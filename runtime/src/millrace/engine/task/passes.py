"""Runs one pass, or all of them, over one task's share of a window.

The components of the passes a task runs are wired to each other directly; edges that leave go to
crossings, edges that arrive come from envelopes. A task that runs every pass at once therefore
has no exchange at all, and everything else is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

from millrace.engine.program.program import Channel, Component, Pass, Route
from millrace.engine.program.sql import jvm_sources
from millrace.engine.program.usercode import load_object
from millrace.engine.task.batch import Batch, dense, joined, one_batch, slices
from millrace.engine.task.combine import CombineCrossing, Combiner, edge_of_lane, is_partial
from millrace.engine.task.context import Task
from millrace.engine.task.crossings import Crossing, broadcast, checks_of, crossing_for
from millrace.engine.task.exchange import Header, Parcel, check_roots
from millrace.engine.task.state import TaskStaging, TaskState
from millrace.engine.task.steps.base import CombiningStep, Deliver, Outlet, Step
from millrace.engine.task.steps.ends import Piece, SinkStep, SourceStep
from millrace.engine.task.steps.making import MakeStep, Site, Toolbox
from millrace.engine.task.steps.sqlstep import fed_batch, fed_holes, without_carried
from millrace.protocol.types import Segment, Staged, TaskId, TaskReport
from millrace.topology.parts import Role

SLICE_ROWS = 131_072
"""Most tuples out of an envelope that a step without order gets at once."""


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """What a task has written: state and staged output."""

    segments: tuple[tuple[str, Segment], ...]
    staged: tuple[Staged, ...]


class PassRun:
    """One task's run of the given passes, which follow each other.

    Call ``open``, then ``read`` or ``receive``, then ``finish``, then ``parcels``; ``close`` in
    any case.
    """

    def __init__(
        self, task: Task, passes: Sequence[Pass], toolbox: Toolbox, state: TaskState
    ) -> None:
        self.task = task
        self._state = state
        program = task.program
        self._names = [n for p in passes for n in p.components]
        self._last = passes[-1].number
        self._steps: dict[str, Step] = {}
        self._combiners: dict[str, Combiner] = {}
        self._crossings: dict[str, Crossing] = {}
        self._relayed: dict[str, list[pa.Table]] = {}
        self._fed = {source.name for source in jvm_sources(program)}
        # Consumers first, so that an outlet finds the steps it delivers to.
        for name in reversed(self._names):
            component = program.components[name]
            ways = [
                (e, self._shown(component, e, _renamed(e, self._way(e)))) for e in component.outputs
            ]
            self._steps[name] = self._build(component, Outlet(task, component, ways), toolbox)

    # -- life of a task

    def open(self) -> None:
        for name in self._names:
            self._steps[name].open()

    def read(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """Let the sources read; the (first sequence number, count) runs that were read."""
        runs: list[tuple[int, int]] = []
        for step in self._sources():
            if step.component.name not in self._fed:
                runs += step.read(pieces)
        return runs

    def feed(
        self, frames: Iterable[pa.RecordBatch], pieces: Sequence[Piece]
    ) -> list[tuple[int, int]]:
        """Let the sources that were read into the JVM take what comes out of it; as ``read``."""
        fed = [s for s in self._sources() if s.component.name in self._fed]
        for frame in frames:
            for step in fed:
                step.feed(fed_batch(step.component, frame, self.task.books.tracked))
                step.feed_holes(fed_holes(step.component, frame))
        return [run for step in fed for run in step.fed_runs(pieces)]

    def holes(self) -> tuple[tuple[int, int], ...]:
        """(First sequence number, count) of what the sources read that carries no record."""
        return tuple(sorted(run for step in self._sources() for run in step.holes))

    def receive(self, parcels: Sequence[Parcel]) -> None:
        """Take what the tasks of the pass before sent."""
        for parcel in sorted(parcels, key=lambda p: p.header.task.partition):
            for lane, table in parcel.tables.items():
                self._receive(lane, table)

    def finish(self) -> TaskOutput:
        """No more input comes: bring every step to its end and write state and output."""
        program = self.task.program
        for name in self._names:
            for edge in program.components[name].inputs:
                if edge.name in self._combiners:
                    self._combiners[edge.name].finish()
            self._steps[name].finish()
        staged = [s.staged for s in self._steps.values() if isinstance(s, SinkStep) and s.staged]
        return TaskOutput(self._state.write(), tuple(staged))

    def parcels(self, readers: int) -> dict[int, dict[str, pa.Table]]:
        """Tables by reader and lane, for the pass that follows."""
        parcels: dict[int, dict[str, pa.Table]] = {reader: {} for reader in range(readers)}
        for crossing in self._crossings.values():
            for lane, parts in crossing.parts().items():
                for reader, table in parts.items():
                    parcels[reader][lane] = table
        here = self.task.id.partition % readers
        for lane, tables in self._relayed.items():
            parcels[here][lane] = joined(tables)
        return parcels

    def close(self) -> None:
        for step in self._steps.values():
            step.close()

    def _sources(self) -> list[SourceStep]:
        return [s for s in self._steps.values() if isinstance(s, SourceStep)]

    # -- wiring

    def _way(self, edge: Channel) -> Deliver:
        inside = self.task.program.components[edge.consumer].pass_no <= self._last
        if edge.route is Route.COMBINED:
            return self._combined_way(edge, inside)
        if not inside:
            crossing = crossing_for(self.task, edge)
            self._crossings[edge.name] = crossing
            return crossing.deliver
        accept = self._accept(edge)
        if edge.route is Route.BROADCAST:
            return self._copies(edge, accept)
        return accept

    def _shown(self, producer: Component, edge: Channel, deliver: Deliver) -> Deliver:
        """Hide what the JVM computed from consumers that it is not for."""
        from_jvm = producer.in_jvm or producer.name in self._fed
        if not from_jvm or self.task.program.components[edge.consumer].in_jvm:
            return deliver
        return without_carried(producer, deliver)

    def _combined_way(self, edge: Channel, inside: bool) -> Deliver:
        component = self.task.program.components[edge.consumer]
        if inside:
            merge = self._steps[edge.consumer]
            assert isinstance(merge, CombiningStep)
            combiner = Combiner(self.task, edge, component)
            combiner.deliver_to(merge)
            self._combiners[edge.name] = combiner
            return combiner.accept
        crossing = CombineCrossing(self.task, edge, component)
        self._crossings[edge.name] = crossing
        return crossing.deliver

    def _copies(self, edge: Channel, accept: Deliver) -> Deliver:
        """A broadcast edge within one task, which has one partition."""

        def deliver(batch: Batch) -> None:
            for copy in broadcast(self.task, edge, batch):
                accept(copy)

        return deliver

    def _accept(self, edge: Channel) -> Deliver:
        component = self.task.program.components[edge.consumer]
        step = self._steps[edge.consumer]
        if len(component.inputs) == 1 or component.combines:
            return lambda batch: step.accept(edge, batch)
        producer = self.task.program.components[component.inputs[0].producer]
        assert producer.output is not None
        names = component.inputs[0].seen(producer.output).names
        return lambda batch: step.accept(edge, batch.with_data(batch.data.select(names)))

    def _build(self, component: Component, outlet: Outlet, toolbox: Toolbox) -> Step:
        match component.role:
            case Role.SOURCE:
                source = toolbox.source(component)
                return SourceStep(self.task, component, outlet, source, toolbox.intake)
            case Role.SINK:
                sink = toolbox.sink(component)
                sink.staging = TaskStaging(self._state.servers)
                return SinkStep(self.task, component, outlet, sink)
            case Role.PROCESSOR:
                make: MakeStep = load_object(component.step, "")
                return make(Site(self.task, component, outlet, toolbox, self._state))
            case _:
                assert_never(component.role)

    # -- arrivals

    def _receive(self, lane: str, table: pa.Table) -> None:
        edge = self.task.program.edges[edge_of_lane(lane)]
        if not table.num_rows:
            return
        if self.task.program.components[edge.consumer].pass_no > self._last:
            self._relayed.setdefault(lane, []).append(table)
            return
        step = self._steps[edge.consumer]
        if is_partial(lane):
            assert isinstance(step, CombiningStep)
            step.accept_partial(edge, one_batch(table))
            return
        check_roots(table, self.task.plan.intent.roots, edge.name)
        whole = Batch.from_arrow(one_batch(table))
        accept = self._accept(edge)
        if step.at_once:
            accept(whole)
            return
        for part in slices(whole.with_data(dense(whole.data)), SLICE_ROWS):
            accept(part)


def headed(
    task: TaskId, parcels: Mapping[int, dict[str, pa.Table]], reports: tuple[TaskReport, ...]
) -> list[Parcel]:
    """Parcels with their headers; the reports travel to one reader only."""
    to = task.partition % max(1, len(parcels))
    return [
        Parcel(
            Header(task, reader, checks_of(tables), reports if reader == to else ()),
            tables,
        )
        for reader, tables in parcels.items()
    ]


def _renamed(edge: Channel, deliver: Deliver) -> Deliver:
    """A way to a consumer that takes columns under names of its own."""
    if not edge.columns:
        return deliver
    names = [name for name, _ in edge.columns]

    def pass_on(batch: Batch) -> None:
        arrays = [batch.data.column(of) for _, of in edge.columns]
        deliver(batch.with_data(pa.RecordBatch.from_arrays(arrays, names=names)))

    return pass_on
