"""The settings that change while a driver runs, and from which window on.

They are taken while no record is on its way, so that the number of the next window is known: every
attempt of a window runs by the same ones, however often it is run. Nothing of them is kept: a
driver that dies, at any step, is followed by one that begins with what is accepted then, or reads
it in its inbox before it plans.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from millrace import crash
from millrace.homes.tuning import FIELDS, Tuning
from millrace.ids import NO_WINDOW, WindowNumber
from millrace.protocol import events as e
from millrace.topology.duration import Duration
from millrace.topology.model import Window


class Tuner:
    """``give`` and ``at`` from any thread, ``take`` from the loop's. ``first`` is what the driver
    begins with; ``window`` is told the size and pace of windows to be planned, ``tell`` what
    changed."""

    def __init__(
        self,
        first: Tuning,
        window: Callable[[Window], None],
        tell: Callable[[e.Notify], None],
    ) -> None:
        self._window = window
        self._tell = tell
        self._lock = threading.Lock()
        self._given: Tuning | None = None
        self._taken: list[tuple[WindowNumber, Tuning]] = [(NO_WINDOW, first)]

    def give(self, tuning: Tuning) -> None:
        """Take these as soon as possible, unless there are newer ones."""
        with self._lock:
            newest = self._given or self._taken[-1][1]
            if tuning.number > newest.number:
                self._given = tuning

    def take(self, resize: Callable[[int], WindowNumber | None]) -> None:
        """Change to what was given, if ``resize`` finds that windows can be of another size now."""
        with self._lock:
            given, before = self._given, self._taken[-1][1]
        if given is None:
            return
        changed = given.changed(before)
        window = resize(given.max_records)
        if window is None:
            return
        with self._lock:
            # Windows before it may run, or be run again.
            kept = [one for one in self._taken if one[0] < window]
            self._taken = [*kept, (window, given)]
            if self._given is given:
                self._given = None
        self._window(given.window)
        crash.reached("driver.tuned")
        if changed:
            values = ", ".join(f"{field} {_value(given, field)}" for field in changed)
            self._tell(e.Notify("SettingsChanged", f"from window {window} on: {values}", window))

    def at(self, window: WindowNumber) -> Tuning:
        """What a window runs by."""
        with self._lock:
            return next(tuning for first, tuning in reversed(self._taken) if first <= window)


def _value(tuning: Tuning, field: str) -> str:
    name = FIELDS[field]
    value = getattr(tuning, name)
    if value is None:
        return "not set"
    return str(Duration(value)) if name.endswith("_ms") else str(value)
