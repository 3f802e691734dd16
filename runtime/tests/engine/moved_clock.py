"""A clock that tests of the engine move by hand."""

from __future__ import annotations

from millrace.clock import Clock


class Hands(Clock):
    """``at_s`` is both the wall-clock and the monotonic time."""

    at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s
