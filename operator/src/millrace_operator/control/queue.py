"""Which topologies are to be looked at, and when: each at most once at a time.

A key that is added while it waits is the same key, at the earlier of both times. One that is added
while somebody works at it comes again when that is over: what was seen meanwhile may have come too
late. So nothing is lost, however much is added, and nothing piles up.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

from millrace.clock import Clock, SystemClock

K = TypeVar("K", bound=Hashable)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0


class WorkQueue(Generic[K]):
    """Safe for several threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._due: dict[K, float] = {}
        self._busy: dict[K, float] = {}
        self._heard: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._closed = False

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Look at ``key`` in so many seconds, or earlier if that was said before."""
        due_s = self._clock.monotonic_s() + after_s
        with self._changed:
            self._due[key] = min(due_s, self._due.get(key, due_s))
            self._changed.notify()

    def take(self) -> K | None:
        """The key that waits longest behind its time, as soon as there is one; None once closed.
        ``done`` or ``failed`` must follow."""
        with self._changed:
            while not self._closed:
                key = self._next()
                now_s = self._clock.monotonic_s()
                if key is not None and self._due[key] <= now_s:
                    del self._due[key]
                    self._busy[key] = self._heard[key] = now_s
                    return key
                self._changed.wait(None if key is None else self._due[key] - now_s)
            return None

    def done(self, key: K) -> None:
        """The work at a key went well."""
        with self._changed:
            self._failures.pop(key, None)
            self._release(key)

    def failed(self, key: K) -> float:
        """It did not: the key comes again after a pause, twice as long each time; the seconds."""
        with self._changed:
            count = self._failures.get(key, 0)
            self._failures[key] = count + 1
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(count, 30), LONGEST_PAUSE_S)
            due_s = self._clock.monotonic_s() + pause_s
            self._due[key] = min(due_s, self._due.get(key, due_s))
            self._release(key)
            return pause_s

    def beat(self, key: K) -> None:
        """The work at a key goes on: somebody answered it."""
        with self._changed:
            if key in self._busy:
                self._heard[key] = self._clock.monotonic_s()

    def close(self) -> None:
        """Give nothing out any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def longest_s(self) -> float:
        """For how long the slowest work is under way, or a key waits behind its time."""
        with self._changed:
            now_s: float = self._clock.monotonic_s()
            first_s = min((*self._busy.values(), *self._due.values()), default=now_s)
            return max(0.0, now_s - first_s)

    def silent_s(self) -> float:
        """For how long the work that was taken, or went on, longest ago has not gone on."""
        with self._changed:
            now_s: float = self._clock.monotonic_s()
            return max(0.0, now_s - min(self._heard.values(), default=now_s))

    def holds(self, key: K) -> bool:
        """Whether it waits, now or for its time, or somebody works at it."""
        with self._changed:
            return key in self._due or key in self._busy

    def depth(self) -> int:
        """How many keys are due and wait for somebody."""
        with self._changed:
            now_s = self._clock.monotonic_s()
            return sum(due_s <= now_s for due_s in self._due.values())

    def _release(self, key: K) -> None:
        self._busy.pop(key, None)
        self._heard.pop(key, None)
        self._changed.notify()

    def _next(self) -> K | None:
        """The key that is due first, of those that nobody works at."""
        waiting = (key for key in self._due if key not in self._busy)
        return min(waiting, key=self._due.__getitem__, default=None)
