"""What happens to a run, told by the supervisor in the journal of its topology."""

from __future__ import annotations

from millrace.clock import Clock
from millrace.homes.documents import RunEvent
from millrace.homes.stores import Journal


class RunLog:
    """Makes events of what the supervisor sees."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

    def add(self, kind: str, text: str, *, warning: bool = False) -> RunEvent:
        """Add an event; a full disk loses the line, not the run."""
        event = RunEvent(self._clock.now_s(), kind, text, warning=warning)
        self._journal.add(event)
        return event
