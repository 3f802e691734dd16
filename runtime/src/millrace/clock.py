"""Time as an injected dependency, so that every decision can be repeated in a test."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of wall-clock and monotonic time, both in seconds."""

    def now_s(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start that never run backwards."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()
