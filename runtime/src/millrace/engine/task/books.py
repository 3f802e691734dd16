"""What one task has emitted and processed, and which of its tuples failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace.engine.task import kernels
from millrace.engine.task.batch import Batch
from millrace.protocol.types import FailedRoot
from millrace.tracking.collector import ReadRun, slots

Array = np.ndarray[Any, np.dtype[Any]]

MOST_RUNS = 4_096
"""Records in further runs are booked by ids: each run takes some bytes of several messages."""

_ERROR_LENGTH = 500
_NO_ROOTS = np.empty(0, np.uint64)


class NetPool:
    """Arrays for nets that stay with the process, one task's after the other's.

    Fresh memory costs a page fault for every 4 KiB, more than the arithmetic done in it.
    """

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._used = 0

    def begin(self) -> None:
        """A task begins; the arrays of the one before are free."""
        self._used = 0

    def zeros(self, size: int) -> Array:
        """uint64[size], all 0, for the rest of the task."""
        if self._used == len(self._arrays):
            self._arrays.append(np.zeros(size, np.uint64))
        elif len(self._arrays[self._used]) < size:
            self._arrays[self._used] = np.zeros(size, np.uint64)
        else:
            self._arrays[self._used][:size] = 0
        found = self._arrays[self._used][:size]
        self._used += 1
        return found


class Books:
    """XOR of ids, for each edge: once where emitted, once where processed. Batches of which both
    would cancel are left out (``lineage``), and records in runs are noted as such.

    With ``tracked`` false every operation does nothing.
    """

    def __init__(self, roots: int, slices: int, tracked: bool, pool: NetPool) -> None:
        self.tracked = tracked
        self._size = slots(roots, slices)
        self._pool = pool
        pool.begin()
        self.nets: dict[str, Array] = {}
        """Check values by root, of each edge on which a tuple of a root was booked."""
        self._tree: dict[str, Array] = {}
        self.read: dict[str, list[ReadRun]] = {}
        """Records that were read and emitted in runs, by their source's own edge; its net has the
        others."""

    @property
    def tree(self) -> dict[str, int]:
        """Check values of the window's own tree, by edge."""
        return {edge: int(value[0]) for edge, value in self._tree.items()}

    def pair(self, edge: str, roots: Array) -> tuple[Array, Array]:
        """Where tuples of these roots are booked on an edge: by root, and of the window's own tree.

        Many have no root but that one, and an array as wide as the window is not for them.
        """
        net = self.nets.get(edge)
        if net is None and roots.size and int(roots.min()) < kernels.WINDOW_TREE:
            net = self.nets[edge] = self._pool.zeros(self._size)
        return (_NO_ROOTS if net is None else net), self._of_tree(edge)

    def add_to_tree(self, edge: str, value: int) -> None:
        """Tuples of the window's own tree whose ids come to ``value`` were emitted or processed."""
        if self.tracked:
            self._of_tree(edge)[0] ^= np.uint64(value)

    def _of_tree(self, edge: str) -> Array:
        return self._tree.setdefault(edge, np.zeros(1, np.uint64))

    def book(self, edge: str, batch: Batch) -> None:
        """XOR the ids of a batch in, which was emitted or processed on ``edge``."""
        if not self.tracked or batch.ids is None:
            return
        if batch.anchors is None:
            kernels.absorb(batch.ids, batch.roots, self.pair(edge, batch.roots))
        else:
            offsets, values = (a.to_numpy() for a in (batch.anchors.offsets, batch.anchors.values))
            kernels.absorb_lists(batch.ids, offsets, values, self.pair(edge, values))

    def absorb(self, edge: str, batch: Batch) -> None:
        """A batch that came over ``edge`` has been processed."""
        if batch.anchors is not None or not batch.lineage.processed(edge):
            self.book(edge, batch)

    def absorb_records(self, edge: str, batch: Batch) -> None:
        """A batch has been read and emitted; ``edge`` is its source's own."""
        run = batch.lineage.run
        if run is None or not self.tracked:
            self.book(edge, batch)
            return
        runs = self.read.setdefault(edge, [])
        longer = runs[-1].followed_by(run) if runs else None
        if longer is not None:
            runs[-1] = longer
        elif len(runs) < MOST_RUNS:
            runs.append(run)
        else:
            self.book(edge, batch)


class Failures:
    """Failed roots of one task. A root that failed contributes nothing more.

    ``names`` are those of components by number, which the roots of combined tuples carry.
    """

    def __init__(self, roots: int, names: Mapping[int, str]) -> None:
        self._size = roots
        self._names = names
        self._mask: Array | None = None
        self._failed: dict[int, FailedRoot] = {}
        self._combined: dict[str, tuple[int, str]] = {}
        self.dropped = 0

    def add(
        self,
        roots: list[int],
        processor: str,
        error: str,
        trace: str = "",
        lasting: bool = False,
    ) -> None:
        """A tuple of these roots failed in this attempt; ``lasting`` says that no replay helps."""
        for root in roots:
            if root < kernels.WINDOW_TREE:
                text = error[:_ERROR_LENGTH]
                self._add_root(FailedRoot(root, processor, text, trace, lasting=lasting))
            elif root == kernels.UNTRACKED:
                self.dropped += 1
            else:
                number, group = (root - kernels.WINDOW_TREE) >> 16, root & 0xFFFF
                name = self._names[number]
                mask, first = self._combined.get(name, (0, f"{processor}: {error}"))
                self._combined[name] = (mask | 1 << group, first)

    def add_unreadable(self, root: int, source: str, error: str) -> None:
        """A record could not be decoded by ``source``, or by the one step that it goes to, and
        nothing is emitted for it."""
        self._add_root(FailedRoot(root, source, error[:_ERROR_LENGTH], unreadable=True))

    def _add_root(self, failed: FailedRoot) -> None:
        if failed.sequence in self._failed:
            return
        if self._mask is None:
            self._mask = np.zeros(self._size, bool)
        self._mask[failed.sequence] = True
        self._failed[failed.sequence] = failed

    def without_failed(self, batch: Batch) -> Batch:
        """The batch less tuples of roots that failed in this task."""
        if self._mask is None or not len(batch):
            return batch
        own = batch.roots < kernels.WINDOW_TREE
        failed = np.zeros(len(batch), bool)
        failed[own] = self._mask[batch.roots[own]]
        return batch.filter(~failed) if failed.any() else batch

    @property
    def failed(self) -> tuple[FailedRoot, ...]:
        return tuple(self._failed[s] for s in sorted(self._failed))

    @property
    def combined(self) -> tuple[tuple[str, int, str], ...]:
        return tuple((n, mask, text) for n, (mask, text) in sorted(self._combined.items()))
