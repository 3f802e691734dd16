"""Tells that the cluster takes no pod of an executor, and why: for a quota, say.

A refusal or two say little: where a driver follows another one, that one's executors may still
count. So it is told once it has gone on for a while, and is over once there was none for a while.

What happens if the driver dies: the next one is refused, too, and tells it anew.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.clock import Clock
from millrace.engine.driver.home.looking import Looking
from millrace.protocol import events as e

LOOK_S = 2.0
"""Spark asks every second."""

LASTS_S = 10.0
OVER_S = 15.0


class RefusedExecutors(Looking):
    """One thread that looks: whom it asks may be long in answering. ``now`` may be read from any
    other. ``drain`` gives what was said since the last time."""

    def __init__(
        self, drain: Callable[[], list[str]], clock: Clock, tell: Callable[[e.Notify], None]
    ) -> None:
        super().__init__("refused-executors", LOOK_S, "what the cluster refuses")
        self._drain = drain
        self._clock = clock
        self._tell = tell
        self._since_s: float | None = None
        self._last_s = float("-inf")
        self.now: str | None = None

    def look(self) -> None:
        """See what was refused since the last time."""
        said, now_s = self._drain(), self._clock.monotonic_s()
        if said:
            self._refused(now_s, said[-1])
        elif now_s - self._last_s >= OVER_S:
            self._since_s = self.now = None

    def _refused(self, now_s: float, why: str) -> None:
        self._last_s = now_s
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s < LASTS_S:
            return
        begins, self.now = self.now is None, why
        if begins:
            self._tell(e.Notify("ExecutorsRefused", why, warning=True))
