"""Looks at the memory of the state servers, for the figures and for a warning before it is full."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millrace.engine.driver.home.looking import Looking
from millrace.homes.documents import ServerMemory
from millrace.protocol import events as e
from millrace.redisserver import MemoryUse

LOOK_S = 2.0
"""How often they are asked."""

NEAR = 0.9
"""From this share of its limit on a server is nearly full, until it is below ``CALM``."""

CALM = 0.8

_STEP_BYTES = 100 << 10
"""Figures are as coarse as that, so that they do not change while nothing happens."""


class Room(Looking):
    """One thread that asks; ``figures`` may be read from any other.

    ``ask`` gives what is known by the names of the servers, ``tell`` takes the warning.
    """

    def __init__(
        self, ask: Callable[[], Mapping[str, MemoryUse]], tell: Callable[[e.Notify], object]
    ) -> None:
        super().__init__("room", LOOK_S, "how full state servers are")
        self._ask = ask
        self._tell = tell
        self._near: set[str] = set()
        self.figures: tuple[ServerMemory, ...] = ()

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


def _warning(name: str, use: MemoryUse) -> str:
    return (
        f"state server {name} is nearly full: {use} of its memory are used, and once it is full "
        "windows wait; raise its maxmemory (spec.stateServers.memory where Millrace starts it), or "
        "have less state (fewer keys, smaller windows)"
    )
