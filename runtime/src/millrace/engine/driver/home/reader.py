"""Looks at the inbox beside the driver's loop, and posts what it finds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from millrace.engine.driver.home.inbox import Mailbox
from millrace.homes.stores import HomeAwayError
from millrace.protocol import events as e
from millrace.protocol.types import Record

log = logging.getLogger(__name__)

LOOK_S = 0.2
"""How often the inbox is looked at."""

_END_S = 5.0


class InboxReader:
    """One thread. ``start``, ``committed``, ``first`` and ``stop`` are for the loop's thread.

    ``post`` takes what was found. ``away`` is told of an inbox that does not answer, which is
    looked at again; ``fail`` of anything else that goes wrong.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        post: Callable[[e.Event], None],
        away: Callable[[HomeAwayError], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._mailbox = mailbox
        self._post = post
        self._away = away
        self._fail = fail
        self._changed = threading.Condition()
        self._record: Record | None = None
        self._looked = False
        self._held: Callable[[], None] | None = None
        self._stopped = False
        self._orderly = False
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
        self._started = False

    def start(self) -> None:
        """Begin to look, unless that was done."""
        if not self._started:
            self._started = True
            self._thread.start()

    def committed(self, record: Record) -> None:
        """The record that requests are compared with from now on."""
        with self._changed:
            first = self._record is None
            self._record = record
            if first:
                self._changed.notify()

    def first(self, then: Callable[[], None]) -> None:
        """Do ``then`` once what waits for this driver was looked for under its first record.

        Only the last ``then`` is done. What was found is posted before.
        """
        with self._changed:
            if not self._looked:
                self._held = then
                return
        then()

    def stop(self, orderly: bool) -> None:
        """Look no more. Requests that the last record shows are done, and if the end is an
        ``orderly`` one, those for a stop too; an inbox that does not answer is not waited for."""
        with self._changed:
            self._stopped, self._orderly = True, orderly
            self._changed.notify()
        if self._started:
            self._thread.join(_END_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                record, stopped = self._record, self._stopped
            try:
                if record is not None:
                    self._try(partial(self._mailbox.committed, record))
                if stopped:
                    self._try(self._end)
                    return
                self._try(self._look)
            except Exception as error:  # noqa: BLE001 the boundary of a thread: the loop raises it
                self._fail(error)
                return
            self._await(record)

    def _try(self, part: Callable[[], None]) -> None:
        """What an inbox that does not answer leaves undone is tried again at the next look; the
        other parts of this one are done all the same."""
        try:
            part()
        except HomeAwayError as error:
            self._away(error)

    def _look(self) -> None:
        for event in self._mailbox.look():
            self._post(event)

    def _end(self) -> None:
        if self._orderly:
            self._mailbox.stopped()

    def _await(self, under: Record | None) -> None:
        """Until the next look; after the first one under a record windows may be planned, also
        where the inbox does not answer."""
        held = None
        with self._changed:
            if under is not None and not self._looked:
                self._looked = True
                held, self._held = self._held, None
        if held is not None:
            held()
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or (under is None and self._record is not None), LOOK_S
            )
