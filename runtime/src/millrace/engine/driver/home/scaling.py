"""Has as many executors as the lag asks for (``executorload``).

The cluster manager is asked beside the loop, while no attempt runs (``jobs.executors``). Only what
it took is told of and counts from then on. Where asking fails windows run with as many as there
are, and it is asked again after a pause that grows, if the lag still wants it then.

What happens if the driver dies, at any step: Kubernetes deletes the executors with its pod, and the
next driver begins with ``spec.spark.executors.instances``, of which it tells nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.clock import Clock
from millrace.engine.driver.home.executorload import ExecutorBounds, ExecutorWatch
from millrace.homes.restarts import wait_s
from millrace.protocol import events as e
from millrace.topology.model import Executors

log = logging.getLogger(__name__)

PAUSES_S = (10.0, 30.0, 60.0, 300.0)
"""Before it is asked for the second, third, ... time; the last one from then on."""

TIDY_S = 60.0
"""How often the number is said again, once it was another: an executor that was on its way while
the number fell was not there to be ended, and is one too many."""

Between = Callable[[Callable[[], None]], None]
"""Does something beside the loop, while no attempt runs."""


class ExecutorScaling:
    """``look`` from the loop's thread, as often as it likes.

    ``have`` asks the cluster manager for so many, and may raise anything; ``counted`` is told what
    there is to be from now on, and ``tell`` why.
    """

    def __init__(
        self,
        asked: Executors,
        bounds: ExecutorBounds,
        clock: Clock,
        have: Callable[[int], None],
        counted: Callable[[int], None],
        tell: Callable[[e.Notify], None],
    ) -> None:
        self._cores = asked.cores
        self._clock = clock
        self._have = have
        self._counted = counted
        self._tell = tell
        self._watch = ExecutorWatch(bounds, asked.instances, clock.monotonic_s())
        self._asking: int | None = None
        self._answer: bool | None = None
        """Whether what is asked for was taken; None where that is not known yet."""
        self._failures = 0
        self._again_s = float("-inf")
        self._tidy_s = float("inf")

    def look(self, waiting: float, runs: bool, tasks: int, between: Between) -> None:
        """See what the lag wants: ``waiting`` windows' worth of records, an attempt that ``runs``,
        and as many ``tasks`` as it has at most."""
        now_s = self._clock.monotonic_s()
        self._answered(now_s)
        useful = -(-tasks // self._cores)
        wanted = self._watch.look(now_s, waiting, runs, useful)
        if self._asking is not None or now_s < self._again_s:
            return
        count = self._watch.executors if wanted is None else wanted
        if wanted is None and now_s < self._tidy_s:
            return
        self._asking = count
        between(lambda: self._ask(count))

    def _ask(self, count: int) -> None:
        try:
            self._have(count)
        except Exception:
            # The boundary of a thread: windows run with as many as there are.
            log.exception("having %d executors", count)
            self._answer = False
        else:
            self._answer = True

    def _answered(self, now_s: float) -> None:
        """What became of what was asked for."""
        asked, answer = self._asking, self._answer
        if asked is None or answer is None:
            return
        self._asking = self._answer = None
        if not answer:
            self._again_s = now_s + wait_s(PAUSES_S, self._failures)
            self._failures += 1
            return
        self._failures = 0
        self._tidy_s = now_s + TIDY_S
        before = self._watch.executors
        if asked == before:
            return
        self._watch.has(asked)
        self._counted(asked)
        text = f"{asked} executors instead of {before}, as the lag asks for"
        self._tell(e.Notify("ExecutorsScaled", text))
