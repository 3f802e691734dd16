"""What a run shows while it goes on: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from millrace.cli.output import counted, literal, moment
from millrace.clock import Clock
from millrace.homes.documents import RunEvent, RunningWindow, Status
from millrace.local.logs import lines_may_be_lost
from millrace.protocol.types import Totals
from millrace.state.journalfiles import EventFollower, read_status

LINE_EVERY_S = 3.0
"""Time between two plain lines."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The driver's figures, as far as this run's driver has written any."""

    state: str = "starting"
    execution: int = 0
    sealed: int = 0
    published: int = 0
    roots: int = 0
    replays: int = 0
    roots_per_s: float = 0.0
    pending: int = 0
    dead: int = 0
    dropped: int = 0
    lag: int | None = None
    window: RunningWindow | None = None

    @classmethod
    def of(cls, status: Status, since: float) -> Figures:
        """Of a driver; figures from before ``since`` (wall clock) say nothing."""
        if (status.updated or 0.0) < since:
            return cls()
        totals = status.totals or Totals()
        return cls(
            status.state or "running",
            status.execution or 0,
            status.sealed or 0 if status.own else 0,
            status.published or 0 if status.own else 0,
            totals.roots,
            totals.replays,
            status.roots_per_s or 0.0,
            status.pending_replays or 0,
            status.dead_letters or 0,
            totals.dropped,
            status.lag_records,
            status.window,
        )

    def line(self) -> str:
        """Everything in one plain line."""
        lag = "" if self.lag is None else f", {self.lag:,} unread"
        dropped = f", dropped {self.dropped:,}" if self.dropped else ""
        return (
            f"{self.state}: {counted(self.roots, 'root')} in {counted(self.sealed, 'window')} "
            f"({self.published:,} published), {self.roots_per_s:,.0f} roots/s, "
            f"{self.pending:,} pending, {counted(self.replays, 'replay')}, "
            f"{counted(self.dead, 'dead letter')}{dropped}{lag}"
        )


class Quiet:
    """Shows what the driver prints and nothing else."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        with lines_may_be_lost():
            self.finish()

    def tell(self, text: str) -> None:
        """A sentence about the start of the run."""

    def event(self, event: RunEvent) -> None:
        """See ``Listener``."""

    def progress(self) -> None:
        """See ``Listener``."""

    def output(self, line: str) -> None:
        """A line for standard output: as it is where another program reads it."""
        if self.console.is_terminal:
            self.console.print(literal(line), soft_wrap=True)
        else:
            self.console.file.write(f"{line}\n")
            self.console.file.flush()

    def finish(self) -> None:
        """Nothing more will come."""


class Lines(Quiet):
    """A plain line every few seconds, and one for each event.

    With ``figures`` off there are only the events.
    """

    def __init__(self, console: Console, folder: Path, clock: Clock, figures: bool = True) -> None:
        super().__init__(console)
        self._status = folder / "status.json"
        self._clock = clock
        self._since = clock.now_s()
        self._follower = EventFollower(folder / "events.jsonl")
        self._figures = figures
        self._due_s = clock.monotonic_s() + LINE_EVERY_S
        self._last = ""
        self._told: set[RunEvent] = set()

    def event(self, event: RunEvent) -> None:
        # What the driver wrote before comes first. A full disk may keep this one from the file.
        if event not in self._show_events():
            self._told.add(event)
            self._show(event)

    def tell(self, text: str) -> None:
        self.console.print(literal(text), soft_wrap=True)

    def progress(self) -> None:
        self._show_events()
        if not self._figures or self._clock.monotonic_s() < self._due_s:
            return
        self._due_s = self._clock.monotonic_s() + LINE_EVERY_S
        line = self._now().line()
        if line != self._last:
            self._last = line
            begin_line(self.console)
            self.console.print(literal(f"{moment(self._clock.now_s())} {line}"), soft_wrap=True)

    def finish(self) -> None:
        self._show_events()

    def _now(self) -> Figures:
        return Figures.of(read_status(self._status), self._since)

    def _show_events(self) -> list[RunEvent]:
        """Show what is new in the file, in its order; answers what that was."""
        new = list(self._follower.new())
        for event in new:
            if event not in self._told:
                self._show(event)
            self._told.discard(event)
        return new

    def _show(self, event: RunEvent) -> None:
        style = "yellow" if event.warning else "dim"
        begin_line(self.console)
        self.console.print(literal(event_line(event), style), soft_wrap=True)


class _Patient(Live):
    """A panel that is drawn again where it could not be, by the thread that does so."""

    def refresh(self) -> None:
        with lines_may_be_lost():
            super().refresh()


class Panel(Lines):
    """A panel at the bottom of a terminal that changes in place, events above it."""

    def __init__(self, console: Console, folder: Path, clock: Clock, name: str) -> None:
        super().__init__(console, folder, clock)
        self._name = name
        self._spinner = Spinner("dots", "starting")
        self._live = _Patient(
            self._drawn(Figures()), console=console, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> Panel:
        self._live.start()
        return self

    def progress(self) -> None:
        self._show_events()
        self._live.update(self._drawn(self._now()))

    def finish(self) -> None:
        with lines_may_be_lost():
            self._show_events()
        self._live.stop()

    def _drawn(self, figures: Figures) -> RenderableType:
        self._spinner.update(text=self._headline(figures))
        grid = Table.grid(padding=(0, 4))
        grid.add_row(
            _figure("roots", f"{figures.roots:,}"),
            _figure("roots/s", f"{figures.roots_per_s:,.0f}"),
            _figure("windows", f"{figures.sealed:,}"),
            _figure("published", f"{figures.published:,}"),
        )
        grid.add_row(
            _figure("unread", "?" if figures.lag is None else f"{figures.lag:,}"),
            _figure("pending", f"{figures.pending:,}"),
            _figure("replays", f"{figures.replays:,}"),
            _figure("dead letters", f"{figures.dead:,}", "red" if figures.dead else ""),
        )
        return Group(self._spinner, grid)

    def _headline(self, figures: Figures) -> Text:
        text = Text.assemble((self._name, "bold"), f" {figures.state}")
        if figures.execution:
            text.append(f", execution {figures.execution}", "dim")
        window = figures.window
        if window is not None:
            seconds = max(0.0, self._clock.now_s() - window.since)
            text.append(
                f", window {window.number} attempt {window.attempt} "
                f"({window.roots:,} roots, {seconds:.1f} s)"
            )
        return text


def shown(
    console: Console, folder: Path, name: str, clock: Clock, *, quiet: bool, progress: bool
) -> Quiet:
    """The display that fits the options and the place where it is shown."""
    if quiet:
        return Quiet(console)
    if progress and console.is_terminal:
        return Panel(console, folder, clock, name)
    return Lines(console, folder, clock, figures=progress)


def _figure(label: str, value: str, style: str = "") -> Text:
    return Text.assemble((value, style or "bold"), " ", (label, "dim"))


def event_line(event: RunEvent) -> str:
    """When, what in plain words, its name, and the sentence."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", event.kind).lower()
    return f"{moment(event.time)} {words} ({event.kind}): {event.text}"


def begin_line(console: Console) -> None:
    """Clear what stands in the terminal's line, the ``^C`` of an interrupt say."""
    if console.is_terminal:
        console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
