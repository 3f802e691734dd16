"""The ackers of a run on one machine: how many there should be, and how they come and go.

===========================  =================================================================
what happens                 what follows
===========================  =================================================================
more are wanted              they are started one after the other, since windows go on beside
                             that, and proposed once they read the log
fewer are wanted             the last ones are proposed no more, and end a moment later
one that goes is wanted      it is proposed again; its life goes on
one ends while it goes       nothing: it is not started again
the load asks for another    the same, between the least and the most that the topology allows
number
===========================  =================================================================

Any of them may die at any moment: what it had is read again by those that are proposed, since a
verdict is a function of the log alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace.clock import Clock
from millrace.guard import stat_fields
from millrace.homes.restarts import FINAL_CODES
from millrace.local.children import ProcessSpec
from millrace.local.crew import Crew, Death
from millrace.protocol.ackerload import AckerBounds, Trend, ackers_for
from millrace.state.client import StateAddress

ACKER = "acker"

ACKER_STOP_S = 2.0

LEAVE_S = 2.0
"""An acker goes on reading so long, until the driver has given its slices to the others."""

READY_S = 5.0
"""An acker that did not say by then that it reads the log is proposed all the same."""

LOOK_S = 1.0

COMING_S = 0.05
"""How soon one that comes is looked at again."""

_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class AckerPlan:
    """How many ackers a run starts with, and between which bounds that may change.

    ``specs`` gives the specifications of so many for the servers at hand.
    """

    specs: Callable[[Sequence[StateAddress], int], Sequence[ProcessSpec]]
    count: int
    bounds: AckerBounds


Tell = Callable[[str, str], object]
"""Tells of an event: its kind and its text."""


class AckerKeeper:
    """Used from the supervisor's main thread; the processes are the crew's."""

    def __init__(self, plan: AckerPlan, crew: Crew, clock: Clock, tell: Tell) -> None:
        self._plan = plan
        self._crew = crew
        self._clock = clock
        self._tell = tell
        self._count = plan.count
        self._addresses: Sequence[StateAddress] = ()
        self._leaving: dict[str, float] = {}
        self._coming: tuple[str, float] | None = None
        self._trend = Trend()
        self._used: dict[int, float] = {}
        self._looked_s = clock.monotonic_s()

    def follow(self, addresses: Sequence[StateAddress]) -> None:
        """Keep as many alive as are wanted, for the servers that are there now."""
        self._addresses = addresses
        wanted = self._plan.specs(addresses, self._count) if addresses else ()
        names = {spec.name for spec in wanted}
        first = not any(post.spec.role == ACKER for post in self._crew.posts.values())
        for spec in wanted:
            if not first and spec.name not in self._crew.posts:
                if self._comes():
                    break
                self._coming = spec.name, self._clock.monotonic_s() + READY_S
            self._leaving.pop(spec.name, None)
            self._crew.want(spec, FINAL_CODES)
        until_s = self._clock.monotonic_s() + LEAVE_S
        for name, post in self._crew.posts.items():
            if post.spec.role == ACKER and addresses and name not in names:
                self._crew.unwant(name)
                self._leaving.setdefault(name, until_s)

    def scale(self, asked: int) -> str:
        """Have so many from now on, as far as the topology allows; what it comes to, in words."""
        bounds = self._plan.bounds
        count = bounds.clamped(asked)
        self._change(count)
        if count == asked:
            return _ackers(count)
        return f"{_ackers(count)} (not {asked}: spec.ackers allows {bounds.least} to {bounds.most})"

    def look(self) -> None:
        """End those that have been gone for long enough; once a second follow the load."""
        now_s = self._clock.monotonic_s()
        over = [name for name, until_s in self._leaving.items() if until_s <= now_s]
        for name in over:
            del self._leaving[name]
            self._crew.dismiss([name], ACKER_STOP_S)
        if self._coming is not None and not self._comes():
            self._coming = None
            self.follow(self._addresses)
        if self._plan.bounds.automatic and now_s - self._looked_s >= LOOK_S:
            cores = self._cores(now_s)
            self._trend, wanted = ackers_for(
                self._trend, now_s, cores, self._count, self._plan.bounds
            )
            if wanted != self._count:
                text = f"{_ackers(wanted)} instead of {self._count}, as the load asks for"
                self._change(wanted)
                self._tell("AckersScaled", text)

    def ended(self, death: Death) -> bool:
        """Whether an acker that ended was going anyway."""
        if self._leaving.pop(death.name, None) is None:
            return False
        self._crew.dismiss([death.name], 0.0)
        return True

    def proposed(self) -> tuple[str, ...]:
        """Ackers that slices of the log may be given to."""
        return tuple(
            name
            for name in self._crew.alive(ACKER)
            if name not in self._leaving and self._crew.ready(name, READY_S)
        )

    def next_due_s(self) -> float | None:
        soon = [self._clock.monotonic_s() + COMING_S] if self._coming is not None else []
        return min([*self._leaving.values(), *soon], default=None)

    def _comes(self) -> bool:
        """Whether an acker is being started beside the windows: the next one waits for that."""
        if self._coming is None:
            return False
        name, until_s = self._coming
        here = name in self._crew.posts and name not in self._leaving
        return here and self._clock.monotonic_s() < until_s and not self._crew.ready(name, READY_S)

    def _change(self, count: int) -> None:
        self._count = count
        self._trend = Trend()
        self.follow(self._addresses)

    def _cores(self, now_s: float) -> float:
        """CPU seconds a second that the ackers have used since the last look."""
        children = [self._crew.child(name) for name in self._crew.alive(ACKER)]
        used = {child.pid: cpu_s(child.pid) for child in children if child is not None}
        spent_s = sum(now - self._used[pid] for pid, now in used.items() if pid in self._used)
        took_s, self._looked_s, self._used = now_s - self._looked_s, now_s, used
        return spent_s / took_s


def _ackers(count: int) -> str:
    return f"{count} acker" + ("s" if count != 1 else "")


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used, 0 for one that is gone."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_S
