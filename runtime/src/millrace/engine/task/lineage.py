"""Roots and ids of a batch's tuples, worked out when somebody looks at them.

Most batches go whole from the step that emits them to the one that processes them, within one task
and while they are delivered. What such a batch adds to the check values as emitted it takes out
again as processed, so that neither is worked out: that the very same tuples were both is enough.
Wherever tuples part, because a batch is cut, filtered or kept, leaves the task, or is not processed
when its delivery ends, they have the ids that they always have.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.engine.task import kernels
from millrace.errors import EngineError
from millrace.protocol.types import RootRange
from millrace.tracking import kernels as tracking
from millrace.tracking.collector import ReadRun

Array = np.ndarray[Any, np.dtype[Any]]


class Lineage:
    """``roots`` (uint32[n], see ``kernels``) and ``ids`` (uint64[n], ``None`` unless ``tracked``)
    of the n tuples of a batch. Kinds that are given none make them when they are first asked for.
    """

    __slots__ = ("_ids", "_roots", "tracked")

    def __init__(self, roots: Array | None, ids: Array | None = None) -> None:
        self._roots = roots
        self._ids = ids
        self.tracked = ids is not None

    @property
    def roots(self) -> Array:
        if self._roots is None:
            self._roots = self._made_roots()
        return self._roots

    @property
    def ids(self) -> Array | None:
        if self._ids is None and self.tracked:
            self._ids = self._made_ids()
        return self._ids

    def _made_roots(self) -> Array:
        raise NotImplementedError

    def _made_ids(self) -> Array:
        raise NotImplementedError

    @property
    def run(self) -> ReadRun | None:
        """What these are where they are consecutive records of a source as they were read."""
        return None

    def processed(self, edge: str) -> bool:
        """All of these have been processed on ``edge``; whether that cancels what they would add
        there as emitted, so that neither is to be booked."""
        return False


class Records(Lineage):
    """Consecutive records of a source partition, whose first has sequence number ``first``."""

    __slots__ = ("_first", "_range")

    def __init__(self, first: int, read: RootRange, tracked: bool) -> None:
        super().__init__(None)
        self._first = first
        self._range = read
        self.tracked = tracked

    def _made_roots(self) -> Array:
        return np.arange(self._first, self._first + self._range.count, dtype=np.uint32)

    def _made_ids(self) -> Array:
        read = self._range
        return tracking.range_seeds(read.source, read.partition, read.start, read.count)

    @property
    def run(self) -> ReadRun | None:
        read = self._range
        base = (read.start - self._first) % (1 << 64)
        return ReadRun(self._first, read.count, read.partition, base)


class Children(Lineage):
    """What the tuples of ``parent`` emit on an edge, until ``end``, when its delivery is over.

    ``parents`` (int64) are indices into them, ``None`` one to one; without ``ordinals`` (uint32) a
    child's counts the earlier ones of its parent. ``edge`` is the edge's id; ``name`` that by which
    it is booked, empty where what is delivered is not booked itself.
    """

    __slots__ = ("_edge", "_name", "_ordinals", "_over", "_parent", "_parents", "whole")

    def __init__(
        self, parent: Lineage, parents: Array | None, ordinals: Array | None, edge: int, name: str
    ) -> None:
        super().__init__(None)
        self.tracked = parent.tracked
        self._parent = parent
        self._parents = parents
        self._ordinals = ordinals
        self._edge = edge
        self._name = name
        self._over = False
        self.whole = False
        """Whether they have all been processed, and are not to be booked as emitted."""

    def _made_roots(self) -> Array:
        self._check()
        roots = self._parent.roots
        return roots if self._parents is None else roots[self._parents]

    def _made_ids(self) -> Array:
        self._check()
        ids = self._parent.ids
        assert ids is not None
        return kernels.children(ids, self._parents, self._ordinals, self._edge)

    def processed(self, edge: str) -> bool:
        if self.whole or self._over or not edge or edge != self._name:
            return False
        self.whole = True
        return True

    def end(self) -> None:
        """The delivery is over. What these were made from may change now: who has not processed
        them yet finds what is worked out here, and who has finds no more than it looked at."""
        if not self.whole:
            _ = self.roots, self.ids
        self._over = True
        self._parent, self._parents, self._ordinals = _NOTHING, None, None

    def _check(self) -> None:
        if self._over:
            raise EngineError(
                f"tuples of the edge {self._name} are looked at when they have been processed; "
                "keep() what is needed of them then"
            )


_NOTHING = Lineage(np.empty(0, np.uint32))
