"""When a driver that starts cold has reached what, for the line in its log that tells it."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import itemgetter

import psutil


class StartTimes:
    """Seconds since this process began, by step; a step that comes again keeps its first time.

    Steps of the main thread and of the one that starts Spark go on beside each other.
    """

    def __init__(self) -> None:
        self._began_s = psutil.Process().create_time()
        self._steps: dict[str, float] = {}

    def reached(self, step: str) -> None:
        """The step is done. From any thread."""
        self._steps.setdefault(step, time.time() - self._began_s)

    def text(self, *others: StartTimes) -> str:
        """``step 0.00 s`` of this and of others, in the order in which they were reached."""
        reached = (one for times in (self, *others) for one in times._steps.items())
        return ", ".join(f"{step} {at_s:.2f} s" for step, at_s in sorted(reached, key=_AT))


_AT: Callable[[tuple[str, float]], float] = itemgetter(1)
