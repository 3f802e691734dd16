"""The context of a task attempt: what it is to do, and what it has booked so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from millrace.engine.program.program import Program
from millrace.engine.program.traces import Traces
from millrace.engine.task.batch import Array, Batch
from millrace.engine.task.blackbox import Box
from millrace.engine.task.books import Books, Failures
from millrace.engine.task.memory import WorkerMemory
from millrace.errors import MillraceError, error_text, is_order
from millrace.protocol.names import TaskObject
from millrace.protocol.types import AttemptPlan, TaskId
from millrace.state.keyed.keytable import Room


@dataclass(slots=True)
class Task:
    """One task attempt: what it is to do and what it has booked so far.

    ``partitions`` is the number of partitions that share the key groups, 1 where one task plays
    them all. ``rooms`` are what combined edges took in this process's last task and of how many
    roots its window was, by their names.
    """

    program: Program
    plan: AttemptPlan
    id: TaskId
    partitions: int
    books: Books
    failures: Failures
    box: Box
    memory: WorkerMemory = field(default_factory=WorkerMemory)
    traces: Traces = field(default_factory=Traces)
    rooms: dict[str, tuple[int, Room]] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether this is the window without roots that a drained run ends with."""
        return self.plan.intent.final

    def partition_of(self, groups: Array) -> Array:
        """The partition that has each key group."""
        return (groups % self.partitions).astype(np.int64)

    def object_name(self, kind: str, component: str) -> str:
        """Name of an object that this task attempt writes."""
        return str(TaskObject(self.plan.id, self.id, kind, component))

    def fail(self, batch: Batch, index: int, processor: str, error: BaseException | str) -> None:
        """The tuple at ``index`` failed in this attempt: so do its roots."""
        if isinstance(error, MemoryError):
            self.memory.failed(processor, error)
        text = error if isinstance(error, str) else error_text(error)
        trace = "" if isinstance(error, str) else self.traces.of(error)
        self.failures.add(batch.roots_at(index), processor, text, trace)

    def not_read(self, batch: Batch, index: int, source: str, error: str, gone: bool) -> None:
        """The root at ``index`` could not be decoded, or is ``gone`` and may come back."""
        if gone:
            self.fail(batch, index, source, error)
        else:
            self.failures.add_unreadable(int(batch.roots[index]), source, error)

    def worked_on(self, processor: str, batch: Batch) -> None:
        """User code gets a batch now; its time runs from here."""
        self.box.begin(processor, batch.span(), batch=True)


class UnavailableError(MillraceError):
    """User code could not get ready; no root is to blame, and the window is run again."""

    retryable = True


@contextmanager
def getting_ready(processor: str) -> Iterator[None]:
    """Around user code that runs before the first tuple. Raises ``UnavailableError``."""
    try:
        yield
    except BaseException as error:
        if is_order(error):
            raise
        raise UnavailableError(
            f"processor {processor!r} cannot be opened: {error_text(error)}; it is tried again"
        ) from error
