"""A task's ack messages in tests, by the books and the collector that tasks have in production."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace import ids
from millrace.engine.task import kernels
from millrace.engine.task.acks import told
from millrace.engine.task.books import Books, NetPool
from millrace.protocol.acklog import edge_name, source_edge
from millrace.protocol.types import AttemptId, RootRange, TaskId
from millrace.tracking.collector import AckCollector, ReadRun
from millrace.tracking.ids import U32, U64


@dataclass(frozen=True, slots=True)
class TrackedEdge:
    """An edge's name in messages and its id in tuple ids."""

    name: str
    id: int

    @classmethod
    def between(cls, producer: str, consumer: str) -> TrackedEdge:
        return cls(edge_name(producer, consumer), ids.edge_id(producer, consumer))


class TaskTold:
    """What one task attempt emits and processes; roots are uint32, ids uint64. It reads all roots
    of the window but where ``runs`` are given."""

    def __init__(
        self,
        attempt: AttemptId,
        task: TaskId,
        roots: int,
        ranges: Sequence[RootRange] = (),
        slices: int = ids.TRACKING_PARTITIONS,
        runs: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self._named = attempt, task, roots, ranges, ((0, roots),) if runs is None else runs
        self._slices = slices
        self._books = Books(roots, slices, True, NetPool())

    def read(self, source: str, roots: U32, seeds: U64) -> None:
        """A source task has read these roots: closes the seed that the acker sets."""
        self.absorb(source_edge(source), roots, seeds)

    def read_run(self, source: str, run: ReadRun) -> None:
        """The same of consecutive records."""
        self._books.read.setdefault(source_edge(source), []).append(run)

    def absorb(self, edge: TrackedEdge | str, roots: U32, tuples: U64) -> None:
        """Tuples were handed to an edge, or have come over it and are processed."""
        name = edge if isinstance(edge, str) else edge.name
        kernels.absorb(tuples, roots, self._books.pair(name, roots))

    def emit(self, edge: TrackedEdge, roots: U32, parents: U64, of: np.ndarray) -> U64:  # type: ignore[type-arg]
        """Children of ``parents[of[i]]``, with their own ``roots``, were handed to an edge."""
        tuples = kernels.children(parents, of, None, edge.id)
        self.absorb(edge, roots, tuples)
        return tuples

    def combined(self, edge: TrackedEdge, value: int) -> None:
        """A tuple of the window's own tree was emitted or processed."""
        self._books.add_to_tree(edge.name, value)

    def messages(self) -> list[tuple[int, bytes]]:
        return told(self._books, AckCollector(*self._named, slices=self._slices)).messages()
