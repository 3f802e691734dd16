"""Has every executor ready for small windows, which run on one of them.

The others have no Python for as long as no larger window comes, so where that one dies the window
under way would wait until another has started it. So each runs a task over nothing as soon as it
is there, and again before Spark ends a worker that has had nothing to do.

What happens if the driver dies: its executors go with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.clock import Clock
from millrace.engine.driver.home.looking import Looking
from millrace.errors import error_text

log = logging.getLogger("millrace.driver")

LOOK_S = 1.0

AGAIN_S = 20.0
"""Spark ends Python workers that had nothing to do for a minute, and the user's code with them."""


class ReadiedExecutors(Looking):
    """One thread that looks: a worker may be long in starting. ``here`` gives the executors that
    are to be ready, ``rehearse`` runs a task on each of so many and may raise anything."""

    def __init__(
        self,
        here: Callable[[], frozenset[str]],
        rehearse: Callable[[int], None],
        clock: Clock,
    ) -> None:
        super().__init__("readied-executors", LOOK_S, "executors that are to be ready")
        self._here = here
        self._rehearse = rehearse
        self._clock = clock
        self._tried: frozenset[str] = frozenset()
        self._again_s = float("-inf")

    def look(self) -> None:
        """Rehearse where an executor has come, or enough time has gone by."""
        try:
            here = self._here()
            if not here or (here <= self._tried and self._clock.monotonic_s() < self._again_s):
                return
            self._tried = here
            self._again_s = self._clock.monotonic_s() + AGAIN_S
            self._rehearse(len(here))
        except Exception as error:  # noqa: BLE001
            # Whatever user code raises: a window there meets the same, and tells of it.
            log.info("executors are not made ready: %s", error_text(error))
