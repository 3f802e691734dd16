"""How many ackers the load asks for, by what they say of themselves.

The rule is that of one machine (``protocol.ackerload``). Nobody is told of the load itself, only of
what follows from it, so that what is told of changes rarely. It is advice: whoever makes ackers
knows what is allowed, and follows it only while there are as many as it is about.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from millrace.clock import Clock
from millrace.errors import MillraceError
from millrace.homes.documents import AckerAdvice
from millrace.protocol.ackerload import SHRINK_AFTER_S, AckerBounds, Trend, ackers_for

LOOK_S = 1.0

EXPIRES_S = 2 * SHRINK_AFTER_S
"""Advice that the load did not ask for again for so long, and nobody followed, is taken back."""

_ANY = AckerBounds(automatic=True)


class AckerAdviser:
    """One thread that looks once a second; ``advice`` may be read from any other.

    ``ackers`` gives the names of those that slices are given to, ``loads`` the seconds of CPU that
    each has used, and raises ``MillraceError`` while nobody can say.
    """

    def __init__(
        self,
        ackers: Callable[[], tuple[str, ...]],
        loads: Callable[[], Mapping[str, float]],
        clock: Clock,
    ) -> None:
        self._ackers = ackers
        self._loads = loads
        self._clock = clock
        self._names: tuple[str, ...] = ()
        self._used: Mapping[str, float] = {}
        self._looked_s = clock.monotonic_s()
        self._given_s = float("-inf")
        self._trend = Trend()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="acker-load", daemon=True)
        self.advice: AckerAdvice | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look no more; a look that is under way is not waited for."""
        self._stopped.set()

    def look(self) -> None:
        """Look once."""
        names = self._ackers()
        try:
            used = self._loads()
        except MillraceError:
            used = {}
        now_s = self._clock.monotonic_s()
        took_s, self._looked_s = now_s - self._looked_s, now_s
        before, self._used = self._used, used
        if names != self._names:
            # Others are there now: what was seen so far says nothing of them.
            self._names, self._trend, self.advice = names, Trend(), None
        if not names or any(name not in used or name not in before for name in names):
            self._trend = Trend()
            return
        # One that was started anew counts from nothing again.
        spent_s = sum(max(0.0, used[name] - before[name]) for name in names)
        cores = spent_s / took_s if took_s > 0 else 0.0
        self._trend, wanted = ackers_for(self._trend, now_s, cores, len(names), _ANY)
        if wanted != len(names):
            self.advice, self._given_s = AckerAdvice(len(names), wanted), now_s
        elif now_s - self._given_s >= EXPIRES_S:
            self.advice = None

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self.look()
