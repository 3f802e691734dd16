"""Lanes: threads that share one first pass, each as a task of its own.

A lane has steps, books and notes of its own, reads what no other has read, and has as much to tell
the ackers and the passes behind as any of several tasks; the task that goes on tells it. Compiled
steps hold no lock of Python's, so that lanes keep as many cores busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

from millrace.engine.task.steps.ends import Piece
from millrace.sources.base import ReadBatch

ROWS = 32_768
"""Most roots that go through the steps of a lane at once: between two steps it waits for Python's
lock, which other threads hold, so that it does so less often than a task that is alone."""

LANE_ROOTS = 16_384
"""Of fewer roots a lane would be done before it is worth its messages."""


def lanes_for(roots: int, most: int) -> int:
    """How many lanes the first pass of a window of so many roots has, at most ``most``."""
    return max(1, min(most, roots // LANE_ROOTS))


class SharedReading:
    """Batches of the pieces of one window, each for the lane that asks first; safe for several
    threads. Where reading fails, that is raised in the lane that read, and others find the end."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pieces: dict[int, _Shared] = {}
        self._stopped = False

    def stop(self) -> None:
        """Let every lane find the end: what is read is for nobody."""
        self._stopped = True

    def __call__(
        self, piece: Piece, batches: Iterator[ReadBatch]
    ) -> Iterator[tuple[int, ReadBatch]]:
        """As ``ends.in_turn``, less what others take; of each piece the batches of one lane are
        read, whoever gets them. The same object is the same piece."""
        with self._lock:
            shared = self._pieces.setdefault(id(piece), _Shared(batches))
        while not self._stopped and (found := shared.next()) is not None:
            yield found


class _Shared:
    def __init__(self, batches: Iterator[ReadBatch]) -> None:
        self._batches = batches
        self._lock = Lock()
        self._done = 0

    def next(self) -> tuple[int, ReadBatch] | None:
        with self._lock:
            part = next(self._batches, None)
            if part is None:
                return None
            at, self._done = self._done, self._done + part.offsets
            return at, part
