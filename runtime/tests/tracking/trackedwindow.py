"""A small tracked window for tests: lines are split into words, words are counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tasktold import TaskTold, TrackedEdge

from millrace.ids import TRACKING_PARTITIONS
from millrace.protocol.acklog import edge_name, source_edge
from millrace.protocol.types import AttemptId, CloseMarker, Intent, RootRange, TaskId
from millrace.tracking import kernels

SPLIT, WORDS = TrackedEdge.between("lines", "split"), TrackedEdge.between("split", "counts")
TOTALS = TrackedEdge.between("counts", "out")
EDGES = (source_edge("lines"), SPLIT.name, WORDS.name, TOTALS.name)
assert edge_name("lines", "split") == SPLIT.name


@dataclass
class TrackedWindow:
    """Messages of one map task, one reduce task and, with ``loser``, of a map task that lost.

    The word at place ``lost_word`` (a root's first word) is emitted and never counted.
    """

    attempt: AttemptId
    roots: int
    lost_word: int | None = None
    loser: bool = False
    slices: int = TRACKING_PARTITIONS
    wrote: dict[TaskId, tuple[int, ...]] = field(default_factory=dict)

    @property
    def intent(self) -> Intent:
        return Intent(self.attempt.window, (RootRange("lines", 1, 0, self.roots),))

    def messages(self) -> list[list[tuple[int, bytes]]]:
        """What each task appends to the ack log, losers first."""
        roots = np.arange(self.roots, dtype=np.uint32)
        source, sink = TaskId(0, 0, 1), TaskId(1, 0, 2)
        mapped = TaskTold(self.attempt, source, self.roots, slices=self.slices)
        seeds = kernels.range_seeds("lines", 1, 0, self.roots)
        mapped.read("lines", roots, seeds)
        lines = mapped.emit(SPLIT, roots, seeds, np.arange(self.roots))
        mapped.absorb(SPLIT, roots, lines)
        words = mapped.emit(WORDS, np.repeat(roots, 2), lines, np.repeat(np.arange(self.roots), 2))
        reduced = TaskTold(self.attempt, sink, self.roots, slices=self.slices)
        word_roots = np.repeat(roots, 2)
        if self.lost_word is not None:
            keep = np.arange(len(words)) != 2 * self.lost_word
            words, word_roots = words[keep], word_roots[keep]
        reduced.absorb(WORDS, word_roots, words)
        reduced.combined(TOTALS, 77)
        reduced.combined(TOTALS, 77)
        self.wrote = {
            source: tuple(p for p, _ in mapped.messages()),
            sink: tuple(p for p, _ in reduced.messages()),
        }
        parts = [mapped.messages(), reduced.messages()]
        if self.loser:
            lost = TaskTold(self.attempt, TaskId(0, 0, 9), self.roots, slices=self.slices)
            lost.read("lines", roots, seeds)
            parts.insert(0, lost.messages())
        return parts

    def marker(self) -> CloseMarker:
        """To be called after ``messages``."""
        winners = tuple(self.wrote.items())
        return CloseMarker(self.attempt, self.intent, frozenset(), winners, ((0, self.roots),))
