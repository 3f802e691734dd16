"""How many executors the lag asks for: a pure rule with hysteresis.

More come when records of several windows wait and go on waiting; one goes when hardly any wait and
the rest would be busy for less than half of their time, or there are more than have tasks. Both
bounds have to hold for a while, and lie so far apart that a change does not bring about the
opposite one.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.protocol.ackerload import since

BEHIND = 2.0
"""From so many waiting windows on a topology is behind."""

CALM = 1.0
"""Below so many it is not, and may have too many executors."""

SPARE = 0.5
"""Share of their time that the rest may have to work for after one went."""

GROW_AFTER_S = 15.0
"""Longer than the few windows that a burst takes; about as long as an executor takes to start."""

SHRINK_AFTER_S = 120.0


@dataclass(frozen=True, slots=True)
class ExecutorBounds:
    """How few and how many executors there may be."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Load:
    """``waiting``: windows' worth of records that no window has taken; ``busy``: the share of the
    time in which an attempt ran."""

    waiting: float
    busy: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """Since when a topology is behind, or has an executor too many; monotonic seconds, None where
    that is not so."""

    behind_since_s: float | None = None
    spare_since_s: float | None = None


def executors_for(
    before: Pressure, now_s: float, load: Load, executors: int, bounds: ExecutorBounds
) -> tuple[Pressure, int]:
    """What is known from now on, and how many executors there should be."""
    behind = load.waiting >= BEHIND and executors < bounds.most
    rest_works = load.busy * executors <= SPARE * (executors - 1)
    too_many = rest_works or executors > bounds.most
    spare = load.waiting < CALM and too_many and executors > bounds.least
    now = Pressure(
        since(behind, before.behind_since_s, now_s), since(spare, before.spare_since_s, now_s)
    )
    if now.behind_since_s is not None and now_s - now.behind_since_s >= GROW_AFTER_S:
        return Pressure(), min(bounds.most, executors + max(1, executors // 2))
    if now.spare_since_s is not None and now_s - now.spare_since_s >= SHRINK_AFTER_S:
        return Pressure(), executors - 1
    return now, executors


class ExecutorWatch:
    """Follows the load; from one thread, ``look`` as often as it likes. ``executors`` are there
    until ``has`` says that others are: what is asked for need not come about."""

    def __init__(self, bounds: ExecutorBounds, executors: int, now_s: float) -> None:
        self._bounds = bounds
        self.executors = executors
        self._pressure = Pressure()
        self._looked_s = self._judged_s = now_s
        self._busy_s = 0.0

    def look(self, now_s: float, waiting: float, runs: bool, useful: int) -> int | None:
        """The number that there should be, where it is another, and again for as long as it is;
        ``runs``: an attempt does, since the last look. More than the ``useful`` ones would have no
        task."""
        self._busy_s += (now_s - self._looked_s) * runs
        self._looked_s = now_s
        took_s = now_s - self._judged_s
        if took_s < JUDGE_S:
            return None
        load = Load(waiting, self._busy_s / took_s)
        self._judged_s, self._busy_s = now_s, 0.0
        least = self._bounds.least
        bounds = ExecutorBounds(least, max(least, min(self._bounds.most, useful)))
        pressure, wanted = executors_for(self._pressure, now_s, load, self.executors, bounds)
        if wanted != self.executors:
            return wanted
        self._pressure = pressure
        return None

    def has(self, executors: int) -> None:
        """There are so many from now on: what was seen so far says nothing of them."""
        self.executors, self._pressure = executors, Pressure()


JUDGE_S = 5.0
"""Time over which the share is taken: longer than most windows."""
