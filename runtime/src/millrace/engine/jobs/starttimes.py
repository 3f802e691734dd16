"""When a driver that starts cold has reached what, for the line in its log that tells it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import psutil


class StartTimes:
    """Seconds since this process began, by step; a step that comes again keeps its first time.

    Steps of the main thread and of the one that starts Spark go on beside each other.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, began_s: float | None = None
    ) -> None:
        self._now = now
        self._began_s = now() - lived_s() if began_s is None else began_s
        self._steps: dict[str, float] = {}

    def reached(self, step: str) -> None:
        """The step is done. From any thread."""
        self._steps.setdefault(step, self._now() - self._began_s)

    def text(self, *others: StartTimes) -> str:
        """``step 0.00 s`` of this and of others, in the order in which they were reached."""
        # Copied whole: other threads may reach steps meanwhile.
        reached = [one for times in (self, *others) for one in times._steps.copy().items()]
        return ", ".join(f"{step} {at_s:.2f} s" for step, at_s in sorted(reached, key=_AT))


def lived_s() -> float:
    """How long this process has lived, to a hundredth of a second on Linux; where the kernel does
    not tell the ticks of its clock since the machine was started, to a second."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began_s = int(fields[_BEGAN]) / os.sysconf("SC_CLK_TCK")
        return float(time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
    except (OSError, AttributeError):
        return time.time() - float(psutil.Process().create_time())


_BEGAN = 19
"""Where ``starttime`` stands behind the name of the program, see proc_pid_stat(5)."""

_AT: Callable[[tuple[str, float]], float] = itemgetter(1)
