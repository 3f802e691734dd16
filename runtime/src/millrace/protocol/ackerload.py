"""How many ackers a load asks for: a pure rule with hysteresis.

The load is how many cores the ackers use together. More ackers come when each of them is busy for
most of the time and stays so for a few seconds; one goes when those that are left would have little
to do, for a minute. The two bounds lie so far apart that a change never brings about the opposite
one, and a load that swings faster than these times changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

BUSY = 0.7
"""Share of its time from which on an acker is busy."""

AIM = 0.5
"""Share of its time that each has to work for after some came."""

IDLE = 0.4
"""Share of their time that the rest may have to work for after one went; below ``AIM``."""

GROW_AFTER_S = 5.0
SHRINK_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class AckerBounds:
    """How few and how many ackers there may be; ``automatic`` lets the load decide between them."""

    least: int
    most: int
    automatic: bool = False

    def clamped(self, wanted: int) -> int:
        return min(max(wanted, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Trend:
    """Since when all are busy, or one too many; monotonic seconds, None where that is not so."""

    busy_since_s: float | None = None
    idle_since_s: float | None = None


def ackers_for(
    trend: Trend, now_s: float, cores: float, ackers: int, bounds: AckerBounds
) -> tuple[Trend, int]:
    """What is known from now on, and how many ackers there should be.

    ``cores`` is what the ``ackers`` that there are have used together since the last look, in
    seconds of CPU a second.
    """
    if not bounds.automatic or bounds.clamped(ackers) != ackers or ackers < 1:
        return Trend(), bounds.clamped(ackers)
    busy = cores >= BUSY * ackers and ackers < bounds.most
    idle = cores <= IDLE * (ackers - 1) and ackers > bounds.least
    trend = Trend(since(busy, trend.busy_since_s, now_s), since(idle, trend.idle_since_s, now_s))
    if trend.busy_since_s is not None and now_s - trend.busy_since_s >= GROW_AFTER_S:
        return Trend(), bounds.clamped(max(ackers + 1, ceil(cores / AIM)))
    if trend.idle_since_s is not None and now_s - trend.idle_since_s >= SHRINK_AFTER_S:
        return Trend(), ackers - 1
    return trend, ackers


def since(holds: bool, since_s: float | None, now_s: float) -> float | None:
    """From when on something holds: ``now_s`` where it did not before, None where it does not."""
    if not holds:
        return None
    return now_s if since_s is None else since_s
