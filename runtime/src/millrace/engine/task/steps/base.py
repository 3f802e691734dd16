"""What all steps of a task share: outlets and the order of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millrace.engine.program.program import Channel, Component, Route
from millrace.engine.program.schema import rows_held
from millrace.engine.task import kernels
from millrace.engine.task.batch import Array, Batch
from millrace.engine.task.context import Task
from millrace.engine.task.lineage import Children
from millrace.errors import EngineError
from millrace.topology.parts import Role

Deliver = Callable[[Batch], None]


class Outlet:
    """Gives the tuples that a component emits their ids and sends them along each of its edges."""

    def __init__(
        self, task: Task, component: Component, ways: list[tuple[Channel, Deliver]]
    ) -> None:
        self._task = task
        self._ways = ways
        self._many = component.many
        self._ordered = any(edge.ordered for edge, _ in ways)

    def emit(self, data: pa.RecordBatch, parent: Batch, parents: Array | None) -> None:
        """Send rows on; ``parents`` (int64) are indices into ``parent``, ``None`` one to one.

        Called once for each parent batch, so that the ordinals of a parent's children are its own.
        """
        if not data.num_rows or not self._ways:
            return
        ordinals = None
        if parents is not None and self._ordered:
            ordinals = kernels.ordinals_of(parents, len(parent))
        self.emit_ordered(data, parent, parents, ordinals)

    def emit_ordered(
        self, data: pa.RecordBatch, parent: Batch, parents: Array | None, ordinals: Array | None
    ) -> None:
        """As ``emit``, with the ordinal (uint32) of each row among its parent's children.

        Without ``ordinals`` those of ``emit`` are meant.
        """
        count = len(parent) if parents is None else len(parents)
        if count != data.num_rows:
            # Ids of rows that are not there would come to zero like those of others.
            raise EngineError(f"{data.num_rows} rows are to be emitted for {count} parents")
        order = self._order(parent, parents, ordinals)
        anchors = parent.anchors
        if anchors is not None and parents is not None:
            anchors = anchors.take(pa.array(parents))
        for edge, deliver in self._ways:
            booked = edge.route is not Route.BROADCAST  # its copies are booked, not itself
            name = edge.name if booked else ""
            lineage = Children(parent.lineage, parents, ordinals, edge.id, name)
            batch = Batch(data, lineage, order if edge.ordered else None, anchors)
            deliver(batch)
            if booked and not lineage.whole:
                self._task.books.book(edge.name, batch)
            lineage.end()

    def emit_anchored(
        self,
        data: pa.RecordBatch,
        parent_ids: Array,
        ordinals: Array,
        roots: Array,
        anchors: pa.ListArray | None,
        order: Array | None,
    ) -> None:
        """Rows whose tracking was put together by the caller; all arrays are one a row."""
        if not data.num_rows:
            return
        parents = np.arange(data.num_rows, dtype=np.int64)
        for edge, deliver in self._ways:
            ids = None
            if self._task.books.tracked:
                ids = kernels.children(parent_ids, parents, ordinals, edge.id)
            batch = Batch.of(data, roots, ids, order if edge.ordered else None, anchors)
            if edge.route is not Route.BROADCAST:  # its copies are booked, not itself
                self._task.books.book(edge.name, batch)
            deliver(batch)

    def _order(self, parent: Batch, parents: Array | None, ordinals: Array | None) -> Array | None:
        if not self._ordered:
            return None
        order = parent.order
        if order is None:
            order = np.zeros(len(parent), np.uint64)
        if parents is None or ordinals is None:
            return order
        return kernels.child_order(order, parents, ordinals) if self._many else order[parents]


class Step(ABC):
    """One component within a task.

    Batches come through ``accept``; ``finish`` is called once, after ``finish`` of every step
    that feeds it, and ``close`` at the very end, after a failure too.
    """

    at_once: ClassVar[bool] = False
    """Whether it takes what comes through an exchange as it is, not in slices of a batch's size."""

    def __init__(self, task: Task, component: Component, outlet: Outlet) -> None:
        self.task = task
        self.component = component
        self.outlet = outlet

    @property
    def name(self) -> str:
        return self.component.name

    def open(self) -> None:  # noqa: B027
        """Before the first batch."""

    @abstractmethod
    def accept(self, edge: Channel, batch: Batch) -> None:
        """Take a batch that arrived over ``edge``."""

    def finish(self) -> None:  # noqa: B027 most steps have nothing to do here
        """No more batches come."""

    def close(self) -> None:  # noqa: B027
        """Release what the step holds."""

    def held(self, batch: Batch) -> tuple[Batch, list[dict[str, Any]]]:
        """The tuples that Python can hold, and their rows; the others fail."""
        rows, unheld = rows_held(batch.data)
        if unheld:
            keep = np.ones(len(batch), bool)
            for index, error in unheld.items():
                keep[index] = False
                self.task.fail(batch, index, self.name, error)
            batch = batch.filter(keep)
        return batch, rows


