"""Keeps the status file up to date from what the driver is told and has committed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from millrace.clock import Clock
from millrace.engine.driver.figures import DriverFigures
from millrace.engine.driver.home.journal import StatusBoard
from millrace.homes.documents import (
    AckerAdvice,
    RunningWindow,
    ServerMemory,
    ServerTrouble,
    SnapshotFigures,
    Status,
    Timing,
)
from millrace.metrics.tally import Sample
from millrace.protocol import events as e
from millrace.protocol.record import dead_letters
from millrace.protocol.types import AttemptPlan, Json, Record, View

RATE_WINDOWS = 20
"""The rate shown is over so many windows."""

TIMINGS_KEPT = 50

SEALED = "driver.sealed"
"""Crash point behind the record that seals a window."""

_BEHIND_S = 60.0
"""Clocks of machines differ by less, where anybody sees to them."""


class Statistics:
    """Numbers for people; everything exact in them is copied from the committed record.

    ``lag`` tells how many records wait in the sources (None: unknown), ``taken`` is told the
    record's offsets, ``spark_runs`` whether Spark has started, ``memory`` how full the state
    servers are, ``snapshots`` what is known of snapshots.
    """

    def __init__(self, board: StatusBoard, clock: Clock) -> None:
        self.lag: Callable[[], int | None] = lambda: None
        self.taken: Callable[[Mapping[str, Json]], None] = lambda _: None
        self.spark_runs: Callable[[], bool] = lambda: False
        self.memory: Callable[[], tuple[ServerMemory, ...]] = tuple
        self.snapshots: Callable[[], SnapshotFigures | None] = lambda: None
        self.ackers: Callable[[], AckerAdvice | None] = lambda: None
        self._board = board
        self._clock = clock
        self._figures = DriverFigures(clock)
        self._record: Record | None = None
        self._view: View | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=RATE_WINDOWS)
        self._opened: dict[int, float] = {}
        self._full: set[str] = set()
        self._timings: deque[Timing] = deque(maxlen=TIMINGS_KEPT)
        board.change(pid=os.getpid(), state="starting", spark="starting")
        board.tell(force=True)

    @property
    def status(self) -> Status:
        """The figures as they are now."""
        return self._board.status

    def samples(self) -> Iterator[Sample]:
        """The same for Prometheus, and what is counted beside them."""
        return self._figures.samples(self.status)

    def crash_point(self, record: Record) -> str:
        """Name of the crash point that a committed record stands for."""
        before = self._record
        if before is None:
            return "driver.written-back"
        if record.components != before.components:
            return "driver.edited"
        if record.sealed > before.sealed:
            return SEALED
        if len(record.intents) > len(before.intents):
            return "driver.split" if before.intents else "driver.opened"
        return "driver.marked"

    def committed(self, record: Record, view: View) -> None:
        self.taken(record.offsets)
        now = self._clock.monotonic_s()
        if self._record is None or record.sealed > self._record.sealed:
            self._recent.append((now, record.totals.roots))
            self._full.clear()
        for intent in record.intents:
            self._opened.setdefault(intent.window, now)
        self._figures.committed(self._record, record, self._opened)
        self._record = record
        self._board.change(
            state="running",
            uid=record.uid,
            execution=view.execution,
            epoch=view.epoch,
            phase=view.phase.value,
            members=tuple(m.name for m in view.target),
            sealed=record.sealed,
            published=record.published,
            totals=record.totals,
            pending_replays=len(record.replays),
            dead_letters=dead_letters(record),
            roots_per_s=self._rate(),
            window=self._under_way(record),
        )
        self._board.put_off()  # what follows a commit does not wait for a file

    def _under_way(self, record: Record) -> RunningWindow | None:
        """The window that runs, or is about to: whoever reads the figures takes none for idle."""
        if not record.intents:
            return None
        told, first = self._board.status.window, record.intents[0]
        if told is not None and any(told.number == one.window for one in record.intents):
            return told
        return RunningWindow(first.window, 1, first.roots, self._clock.now_s())

    def running(self, plan: AttemptPlan) -> None:
        """A window attempt begins."""
        a = plan.id
        roots, since = plan.intent.roots, self._clock.now_s()
        self._board.change(window=RunningWindow(a.window, a.attempt, roots, since))
        self.write()

    def executors(self, count: int) -> None:
        """There are to be so many from now on."""
        self._board.change(executors=count)
        self._board.tell()

    def refused(self, why: str | None) -> None:
        """The cluster takes no pod of an executor, and why; None where it does."""
        if why != self._board.status.refused:
            self._board.change(refused=why)
            self._board.tell()

    def observe(self, event: e.Event) -> None:
        self._figures.observe(event)
        if isinstance(event, e.RunDone | e.RunDied):
            self._board.change(window=None)
        if isinstance(event, e.RunDied | e.CopyFailed) and event.full:
            self._full.add(event.full)
        if isinstance(event, e.Published):
            self._published(event.window)

    def write(self, force: bool = False) -> None:
        self._board.change(
            lag_records=self.lag(),
            spark=self._spark(),
            memory=self._memory(),
            snapshots=self.snapshots(),
            ackers=self.ackers(),
        )
        self._board.tell(force)

    def settle(self) -> None:
        """Write the figures of the last change, which may have come too soon after another."""
        told = self._board.status
        now = (self.lag(), self._spark(), self._memory(), self.snapshots(), self.ackers())
        if now != (told.lag_records, told.spark, told.memory, told.snapshots, told.ackers):
            self.write()
        self._board.settle()
        self._figures.looked(self.status, self._view)

    def membership(
        self,
        view: View | None,
        follows: int | None,
        troubles: tuple[ServerTrouble, ...] | None = None,
    ) -> None:
        """Tell where the view stands, the number of the proposal that the driver follows, and what
        is wrong with state servers, as soon as one of them changes: a view that moves for long
        comes with no record."""
        self._view = view
        told = self._board.status
        epoch, phase = (view.epoch, view.phase.value) if view is not None else (None, None)
        now = (epoch, phase, follows, troubles)
        if now != (told.epoch, told.phase, told.follows, told.troubles):
            self._board.change(epoch=epoch, phase=phase, follows=follows, troubles=troubles)
            self._board.tell()

    def stopped(self, stop: e.Stop) -> None:
        self._board.change(state=stop.kind.value, window=None, reason=stop.text)
        self.write(force=True)

    def _memory(self) -> tuple[ServerMemory, ...]:
        return tuple(replace(one, full=one.name in self._full) for one in self.memory())

    def _spark(self) -> str:
        return "running" if self.spark_runs() else "starting"

    def _published(self, window: int) -> None:
        now = self._clock.monotonic_s()
        opened = self._opened.pop(window, None)
        if opened is not None:
            self._figures.published(now - opened)
            self._timings.append(Timing(window, round(now - opened, 6)))
            self._board.change(timings=tuple(self._timings))
        self._opened = {w: at for w, at in self._opened.items() if w > window}

    def _rate(self) -> float:
        if len(self._recent) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        return round((last - first) / max(last_s - first_s, 1e-6), 1)


class ClockWatch:
    """Tells of a clock that was set back, or ahead before: the time of windows stands still then,
    and nothing expires."""

    def __init__(self, clock: Clock, tell: Callable[[e.Notify], object]) -> None:
        self._clock = clock
        self._tell = tell
        self._behind = False

    def committed(self, record: Record) -> None:
        """To be called with each committed record."""
        ahead_s = record.time_ms / 1000 - self._clock.now_s()
        if ahead_s >= _BEHIND_S and not self._behind:
            text = (
                f"the clock of the driver's machine is {ahead_s:,.0f} s behind the time of window "
                f"{record.sealed}; until it has caught up no state expires"
            )
            self._tell(e.Notify("ClockBehind", text, warning=True))
        # Told again only where it had caught up meanwhile.
        self._behind = ahead_s > 0 if self._behind else ahead_s >= _BEHIND_S
