"""Looks at the memory of the state servers, for the figures and for a warning before it is full."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from millrace.homes.documents import ServerMemory
from millrace.protocol import events as e
from millrace.redisserver import MemoryUse

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often they are asked."""

NEAR = 0.9
"""From this share of its limit on a server is nearly full, until it is below ``CALM``."""

CALM = 0.8

_STEP_BYTES = 100 << 10
"""Figures are as coarse as that, so that they do not change while nothing happens."""


class Room:
    """One thread that asks; ``figures`` may be read from any other.

    ``ask`` gives what is known by the names of the servers, ``tell`` takes the warning.
    """

    def __init__(
        self, ask: Callable[[], Mapping[str, MemoryUse]], tell: Callable[[e.Notify], object]
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._near: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="room", daemon=True)
        self.figures: tuple[ServerMemory, ...] = ()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; an answer that is under way is not waited for."""
        self._stopped.set()

    def look(self) -> None:
        """Ask once."""
        uses = self._ask()
        self.figures = tuple(
            ServerMemory(name, use.used_bytes // _STEP_BYTES * _STEP_BYTES, use.limit_bytes)
            for name, use in sorted(uses.items())
        )
        for name, use in sorted(uses.items()):
            if use.share >= NEAR and name not in self._near:
                self._near.add(name)
                self._tell(e.Notify("StateServerNearlyFull", _warning(name, use), warning=True))
            elif use.share < CALM:
                self._near.discard(name)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            try:
                self.look()
            except Exception:
                # The boundary of a thread: the next look may go well.
                log.exception("looking at how full state servers are")


def _warning(name: str, use: MemoryUse) -> str:
    return (
        f"state server {name} is nearly full: {use} of its memory are used, and once it is full "
        "windows wait; raise its maxmemory (spec.stateServers.memory where Millrace starts it), or "
        "have less state (fewer keys, smaller windows)"
    )
