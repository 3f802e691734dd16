"""The settings that change while a driver runs, and from when on.

They are taken while no record is on its way, so that the number of the next window is known: it is
the first one of the new size. The other settings are an attempt's: of an open window the next
attempt has the new ones, and one that runs by a longer time-out ends, since it may wait for a call
that never returns. Nothing of them is kept: a driver that dies, at any step, is followed by one
that begins with what is accepted then, or reads it in its inbox before it plans.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from millrace import crash
from millrace.homes.tuning import FIELDS, Tuning
from millrace.ids import WindowNumber
from millrace.protocol import events as e
from millrace.protocol.types import AttemptId
from millrace.topology.duration import Duration
from millrace.topology.model import Window


class Tuner:
    """``give``, ``begin`` and ``newest`` from any thread, ``take`` from the loop's. ``first`` is
    what the driver begins with; ``window`` is told the size and pace of windows to be planned,
    ``again`` of an attempt that has to end, if it runs still, and why, ``tell`` what changed."""

    def __init__(
        self,
        first: Tuning,
        window: Callable[[Window], None],
        again: Callable[[AttemptId, str], None],
        tell: Callable[[e.Notify], None],
    ) -> None:
        self._window = window
        self._again = again
        self._tell = tell
        self._lock = threading.Lock()
        self._given: Tuning | None = None
        self._taken = first
        self._begun: AttemptId | None = None

    def give(self, tuning: Tuning) -> None:
        """Take these as soon as possible, unless there are newer ones."""
        with self._lock:
            newest = self._given or self._taken
            if tuning.number > newest.number:
                self._given = tuning

    def take(self, resize: Callable[[int], WindowNumber | None]) -> None:
        """Change to what was given, if ``resize`` finds that windows can be of another size now."""
        with self._lock:
            given, before = self._given, self._taken
        if given is None:
            return
        changed = given.changed(before)
        window = resize(given.max_records)
        if window is None:
            return
        with self._lock:
            self._taken = given
            if self._given is given:
                self._given = None
            # One that begins after this has them.
            begun = self._begun
        self._window(given.window)
        crash.reached("driver.tuned")
        if changed:
            text = _told(given, changed, window)
            self._tell(e.Notify("SettingsChanged", text, window))
        if begun is not None and given.tuple_timeout_ms < before.tuple_timeout_ms:
            timeout = Duration(given.tuple_timeout_ms)
            self._again(begun, f"spec.tupleTimeout is {timeout} now and was longer as it began")

    def begin(self, attempt: AttemptId) -> Tuning:
        """What an attempt that begins now runs by."""
        with self._lock:
            self._begun = attempt
            return self._taken

    @property
    def newest(self) -> Tuning:
        """What was taken last."""
        with self._lock:
            return self._taken


def _told(given: Tuning, changed: tuple[str, ...], window: WindowNumber) -> str:
    sized = [field for field in changed if field.startswith("spec.window.")]
    others = [field for field in changed if field not in sized]
    parts = [(f"from window {window} on", sized), ("from the next attempt on", others)]
    return "; ".join(
        f"{when}: {', '.join(f'{field} {_value(given, field)}' for field in fields)}"
        for when, fields in parts
        if fields
    )


def _value(tuning: Tuning, field: str) -> str:
    name = FIELDS[field]
    value = getattr(tuning, name)
    if value is None:
        return "not set"
    return str(Duration(value)) if name.endswith("_ms") else str(value)
