"""What the driver tells the outside about itself: figures and events, through its journal.

The driver decides nothing by either; the truth is the record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any

from millrace.clock import Clock
from millrace.errors import NewerFormatError
from millrace.homes.documents import RunEvent, Status
from millrace.homes.stores import HomeAwayError, Journal
from millrace.logs.repeats import Repeats
from millrace.protocol import events as e

log = logging.getLogger(__name__)

STATUS_INTERVAL_S = 0.2

REPEAT_S = 30.0
"""How long a warning that repeats itself is left out at first."""

_BACK = "Back"
"""Ends the kind of an event that says of troubles of that kind that they are over."""


class StatusBoard:
    """The driver's figures, told at most five times a second.

    They begin with what the driver before knew of the windows of the life ``uid``: where this one
    never gets as far as a record, nobody else remembers it.
    """

    def __init__(self, journal: Journal, clock: Clock, uid: str) -> None:
        self._journal = journal
        self._clock = clock
        self._told_s = float("-inf")
        self._waits = False
        self.status = figures_before(journal, uid)

    def change(self, **fields: Any) -> None:
        """Other figures from now on, by the names of ``Status``."""
        self.status = replace(self.status, **fields)

    def tell(self, force: bool = False) -> None:
        """Tell the figures unless that was done a moment ago."""
        now = self._clock.monotonic_s()
        self._waits = not force and now - self._told_s < STATUS_INTERVAL_S
        if self._waits:
            return
        self._told_s = now
        self._journal.tell(replace(self.status, updated=self._clock.now_s()))

    def put_off(self) -> None:
        """Leave it to ``settle`` to tell the figures."""
        self._waits = True

    def settle(self) -> None:
        """Tell what was put off; to be called once in a while."""
        if self._waits:
            self.tell()


def figures_before(journal: Journal, uid: str) -> Status:
    """What is known of a life of the topology, whoever its driver is."""
    try:
        before = journal.status()
    except (HomeAwayError, NewerFormatError) as error:
        log.warning("the figures of the driver before are not known: %s", error)
        return Status(uid=uid)
    if before.uid != uid:
        return Status(uid=uid)
    return Status(uid=uid, sealed=before.sealed, published=before.published)


class EventTeller:
    """Adds each event that a user may want to know of, from any thread.

    A warning that is heard again and again, while a server is away, say, is added again after
    ``REPEAT_S`` and then after twice as long each time, whatever else is said meanwhile. It is new
    when it was silent for ``REPEAT_S``, or when something said that it is over. ``heard`` is
    told each.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        heard: Callable[[e.Notify], None] = lambda _: None,
    ) -> None:
        self._heard = heard
        self._journal = journal
        self._clock = clock
        self._repeats = Repeats[e.Notify](REPEAT_S, lambda silent_s, _: silent_s >= REPEAT_S)
        self._lock = Lock()

    def add(self, notice: e.Notify) -> bool:
        """Add an event; False for a warning that was added a while ago."""
        self._heard(notice)
        with self._lock:
            now_s = self._clock.monotonic_s()
            if notice.warning and self._repeats.due(notice, now_s) is None:
                return False
            if notice.kind.endswith(_BACK):
                self._over(notice)
        self._journal.add(
            RunEvent(self._clock.now_s(), notice.kind, notice.text, notice.window, notice.warning)
        )
        return True

    def _over(self, notice: e.Notify) -> None:
        """What it says to be over is news if it comes back."""
        kinds = notice.kind.removesuffix(_BACK)
        self._repeats.forget(
            lambda known: known.server == notice.server and known.kind.startswith(kinds)
        )
