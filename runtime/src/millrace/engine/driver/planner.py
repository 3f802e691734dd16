"""Finds the next input behind the planned offsets, while a window is being processed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from millrace import crash
from millrace.clock import Clock
from millrace.engine.driver.errands import MOST_IN_A_ROW, Patience
from millrace.engine.program.cutting import as_recorded
from millrace.errors import (
    ExitCode,
    MillraceError,
    SourceAwayError,
    SourceError,
    error_text,
    message_of,
)
from millrace.protocol import events as e
from millrace.protocol.types import Json, RootRange
from millrace.protocol.windows.decide import BREAKAGE_PAUSES_S
from millrace.sources.base import Source, SourcePlan
from millrace.topology.model import Window

log = logging.getLogger(__name__)

POLL_S = 0.05
"""Longest pause between two looks at sources that had nothing new."""

LEAST_PAUSE_S = 0.003
PAUSE_FACTOR = 10
"""Between two looks at sources that have news, and no record, without an end: so long at least, and
so many times what a look takes."""

CALL_END_S = 5.0
"""How long the end waits for what is asked of a source."""

LAG_S = 1.0
"""How often sources are asked what waits in them while nothing is to be planned."""


class PlanRaisedError(Exception):
    """The ``plan`` of the source ``name`` raised ``error``."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(name, error)
        self.name = name
        self.error = error

    @property
    def expected(self) -> bool:
        """Whether the error says for itself what is wrong."""
        return isinstance(self.error, MillraceError)

    @property
    def passes(self) -> bool:
        """Whether the error says that waiting helps."""
        return isinstance(self.error, MillraceError) and self.error.retryable

    @property
    def lasts(self) -> bool:
        """Whether the error says that the input itself is wrong, or something else that stays."""
        away = isinstance(self.error, SourceAwayError)
        return self.expected and not self.passes and not away

    @property
    def cause(self) -> str:
        """The source and what is wrong with it."""
        text = (
            message_of(self.error) if self.expected else f"planning raised {error_text(self.error)}"
        )
        named = text.startswith(f"source {self.name!r}")
        return text if named else f"source {self.name!r}: {text}"


@dataclass(frozen=True, slots=True)
class NextInput:
    """What all sources together have for one window; ``lags`` counts what waits behind it."""

    ranges: tuple[RootRange, ...]
    offsets: dict[str, Json]
    drained: bool
    lags: dict[str, int]

    @property
    def roots(self) -> int:
        return sum(r.count for r in self.ranges)


