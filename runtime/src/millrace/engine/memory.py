"""What becomes of a worker process in which an allocation has failed.

A worker may have a limit (``spark.executor.pyspark.memory``). User code that asks for too much at
once fails alone: its tuple's roots are to blame. User code that keeps what it took leaves nothing
for the tuples after it, which must not be blamed for that: the window attempt dies instead, and is
split down to the root that does it. In either case the process gets no further task, since nobody
knows what it still holds.
"""

from __future__ import annotations

import os
import traceback

ROOM_BYTES = 64 << 20
"""A process that cannot have so much more has no room for other tuples."""


class WorkerExhaustedError(MemoryError):
    """The worker has no memory left; Spark starts another one in its place."""


def has_room() -> bool:
    """Whether some memory is left. Bytes that nobody touches cost address space alone."""
    try:
        bytes(ROOM_BYTES)
    except MemoryError:
        return False
    return True


class Memory:
    """What is known of this process's memory."""

    def __init__(self) -> None:
        self._failed_in = ""

    def failed(self, processor: str, error: MemoryError) -> None:
        """An allocation in user code has failed, twice.

        Raises ``WorkerExhaustedError`` where other tuples may have been the reason.
        """
        self._failed_in = processor
        # What the call that failed still held goes with its frames.
        traceback.clear_frames(error.__traceback__)
        if not has_room():
            raise self.exhausted()

    def check(self) -> None:
        """A task begins. Raises ``WorkerExhaustedError`` where this process is of no more use."""
        if self._failed_in:
            raise self.exhausted()

    def exhausted(self) -> WorkerExhaustedError:
        """The error that ends this process."""
        where = f" since processor {self._failed_in!r} ran out of it" if self._failed_in else ""
        return WorkerExhaustedError(
            f"MemoryError: worker process {os.getpid()} has no memory left{where}; give workers "
            "more with spark.executor.pyspark.memory in spec.spark.conf"
        )
