"""Processors in class form: ``open``, ``process`` for each tuple, ``finish``, ``close``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.program.program import Component
from millrace.engine.program.schema import OutputError, rows_held
from millrace.engine.task import kernels
from millrace.engine.task.batch import Batch
from millrace.engine.task.context import Task, getting_ready
from millrace.engine.task.steps.base import Outlet, StreamingStep
from millrace.engine.task.steps.output import RowBuffer
from millrace.errors import UserCodeError, error_text, is_order
from millrace.functions import Context, Processor, Row

log = logging.getLogger(__name__)


class TupleFailedError(Exception):
    """The class called ``out.fail``; no second call is made."""


class AnchorError(ValueError):
    """``emit`` was given an anchor that is no row of this task."""


class Seen:
    """Tracking of every tuple that an instance was given, for anchors named later.

    A tuple's number is its position over all batches of the task.
    """

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._starts: list[int] = []
        self.children: list[int] = []

    def add(self, batch: Batch) -> int:
        """Note a batch; the number of its first tuple."""
        start = len(self.children)
        self._batches.append(batch.keep())
        self._starts.append(start)
        self.children.extend([0] * len(batch))
        return start

    def find(self, number: int) -> tuple[Batch, int]:
        at = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._batches[at], number - self._starts[at]

    def next_ordinal(self, number: int) -> int:
        ordinal = self.children[number]
        self.children[number] = ordinal + 1
        return ordinal


class ClassEmitter:
    """The ``out`` of a class: gathers rows with their anchors until they are sent on."""

    def __init__(self, component: Component, seen: Seen) -> None:
        assert component.output is not None
        self._buffer = RowBuffer(component.output, component.name)
        self._seen = seen
        self._anchors: list[tuple[int, ...]] = []
        self._current: Row | None = None
        self._state: dict[str, Any] | None = None
        self.alone = True

    # -- what user code sees

    @property
    def state(self) -> dict[str, Any]:
        if self._state is None:
            raise AttributeError(
                "out.state is there while process runs, in a class that declares state"
            )
        return self._state

    def emit(self, values: Mapping[str, Any], anchors: Sequence[Row] | None = None) -> None:
        if anchors is None:
            anchors = () if self._current is None else (self._current,)
        numbers = tuple(dict.fromkeys(self._number(anchor) for anchor in anchors))
        self._buffer.add(values, len(self._anchors))
        self._anchors.append(numbers)
        self.alone = self.alone and len(numbers) == 1

    def fail(self, reason: str) -> None:
        raise TupleFailedError(str(reason))

    # -- what the step does

    def begin(self, row: Row | None, state: dict[str, Any] | None = None) -> int:
        """The next call is for ``row``; the mark to go back to if it fails."""
        self._current, self._state = row, state
        return len(self._anchors)

    def back_to(self, mark: int) -> None:
        """Drop what was emitted since ``mark``."""
        self._buffer.cut(mark)
        del self._anchors[mark:]

    def drain(self) -> tuple[pa.RecordBatch, list[tuple[int, ...]], dict[int, Exception]]:
        """Rows, the anchors of each, and the tuples whose rows do not fit, by number."""
        data, kept, misfits = self._buffer.build()
        anchors = [self._anchors[i] for i in kept]
        bad: dict[int, Exception] = {}
        for index, error in misfits.items():
            for number in self._anchors[index]:
                bad[number] = error
        self._buffer.cut(0)
        self._anchors = []
        self.alone = True
        return data, anchors, bad

    def _number(self, anchor: Row) -> int:
        number = getattr(anchor, "at", None)
        if not isinstance(number, int):
            raise AnchorError(
                "an anchor must be a row as process was given it in this task, not a copy of it"
            )
        return number


class ClassStep(StreamingStep):
    """One instance of a class without state, called for each tuple when it arrives."""

    def __init__(
        self, task: Task, component: Component, outlet: Outlet, instance: Processor
    ) -> None:
        super().__init__(task, component, outlet)
        self.instance = instance
        self.seen = Seen()
        self.out = ClassEmitter(component, self.seen)

    def open(self) -> None:
        program = self.task.program
        self.task.box.begin(self.name)
        with getting_ready(self.name):
            self.instance.open(
                Context(self.name, self.task.id.partition, self.task.partitions, program.code_path)
            )
        self.task.box.end()

    def process(self, batch: Batch) -> None:
        batch, held = self.held(batch)
        rows = numbered_rows(held, self.seen.add(batch))
        again: list[int] = []
        box = self.task.box
        self.task.worked_on(self.name, batch)
        for index, row in enumerate(rows):
            if monotonic() >= box.due_s:
                box.progress()
            error = self.call(row, None)
            if isinstance(error, TupleFailedError):
                self.fail(batch, index, error)
            elif error is not None:
                again.append(index)
        if again:
            fresh = numbered_rows(rows_held(batch.data)[0], rows[0].at)
            for index in again:
                box.progress()
                error = self.call(fresh[index], None)
                if error is not None:
                    self.fail(batch, index, error)
        box.end()
        self.send()

    def call(self, row: Row, state: dict[str, Any] | None) -> BaseException | None:
        """Call ``process`` once; what it raised, after which its outputs are gone."""
        mark = self.out.begin(row, state)
        try:
            self._given_nothing("process", self.instance.process(row, self.out))  # type: ignore[func-returns-value]
        except BaseException as error:
            if is_order(error):
                raise
            self.out.back_to(mark)
            return error
        return None

    def fail(self, batch: Batch, index: int, error: BaseException) -> None:
        """The tuple's roots fail, with the reason given to ``out.fail`` or the exception."""
        text = str(error) if isinstance(error, TupleFailedError) else error
        self.task.fail(batch, index, self.name, text)

    def _given_nothing(self, method: str, found: object) -> None:
        """Raises ``OutputError`` where a method returned something, which nobody takes."""
        if found is not None:
            raise OutputError(
                f"processor {self.name!r}: {method} returned {type(found).__name__}, which goes "
                "nowhere; call out.emit for each row, and return nothing"
            )

    def finish(self) -> None:
        self.out.begin(None)
        self.task.box.begin(self.name, batch=True)
        try:
            self._given_nothing("finish", self.instance.finish(self.out))  # type: ignore[func-returns-value]
        except BaseException as error:
            if is_order(error):
                raise
            raise UserCodeError(
                f"processor {self.name!r}: finish raised {error_text(error)}"
            ) from error
        self.task.box.end()
        self.send()

    def close(self) -> None:
        # No root is in hand any more, also where it failed with some.
        self.task.box.begin(self.name)
        try:
            self.instance.close()
        except BaseException as error:
            if is_order(error):
                raise
            # The window's work is done; what cannot be released does not undo it.
            log.warning("processor %r cannot be closed: %s", self.name, error_text(error))
        self.task.box.end()

    def send(self) -> None:
        """Send on what was emitted since the last time."""
        data, anchors, bad = self.out.drain()
        for number, error in bad.items():
            batch, index = self.seen.find(number)
            self.task.fail(batch, index, self.name, error)
        if not anchors:
            return
        emission = [self._tracking(numbers) for numbers in anchors]
        lists = None
        if any(len(roots) > 1 for _, _, roots, _ in emission):
            lists = pa.array([roots for _, _, roots, _ in emission], pa.list_(pa.uint32()))
        ordinals = np.array([e[1] for e in emission], np.uint32)
        order = np.array([e[3] for e in emission], np.uint64)
        self.outlet.emit_anchored(
            data,
            np.array([e[0] for e in emission], np.uint64),
            ordinals,
            np.array([e[2][0] for e in emission], np.uint32),
            lists,
            kernels.child_order(order, np.arange(order.size, dtype=np.int64), ordinals),
        )

    def _tracking(self, numbers: tuple[int, ...]) -> tuple[int, int, list[int], int]:
        """(id of the first parent, ordinal, roots, the parent's order) of one emitted row."""
        if not numbers:
            return 0, 0, [kernels.UNTRACKED], 0
        batch, index = self.seen.find(numbers[0])
        parent = 0 if batch.ids is None else int(batch.ids[index])
        order = 0 if batch.order is None else int(batch.order[index])
        roots: dict[int, None] = {}
        for number in numbers:
            other, at = self.seen.find(number)
            roots.update(dict.fromkeys(other.roots_at(at)))
        return parent, self.seen.next_ordinal(numbers[0]), list(roots), order


def numbered_rows(held: Sequence[Mapping[str, Any]], start: int) -> list[Row]:
    """Rows that know their number in the task, that of the first being ``start``."""
    rows = []
    for offset, values in enumerate(held):
        row = Row(values)
        row.at = start + offset
        rows.append(row)
    return rows
