"""What becomes of a worker whose allocation has failed, and when one looks for cyclic garbage.

A worker may have a limit (``spark.executor.pyspark.memory``). User code that asks for too much at
once fails alone: its tuple's roots are to blame. User code that keeps what it took leaves nothing
for the tuples after it, which must not be blamed for that: the window attempt dies instead, and is
split down to the root that does it. In either case the process runs no other window attempt: nobody
knows what it still holds. Where no user code had a batch in hand, and none had failed before, it is
evidence of nothing: the state may be what is too large.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from millrace.errors import UserCodeError

ROOM_BYTES = 64 << 20
"""A process that cannot have so much more has no room for other tuples."""


RESERVE_BYTES = 16 << 20
"""What is kept back, untouched, so that a process without memory can still say so."""

_reserve = [bytes(RESERVE_BYTES)]

TASKS_PER_LOOK = 200
"""Tasks between two looks at how much memory a process has."""

GROWN_BYTES, GROWN_PARTS = 16 << 20, 16
"""So much more, and a 16th of what it was, is worth a full collection."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class WorkerExhaustedError(MemoryError):
    """The worker had no memory left before an attempt began; Spark starts another in its place."""


def has_room() -> bool:
    """Whether some memory is left. Bytes that nobody touches cost address space alone."""
    try:
        bytes(ROOM_BYTES)
    except MemoryError:
        return False
    return True


class WorkerMemory:
    """What is known of this process's memory."""

    def __init__(self) -> None:
        self._failed_in = ""

    def failed(self, processor: str, error: MemoryError) -> None:
        """An allocation in user code has failed, twice.

        Raises ``UserCodeError`` where other tuples may have been the reason.
        """
        self._failed_in = processor
        # What the call that failed still held goes with its frames.
        traceback.clear_frames(error.__traceback__)
        if not has_room():
            raise self.exhausted()

    @property
    def was_short(self) -> bool:
        """Whether user code has run out of it before."""
        return bool(self._failed_in)

    def check(self) -> None:
        """A task begins. Raises ``WorkerExhaustedError`` where this process is of no more use."""
        if self._failed_in or not has_room():
            raise WorkerExhaustedError(self._told())

    def exhausted(self) -> UserCodeError:
        """The error that ends this process: what the task had in hand was too much for it.

        The reserve goes with it, for otherwise nobody would hear of the error.
        """
        _reserve.clear()
        return UserCodeError(self._told())

    def _told(self) -> str:
        where = f" since processor {self._failed_in!r} ran out of it" if self._failed_in else ""
        return (
            f"MemoryError: worker process {os.getpid()} has no memory left{where}; give workers "
            "more with spark.executor.pyspark.memory in spec.spark.conf"
        )


def resident_bytes() -> int:
    """Memory of this process that is backed by pages."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


class Garbage:
    """Keeps what stays with the process out of the collections that follow every task.

    Spark's daemon collects after each task, which takes as long as all state that is kept as Python
    objects is large. Cyclic garbage that stays meanwhile takes memory: once the process has grown,
    everything is looked through, which holds a small window up for longer than all else in it.
    """

    def __init__(self, resident: Callable[[], int] = resident_bytes) -> None:
        self._resident = resident
        self._least = resident()
        self._tasks = 0

    def after_task(self) -> None:
        """A task, or a window of a task that stays, has ended."""
        self._tasks += 1
        if self._tasks % TASKS_PER_LOOK == 0 and self._grown():
            gc.unfreeze()
            gc.collect()
            self._least = self._resident()
        gc.freeze()

    def _grown(self) -> bool:
        now = self._resident()
        self._least = min(self._least, now)
        return now - self._least > max(GROWN_BYTES, self._least // GROWN_PARTS)
