"""When a process that ended is started again, as a pure rule.

A life that brought progress forgives what was before. Without progress each further start waits
longer, and an exit code that says "a restart does not help" ends the run after a few of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.errors import ExitCode

DELAYS_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Waits before the first, second, … start without progress; the last one repeats."""

LONG_LIFE_S = 60.0
"""A life of this length counts as progress, unless the engine's own error ended it."""

STANDBY_DELAYS_S = (0.0, 10.0, 60.0, 300.0)
"""Waits before the next driver that stands by is started, after so many in a row that did not get
ready; the last one repeats."""

STANDBY_PATIENCE_S = 10.0
"""How long one that was ready and whose turn it is may take to answer."""

STANDBY_EARLY_PATIENCE_S = 60.0
"""The same of one that was not ready: it may still import what it needs."""

FINAL_CODES: Mapping[int, int] = {
    ExitCode.USAGE: 1,
    ExitCode.INVALID_TOPOLOGY: 1,
    ExitCode.WORK_FOLDER: 1,
    ExitCode.NEWER_FORMAT: 1,
    ExitCode.TOO_MANY_DEAD: 1,
    ExitCode.STATE_LOST: 1,
    ExitCode.SNAPSHOT: 1,
    ExitCode.SINK: 2,
    ExitCode.SOURCE: 2,
    ExitCode.ENGINE: 2,
    ExitCode.FAILED: 5,
}
"""How many lives in a row without progress may end with a code before the run is given up.

Signals and state servers that are away are not in it: these are what restarts are for.
"""


def wait_s(delays_s: Sequence[float], failures: int) -> float:
    """The wait after so many failures before; the last one of the delays repeats."""
    return delays_s[min(failures, len(delays_s) - 1)]


@dataclass(frozen=True, slots=True)
class Again:
    """Start again after ``delay_s``."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start again: ``lives`` ended with ``code``."""

    code: int
    lives: int


@dataclass(slots=True)
class Restarts:
    """The history of one process. ``count`` is how often it was started again."""

    final_codes: Mapping[int, int] = field(default_factory=dict)
    count: int = 0
    fruitless: int = 0
    same_code: tuple[int, int] = (0, 0)

    def ended(self, code: int, lived_s: float, progressed: bool) -> Again | GiveUp:
        """Decide after a life that ended with ``code`` (negative: a signal)."""
        # Failing at the same window again and again may take long and is no progress.
        long = lived_s >= LONG_LIFE_S and code != ExitCode.ENGINE
        if progressed or long:
            self.fruitless = 0
            self.same_code = (0, 0)
        last, times = self.same_code
        self.same_code = (code, times + 1 if code == last else 1)
        allowed = self.final_codes.get(code)
        if allowed is not None and self.same_code[1] >= allowed:
            return GiveUp(code, self.same_code[1])
        self.count += 1
        return Again(self.next_wait_s())

    def next_wait_s(self) -> float:
        """Seconds until the next try, behind one more that came to nothing; also where no life
        could be begun, since what it takes may come back."""
        delay_s = wait_s(DELAYS_S, self.fruitless)
        self.fruitless += 1
        return delay_s