class StreamingStep(Step):
    """A step that deals with each batch when it arrives."""

    def accept(self, edge: Channel, batch: Batch) -> None:
        batch = self.task.failures.without_failed(batch)
        if len(batch):
            self.process(batch)
            self.task.books.absorb(edge.name, batch)

    @abstractmethod
    def process(self, batch: Batch) -> None:
        """Deal with one batch, which is not empty."""


class CertainStep(StreamingStep):
    """A streaming step that fails on the same tuples whenever it gets them, so that no replay
    helps a root that it fails."""

    def __init__(self, task: Task, component: Component, outlet: Outlet) -> None:
        super().__init__(task, component, outlet)
        self._first = all(self._only_way(edge) for edge in component.inputs)

    def accept(self, edge: Channel, batch: Batch) -> None:
        batch = self.task.failures.without_failed(batch)
        if len(batch):
            self.process(batch)
            # What failed counts as not processed: then it is certain to be missed.
            self.task.books.absorb(edge.name, self.task.failures.without_failed(batch))

    def fail_for_good(self, batch: Batch, index: int, error: str) -> None:
        """The tuple at ``index`` fails its roots; nothing of it may be emitted."""
        if self._first and batch.anchors is None:
            self.task.failures.add_unreadable(int(batch.roots[index]), self.name, error)
        else:
            roots = batch.roots_at(index)
            self.task.failures.add(roots, self.name, error, lasting=True)

    def _only_way(self, edge: Channel) -> bool:
        """Whether an edge brings records of a source that go nowhere else."""
        producer = self.task.program.components[edge.producer]
        alone = producer.role is Role.SOURCE and len(producer.outputs) == 1
        return alone and edge.route is not Route.BROADCAST


class CollectingStep(Step):
    """A step that needs all tuples of the task's share before it begins."""

    def __init__(self, task: Task, component: Component, outlet: Outlet) -> None:
        super().__init__(task, component, outlet)
        self.waiting: list[tuple[Channel, Batch]] = []

    def accept(self, edge: Channel, batch: Batch) -> None:
        if len(batch):
            self.waiting.append((edge, batch))

    def take_all(self) -> list[Batch]:
        """Everything collected, less failed roots, booked as processed."""
        batches: list[Batch] = []
        for edge, batch in self.waiting:
            left = self.task.failures.without_failed(batch)
            if len(left):
                batches.append(left)
                self.task.books.absorb(edge.name, left)
        self.waiting = []
        return batches


class CombiningStep(CollectingStep):
    """The step of a kind whose inputs are combined by key before the exchange (``combines``)."""

    @abstractmethod
    def accept_partial(self, edge: Channel, rows: pa.RecordBatch) -> None:
        """Take rows that were combined: key and partial columns (``state.keyed.aggregates``)."""