def look(
    sources: Sequence[Source], offsets: Mapping[str, Json], max_records: int, first: int = 0
) -> NextInput:
    """Ask each source once; a source that has little leaves its share to the others.

    They are asked from number ``first`` on, and once the window is full the others are not asked,
    so that a share smaller than one record goes to another source each time. The ranges come in
    the order of the sources. Raises ``PlanRaisedError``.
    """
    found: dict[int, tuple[RootRange, ...]] = {}
    after = dict(offsets)
    drained = True
    lags: dict[str, int] = {}
    left = max_records
    for asked in range(len(sources)):
        if left <= 0:
            drained = False
            break
        number = (first + asked) % len(sources)
        source = sources[number]
        try:
            plan = source.plan(offsets.get(source.name), -(-left // (len(sources) - asked)))
            _check_counts(source, plan)
        except BaseException as error:
            # The boundary to anyone's code.
            raise PlanRaisedError(source.name, error) from error
        found[number] = tuple(as_recorded(piece) for piece in plan.ranges)
        left -= sum(r.count for r in plan.ranges)
        after[source.name] = plan.offsets
        drained = drained and plan.drained
        lags[source.name] = plan.lag_records or 0
    ranges = tuple(piece for number in sorted(found) for piece in found[number])
    return NextInput(ranges, after, drained, lags)


def _check_counts(source: Source, plan: SourcePlan) -> None:
    """A range of less than a record would stay in the record of the topology for good."""
    for piece in plan.ranges:
        if piece.count < 1:
            raise SourceError(
                f"source {source.name!r} planned a range of {piece.count} records; its plan() must "
                "give ranges of one at the least, correct it"
            )


@dataclass(frozen=True, slots=True)
class Pace:
    """When a plan that is not full is posted, in seconds.

    As soon as it has a record and no window runs, but not before ``least_s`` have passed since the
    plan before; while one runs, ``most_s`` after its first record was seen.
    """

    least_s: float
    most_s: float

    @classmethod
    def of(cls, window: Window) -> Pace:
        """As the topology says."""
        least = window.min_interval
        return cls(least.seconds if least else 0.0, window.max_interval.seconds)


class SourceTroubles:
    """Which sources cannot plan for now; for one thread.

    ``tell`` is told when it begins and when it ends. What nobody thought of, and a source that
    cannot be read now, are borne a few times in a row, as attempts of a window are; an error that
    says that waiting helps, for as long as it comes.
    """

    def __init__(self, tell: Callable[[e.Notify], object]) -> None:
        self._tell = tell
        self._patience = Patience()
        self._tries = 0
        self._away: list[str] = []

    def worked(self, asked: Collection[str]) -> None:
        """These sources have planned."""
        for name in [one for one in self._away if one in asked]:
            self._away.remove(name)
            self._tell(e.Notify("SourceBack", f"source {name!r} can be read again"))
        if not self._away:
            self._tries = 0
            self._patience.worked()

    def failed(self, raised: PlanRaisedError) -> float | None:
        """Seconds until it is tried again; ``None`` where that is of no use any more."""
        if raised.lasts:
            return None
        self._tries += 1
        if raised.passes:
            self._patience.worked()
        elif self._patience.failed("planning", raised.error) is not None:
            return None
        if raised.name not in self._away:
            self._away.append(raised.name)
            often = "" if raised.passes else " a few times"
            text = f"{raised.cause}; nothing new is planned, and it is tried again{often}"
            self._tell(e.Notify("SourceAway", text, warning=True))
        return BREAKAGE_PAUSES_S[min(self._tries, len(BREAKAGE_PAUSES_S)) - 1]


class Planner:
    """One thread that answers ``Plan`` actions; a newer one replaces an unanswered older one.

    ``post`` takes the answer. A plan is posted when it is full, when its ``pace`` says so, or when
    the sources are drained. Where a source can tell that there may be more, it is asked at once,
    and every ``POLL_S`` where none can. ``tell`` is told, on that thread, of ``SourceTroubles``.
    While a window runs ``give_way`` is called before the first look, and may wait a moment.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        max_records: int,
        pace: Pace,
        clock: Clock,
        post: Callable[[e.Event], None],
        tell: Callable[[e.Notify], object] = lambda _: None,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        self._lags: dict[str, int] = {}
        self._held = 0
        self._held_until: Mapping[str, Json] | None = None
        self._recorded: Mapping[str, Json] | None = None
        self._behind: Mapping[str, Json] | None = None
        self._sources = sources
        self._max_records = max_records
        self.pace = pace
        self._clock = clock
        self._post = post
        self._troubles = SourceTroubles(tell)
        self._give_way = give_way
        self._again_s = float("-inf")
        self._wanted: e.Plan | None = None
        self._changed = threading.Condition()
        self._stopped = False
        self._busy = False
        self._freed = False
        self._news = False
        self._posted_s = float("-inf")
        self._first = 0
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)

    def start(self) -> None:
        for source in self._sources:
            try:
                source.on_news(self._heard)
            except Exception:
                # The boundary to anyone's code: it is looked at often enough without.
                log.exception("source %s cannot tell of news", source.name)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for the source call that is under way, for a while: a server that
        a source asks may never answer, and the thread ends with its process."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(CALL_END_S)

    @property
    def lag_records(self) -> int | None:
        """Records that no window has taken: planned ones that wait for theirs, and those behind, of
        sources that tell them. None while a source was not asked yet, or cannot answer."""
        lags = dict(self._lags)
        if any(source.name not in lags for source in self._sources):
            return None
        return self._held + sum(lags.values())

    def ask(self, plan: e.Plan) -> None:
        with self._changed:
            self._wanted = plan
            self._held = 0  # the records of the plan before are in a window by now
            self._changed.notify()

    def busy(self, runs: bool) -> None:
        """Whether a window runs for which the next one has to wait."""
        with self._changed:
            self._freed = self._freed or (self._busy and not runs)
            self._busy = runs
            self._changed.notify()

    def tune(self, window: Window) -> None:
        """Look for windows of this size, at this pace, from the next question on."""
        with self._changed:
            self._max_records, self.pace = window.max_records, Pace.of(window)

    def taken(self, offsets: Mapping[str, Json]) -> None:
        """The record has come to ``offsets``: what was planned up to there is in a window."""
        with self._changed:
            # Offsets of many files take a while to compare, and a record is often written again.
            if offsets is not self._recorded and offsets == self._held_until:
                self._held = 0
            self._recorded = offsets

    def _run(self) -> None:
        while True:
            with self._changed:
                idle_s = None if self._behind is None else LAG_S
                self._changed.wait_for(lambda: self._stopped or self._wanted is not None, idle_s)
                if self._stopped:
                    return
                plan, self._wanted = self._wanted, None
            if plan is None:
                self._look_behind()
                continue
            if self._busy:
                self._give_way()
            try:
                self._answer(plan)
            except PlanRaisedError as raised:
                self._post(_given_up(plan, raised))
            except BaseException as error:
                # The boundary of a thread: a plan may be nothing that can be used.
                log.exception("planning")
                text = f"a source cannot plan: {error_text(error)}; driver.log has the traceback"
                self._post(e.PlanFailed(plan.token, text, ExitCode.SOURCE))

    def _answer(self, plan: e.Plan) -> None:
        since: float | None = None
        offsets = plan.offsets
        while True:
            began_s = self._clock.monotonic_s()
            found = self._look(offsets)
            if found is None:
                return
            if not found.roots:
                # What a source noticed, a file that went say, counts from the next look on.
                offsets = found.offsets
            self._lags |= found.lags
            with self._changed:
                self._held = found.roots if self._wanted is None else 0
                self._held_until = found.offsets
            now = self._clock.monotonic_s()
            if found.roots and since is None:
                since = now
            due_s = self._due_s(since)
            if found.drained or found.roots >= self._max_records or now >= due_s:
                self._first = (self._first + 1) % len(self._sources)
                self._behind = found.offsets
                self._posted_s = now
                crash.reached("driver.planned")
                self._post(e.Planned(plan.token, found.ranges, found.offsets, found.drained))
                return
            rest_s = min(POLL_S, max(LEAST_PAUSE_S, PAUSE_FACTOR * (now - began_s)))
            if self._interrupted(min(POLL_S, max(0.001, due_s - now)), rest_s, since is None):
                return

    def _look(self, offsets: Mapping[str, Json]) -> NextInput | None:
        """What the sources have, once all that are asked can say it.

        ``None`` where nobody wants to know it any more. Raises ``PlanRaisedError``.
        """
        while not self._overtaken():
            try:
                found = look(self._sources, offsets, self._max_records, self._first)
            except PlanRaisedError as raised:
                if not raised.expected:
                    log.error("source %s cannot plan", raised.name, exc_info=raised.error)
                self._lags.pop(raised.name, None)
                pause_s = self._troubles.failed(raised)
                if pause_s is None:
                    raise
                self._again_s = self._clock.monotonic_s() + pause_s
            else:
                self._troubles.worked(found.lags)
                return found
        return None

    def _overtaken(self) -> bool:
        """Wait until a look that failed may be tried again; whether its plan is of no use then."""
        with self._changed:
            rest_s = self._again_s - self._clock.monotonic_s()
            return rest_s > 0 and self._changed.wait_for(lambda: self._useless, rest_s)

    def _due_s(self, since: float | None) -> float:
        """When a plan whose first record was seen at ``since`` is to be posted."""
        if since is None:
            return float("inf")
        latest_s = since + self.pace.most_s
        return latest_s if self._busy else min(latest_s, self._posted_s + self.pace.least_s)

    def _look_behind(self) -> None:
        """Ask what has come in behind the last plan while a window is being processed."""
        assert self._behind is not None
        for source in self._sources:
            try:
                lag = source.lag(self._behind.get(source.name))
            except BaseException as error:  # noqa: BLE001
                # The boundary to anyone's code: the next plan says what is wrong with the source.
                log.debug("the lag of %s is not known: %s", source.name, error_text(error))
                self._lags.pop(source.name, None)
                continue
            if lag is not None:
                self._lags[source.name] = lag

    def _heard(self) -> None:
        """A source may have more; called by threads of sources."""
        with self._changed:
            self._news = True
            self._changed.notify()

    def _interrupted(self, pause_s: float, rest_s: float, curious: bool) -> bool:
        """Wait until there is a reason to look again; whether the plan is of no use any more.

        What sources tell is a reason only for one who has nothing yet, and is ``curious``, and
        only after a rest: a file may be written to without an end and have no record all the time.
        """
        with self._changed:
            if curious:
                self._changed.wait_for(lambda: self._useless or self._freed, rest_s)
            self._changed.wait_for(
                lambda: self._useless or self._freed or (curious and self._news), pause_s
            )
            self._freed = False
            self._news = self._news and not curious
            return self._useless

    @property
    def _useless(self) -> bool:
        return self._stopped or self._wanted is not None


def _given_up(plan: e.Plan, raised: PlanRaisedError) -> e.PlanFailed:
    if isinstance(raised.error, MillraceError):
        return e.PlanFailed(plan.token, message_of(raised.error), raised.error.exit_code)
    often = f"{MOST_IN_A_ROW} times in a row; driver.log has the traceback"
    return e.PlanFailed(plan.token, f"{raised.cause}, {often}", ExitCode.SOURCE)
