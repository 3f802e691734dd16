"""Time as an injected dependency, so that every decision can be repeated in a test; and which
moment a value means that names no zone.
"""

from __future__ import annotations

import datetime as dt
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


def moment_of(day: dt.date) -> dt.datetime:
    """A moment, in UTC where it has no zone, or the one at which a day begins in UTC."""
    if isinstance(day, dt.datetime):
        return day if day.tzinfo is not None else day.replace(tzinfo=dt.UTC)
    return dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC)
