"""Time that stands still until a test turns it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class HandClock:
    """``time_s`` is the monotonic time; wall-clock time is ``epoch_s`` further on."""

    time_s: float = 1000.0
    epoch_s: float = 0.0

    def now_s(self) -> float:
        return self.epoch_s + self.time_s

    def monotonic_s(self) -> float:
        return self.time_s
