"""How many ackers the load asks for, by what they say of themselves.

The rule is that of one machine (``protocol.ackerload``). Nobody is told of the load itself, only of
what follows from it, so that what is told of changes rarely. It is advice: whoever makes ackers
knows what is allowed, and follows it only while there are as many as it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace.clock import Clock
from millrace.engine.driver.home.looking import Looking
from millrace.errors import MillraceError
from millrace.homes.documents import AckerAdvice
from millrace.protocol.ackerload import SHRINK_AFTER_S, AckerBounds, Trend, ackers_for
from millrace.topology.members import MOST_MEMBERS
from millrace.tracking.log import AckerLoad

LOOK_S = 1.0

EXPIRES_S = 2 * SHRINK_AFTER_S
"""Advice that the load did not ask for again for so long, and nobody followed, is taken back."""

SAID_S = 10.0
"""What an acker said last holds for so long: one that is busy comes to say it between two readings
of the log, which may take a few seconds each."""

_ANY = AckerBounds(1, MOST_MEMBERS, automatic=True)


@dataclass(frozen=True, slots=True)
class _Said:
    """What an acker said last, when that was heard, and how many cores it used before that; None
    where it is not known yet."""

    load: AckerLoad
    heard_s: float
    cores: float | None = None

    def then(self, load: AckerLoad, now_s: float) -> _Said:
        took_s, spent_s = load.at_s - self.load.at_s, load.cpu_s - self.load.cpu_s
        if took_s < 0 or spent_s < 0:
            # One that was started anew counts from nothing again.
            return _Said(load, now_s)
        return self if took_s == 0 else _Said(load, now_s, spent_s / took_s)


class CoresUsed:
    """How many cores ackers use, each by its own clock: they say it when they come to it, which is
    not when somebody looks. From one thread at a time."""

    def __init__(self) -> None:
        self._said: dict[str, _Said] = {}

    def hear(self, loads: Mapping[str, AckerLoad], now_s: float) -> bool:
        """``loads``: what is known of each. False where none of it is new."""
        before = dict(self._said)
        for name, load in loads.items():
            said = self._said.get(name)
            self._said[name] = _Said(load, now_s) if said is None else said.then(load, now_s)
        news = self._said != before
        # Who was silent for long begins anew.
        self._said = {
            name: said for name, said in self._said.items() if now_s - said.heard_s < SAID_S
        }
        return news

    def of(self, names: tuple[str, ...]) -> float | None:
        """Of all of these together; None while it is not known of each."""
        cores = [self._said[name].cores if name in self._said else None for name in names]
        known = [one for one in cores if one is not None]
        return sum(known) if len(known) == len(names) else None


class AckerAdviser(Looking):
    """One thread that looks once a second; ``advice`` may be read from any other.

    ``ackers`` gives the names of those that slices are given to, ``loads`` what each has said of
    itself, and raises ``MillraceError`` while nobody can say.
    """

    def __init__(
        self,
        ackers: Callable[[], tuple[str, ...]],
        loads: Callable[[], Mapping[str, AckerLoad]],
        clock: Clock,
    ) -> None:
        super().__init__("acker-load", LOOK_S, "what ackers use")
        self._ackers = ackers
        self._loads = loads
        self._clock = clock
        self._names: tuple[str, ...] = ()
        self._used = CoresUsed()
        self._given_s = float("-inf")
        self._trend = Trend()
        self.advice: AckerAdvice | None = None

    def look(self) -> None:
        """Look once."""
        names = self._ackers()
        try:
            loads = self._loads()
        except MillraceError:
            loads = {}
        now_s = self._clock.monotonic_s()
        news = self._used.hear(loads, now_s)
        if names != self._names:
            # Others are there now: what was seen so far says nothing of them.
            self._names, self._trend, self.advice = names, Trend(), None
        cores = self._used.of(names)
        if not names or cores is None:
            self._trend = Trend()
            return
        if not news:
            return
        self._trend, wanted = ackers_for(self._trend, now_s, cores, len(names), _ANY)
        if wanted != len(names):
            self.advice, self._given_s = AckerAdvice(len(names), wanted), now_s
        elif now_s - self._given_s >= EXPIRES_S:
            self.advice = None
