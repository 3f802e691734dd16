"""Carries a plan out, and times each recovery."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby

from millrace.chaos.plan import ChaosError, Strike
from millrace.chaos.target import Look, Target, Victim
from millrace.clock import Clock

_ENDS_S = 1.0
"""How often it is asked whether a victim has ended of which that is not known yet."""


@dataclass(frozen=True, slots=True)
class Pace:
    """``look_s``: how often it is looked how the topology stands. A topology rests that has been
    seen at rest for ``rest_s``; sources are looked at meanwhile, and that is told meanwhile. A
    strike that is due waits for work in flight for ``work_s`` at most, and all behind it come later
    by as much."""

    look_s: float = 0.1
    rest_s: float = 3.0
    work_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Kill:
    """A strike that was carried out, ``at_s`` seconds after the campaign's beginning.

    ``told_s`` and ``dead_s`` are the wall clock's times of the strike and of the victim's end, or,
    where that was not seen (``Victim.seen_to_end``), of the word that its deletion is accepted:
    what is sealed while the pod serves on is a recovery too, for nobody had to wait longer.
    ``in_flight``: a window was under way, or records waited for one, by the figures before the
    strike, or by the first behind that end which say what is under way; None before there are any.
    ``sealed`` is the last window that is known of a moment behind that end, None before there is
    one, and ``recovery_s`` the time from the strike to a later one; None where none followed, and
    for a kill that hit nothing: what follows that says when somebody fed the topology.
    """

    strike: Strike
    victim: Victim
    at_s: float
    told_s: float
    dead_s: float
    in_flight: bool | None
    sealed: int | None = None
    recovery_s: float | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """What happened: kills in their order, strikes that found nothing to kill or of which nothing
    was seen, which window was sealed when (seconds since the beginning, window), and the last
    look."""

    kills: tuple[Kill, ...]
    missed: tuple[Strike, ...]
    sealed: tuple[tuple[float, int], ...]
    last: Look


class Campaign:
    """One plan against one target. What is told is a kill when it is carried out and again when it
    is recovered from, and a strike that found nothing to kill."""

    def __init__(
        self,
        target: Target,
        clock: Clock,
        pause: Callable[[float], None],
        seed: int,
        tell: Callable[[Kill | Strike], None],
        pace: Pace = Pace(),
    ) -> None:
        self._target = target
        self._clock = clock
        self._pause = pause
        self._chance = random.Random(f"victims {seed}")
        self._tell = tell
        self._pace = pace
        self._began_s = clock.monotonic_s()
        self._waited_s = 0.0
        self._asked_s = self._began_s
        self._kills: list[Kill] = []
        self._missed: list[Strike] = []
        self._sealed: list[tuple[float, int]] = []

    def run(self, strikes: Sequence[Strike], settle_s: float) -> Course:
        """Strike by strike, then wait until all that was fed is shown.

        A run that is drained before the end leaves the other strikes out. Raises ``ChaosError``
        where the run ends in any other way, or is not at rest within ``settle_s``.
        """
        for at_s, due in groupby(strikes, lambda strike: strike.at_s):
            look = self._watch_until(self._began_s + at_s + self._waited_s)
            if look.ended is not None:
                return self._course(look)
            self._strike(tuple(due), look)
        return self._course(self._rest(settle_s))

    def _strike(self, due: Sequence[Strike], look: Look) -> None:
        at_s, told_s = self._now_s(), self._clock.now_s()
        victims = self._killed(due)
        dead_s = self._clock.now_s()
        for strike, victim in zip(due, victims, strict=True):
            if victim is None:
                self._missed.append(strike)
                self._tell(strike)
                continue
            kill = Kill(strike, victim, at_s, told_s, dead_s, look.working or None)
            self._kills.append(kill)
            self._tell(kill)

    def _killed(self, due: Sequence[Strike]) -> list[Victim | None]:
        """Side by side, since to see that one is dead may take a while."""
        if len(due) == 1:
            return [self._target.kill(due[0].kind, self._chance)]
        chances = [random.Random(self._chance.random()) for _ in due]
        with ThreadPoolExecutor(len(due)) as pool:
            return list(pool.map(self._target.kill, (strike.kind for strike in due), chances))

    def _watch_until(self, at_s: float) -> Look:
        """The first look from then on that finds work in flight, or the last that is waited for."""
        due_s: float | None = None
        while True:
            look, now_s = self._look(), self._clock.monotonic_s()
            if due_s is None and now_s >= at_s:
                due_s = now_s
            waited_s = 0.0 if due_s is None else now_s - due_s
            over = due_s is not None and (look.working or waited_s >= self._pace.work_s)
            if over or look.ended is not None:
                self._waited_s += waited_s
                return look
            self._pause(self._pace.look_s)

    def _rest(self, settle_s: float) -> Look:
        """The first look of all that find it at rest for a while, when what was killed was seen to
        end, or will not be."""
        end_s = self._clock.monotonic_s() + settle_s
        since: tuple[float, int] | None = None
        while True:
            look, now_s = self._look(), self._clock.monotonic_s()
            if look.ended is not None:
                return look
            if not look.at_rest or (since is not None and since[1] != look.sealed):
                since = None
            elif since is None:
                since = (now_s, look.sealed)
            rested = since is not None and now_s - since[0] >= self._pace.rest_s
            if rested and (now_s >= end_s or not self._awaits_an_end()):
                return look
            if now_s >= end_s:
                raise ChaosError(
                    f"the topology does not come to rest within {settle_s:g} s after the last "
                    f"kill (window {look.sealed} is sealed, {look.published} shown); what its "
                    "sinks hold is judged at rest: stop feeding it, or give a longer --settle"
                )
            self._pause(self._pace.look_s)

    def _look(self) -> Look:
        look, now_s = self._target.look(), self._now_s()
        if look.ended not in (None, "drained"):
            raise ChaosError(
                f"the run ended ({look.ended}) after {len(self._kills)} kills: see millrace status"
            )
        if not self._sealed or self._sealed[-1][1] < look.sealed:
            self._sealed.append((now_s, look.sealed))
        before, self._kills = self._kills, [self._followed(kill, look) for kill in self._kills]
        for kill, followed in zip(before, self._kills, strict=True):
            recovered = kill.recovery_s is None and followed.recovery_s is not None
            if recovered or (kill.in_flight is None and followed.in_flight is False):
                self._tell(followed)
        if self._clock.monotonic_s() - self._asked_s >= _ENDS_S:
            # What has ended is seen while it is new: later it may be gone for another reason.
            self._asked_s = self._clock.monotonic_s()
            self._awaits_an_end()
        return look

    def _followed(self, kill: Kill, look: Look) -> Kill:
        """A kill behind which this was seen."""
        if kill.recovery_s is not None or look.told_s < kill.dead_s:
            return kill
        if kill.sealed is None:
            kill = replace(kill, sealed=look.sealed)
        tells = look.working or look.idle
        if kill.in_flight is None and tells and look.figures_s >= kill.dead_s:
            kill = replace(kill, in_flight=look.working)
        last = kill.sealed
        later = (at_s for at_s, window in self._sealed if last is not None and window > last)
        sealed_s = next(later, None) if kill.in_flight else None
        if sealed_s is None:
            return kill
        return replace(kill, recovery_s=round(sealed_s - kill.at_s, 3))

    def _awaits_an_end(self) -> bool:
        """Asks of every kill, since an end is seen only while it is new."""
        return None in [self._target.ended(kill.victim) for kill in self._kills]

    def _course(self, last: Look) -> Course:
        judged = [replace(kill, in_flight=bool(kill.in_flight)) for kill in self._kills]
        kills = tuple(kill for kill in judged if self._target.ended(kill.victim))
        unseen = [kill.strike for kill in judged if kill not in kills]
        return Course(kills, (*self._missed, *unseen), tuple(self._sealed), last)

    def _now_s(self) -> float:
        return self._clock.monotonic_s() - self._began_s
