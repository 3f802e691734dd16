"""How many executors the lag asks for, and how they come and go.

More come when records of several windows wait and go on waiting; one goes when hardly any wait and
the rest would be busy for less than half of their time. Both bounds have to hold for a while, and
lie so far apart that a change does not bring about the opposite one.

An executor goes while no attempt runs, so that no task is lost with it, no worker dies in user code
and no root can be blamed. What it held is of no use to the next attempt: each writes envelopes of
its own, and state that its workers kept is read from the state servers again. Spark gives it no
task from the moment that it is to go, and one that dies by itself is replaced up to the number.

What happens if the driver dies: Kubernetes deletes the executors with its pod, and the next driver
begins with ``spec.spark.executors.instances``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    spare = load.waiting < CALM and rest_works and executors > bounds.least
    now = Pressure(
        _since(behind, before.behind_since_s, now_s), _since(spare, before.spare_since_s, now_s)
    )
    if now.behind_since_s is not None and now_s - now.behind_since_s >= GROW_AFTER_S:
        return Pressure(), min(bounds.most, executors + max(1, executors // 2))
    if now.spare_since_s is not None and now_s - now.spare_since_s >= SHRINK_AFTER_S:
        return Pressure(), executors - 1
    return now, executors


def _since(holds: bool, since_s: float | None, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if since_s is None else since_s


class ExecutorWatch:
    """Follows the load; ``look`` from one thread, as often as it likes."""

    def __init__(self, bounds: ExecutorBounds, executors: int, now_s: float) -> None:
        self._bounds = bounds
        self.executors = executors
        self._pressure = Pressure()
        self._looked_s = self._judged_s = now_s
        self._busy_s = 0.0

    def look(self, now_s: float, waiting: float, runs: bool, useful: int) -> int | None:
        """The number from now on, where it is another; ``runs``: an attempt does, since the last
        look. More than the ``useful`` ones would have no task."""
        self._busy_s += (now_s - self._looked_s) * runs
        self._looked_s = now_s
        took_s = now_s - self._judged_s
        if took_s < _JUDGE_S:
            return None
        load = Load(waiting, self._busy_s / took_s)
        self._judged_s, self._busy_s = now_s, 0.0
        before, least = self.executors, self._bounds.least
        bounds = ExecutorBounds(least, max(least, min(self._bounds.most, useful)))
        self._pressure, self.executors = executors_for(self._pressure, now_s, load, before, bounds)
        return None if self.executors == before else self.executors


_JUDGE_S = 5.0
"""Time over which the share is taken: longer than most windows."""


def have_executors(session: SparkSession, count: int) -> None:
    """Have the cluster manager keep so many, and end the newest of those above; to be called while
    no attempt runs."""
    context = session.sparkContext
    jvm = context._jvm
    assert jvm is not None
    spark = context._jsc.sc()
    ids = spark.getExecutorIds()
    here = sorted((ids.apply(at) for at in range(ids.size())), key=_number)
    for one in here[count:]:
        spark.killExecutor(one)
    # Each of these lowers the number by one, whatever it was: this is what it is to be.
    spark.requestTotalExecutors(count, 0, jvm.scala.collection.immutable.HashMap())


def _number(executor: str) -> int:
    return int(executor) if executor.isdigit() else 0
