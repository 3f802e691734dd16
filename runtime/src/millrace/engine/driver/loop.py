"""The driver's event loop: feeds the state machine and carries out what it wants.

Only the machine runs on the calling thread. Whatever may block, a state server, the view, the
inbox, Spark, a source or a sink, has threads of its own (``errands``) that post their answers as
events, so that a stop is heard and time passes whoever is slow.
"""

from __future__ import annotations

import heapq
import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from millrace.clock import Clock
from millrace.protocol import events as e
from millrace.protocol.driver import Driver

LONGEST_WAIT_S = 0.2
"""How often ``poll`` is called when no event arrives."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """Ends the loop."""

    error: Exception


class Performer(Protocol):
    """Carries out actions. An event that is already known is returned, others are posted."""

    def perform(self, action: e.Action) -> list[e.Event]: ...

    def poll(self) -> list[e.Event]:
        """A moment has passed."""
        ...


class Loop:
    """Run with ``run``; ``post`` is safe from any thread and from signal handlers.

    The machine's time is monotonic: a wall clock that is set neither delays nor hastens anything.
    """

    def __init__(self, machine: Driver, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock
        self._events: queue.SimpleQueue[e.Event | _Failed] = queue.SimpleQueue()
        self._timers: list[float] = []

    def post(self, event: e.Event) -> None:
        self._events.put(event)

    def fail(self, error: Exception) -> None:
        """End ``run`` with an error that a thread met; safe from any thread."""
        self._events.put(_Failed(error))

    def run(self, performer: Performer, observe: Callable[[e.Event], None]) -> e.Stop:
        """Run the machine to its end; ``observe`` is told every event before it is handled.

        Raises what ``fail`` was told.
        """
        ready: deque[e.Event] = deque()
        actions = self._machine.start(self._clock.monotonic_s())
        polled_s = float("-inf")
        while True:
            for action in actions:
                if isinstance(action, e.Wake):
                    heapq.heappush(self._timers, action.at_s)
                    continue
                ready.extend(performer.perform(action))
                if isinstance(action, e.Stop):
                    return action
            now = self._clock.monotonic_s()
            if now - polled_s >= LONGEST_WAIT_S:
                polled_s = now
                ready.extend(performer.poll())
            event = ready.popleft() if ready else self._next()
            if event is None:
                actions = []
                continue
            observe(event)
            actions = self._machine.handle(event, self._clock.monotonic_s())

    def _next(self) -> e.Event | None:
        now_s = self._clock.monotonic_s()
        wait_s = LONGEST_WAIT_S
        if self._timers:
            wait_s = min(wait_s, max(0.0, self._timers[0] - now_s))
        try:
            found = self._events.get(timeout=wait_s) if wait_s > 0 else self._events.get_nowait()
            if isinstance(found, _Failed):
                raise found.error
            return found
        except queue.Empty:
            pass
        now_s = self._clock.monotonic_s()
        if self._timers and self._timers[0] <= now_s:
            while self._timers and self._timers[0] <= now_s:
                heapq.heappop(self._timers)
            return e.Tick()
        return None
