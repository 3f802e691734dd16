"""What the driver tells the outside about itself: a status file and an event file.

Neither is ever read back by the driver; the truth is the record.
"""

from __future__ import annotations

import json
import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from millrace import checked, durable
from millrace.clock import Clock
from millrace.protocol import events as e

STATUS_INTERVAL_S = 0.2
log = logging.getLogger(__name__)

EVENT_FILE_BYTES = 2_000_000

REPEAT_S = 30.0
"""How long an event that repeats itself is left out."""


class StatusFile:
    """A JSON document that is replaced atomically, at most five times a second."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._written_s = float("-inf")
        self._waits = False
        self.values: dict[str, Any] = {}

    def write(self, force: bool = False) -> None:
        """Write ``values`` unless that was done a moment ago."""
        now = self._clock.monotonic_s()
        self._waits = not force and now - self._written_s < STATUS_INTERVAL_S
        if self._waits:
            return
        self._written_s = now
        self.values["updated"] = self._clock.now_s()
        document = json.dumps(checked.with_checksum(self.values))
        try:
            durable.replace(self._path, document.encode(), durable=False)
        except OSError as error:
            # Windows may go on without it; where they cannot, they say so.
            log.warning("%s cannot be written: %s", self._path, error)

    def settle(self) -> None:
        """Write what ``write`` has put off; to be called once in a while."""
        if self._waits:
            self.write()


class EventFile:
    """One JSON line for each event that a user may want to know of; old lines are dropped.

    What is said again and again, while a server is away, say, is written once in a while.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._log = logging.Logger("events")
        handler = RotatingFileHandler(path, maxBytes=EVENT_FILE_BYTES, backupCount=1)
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._log.addHandler(handler)
        self._last: e.Notify | None = None
        self._again_s = float("-inf")

    def add(self, notice: e.Notify) -> bool:
        """Write an event; False for one that was the last one too, a moment ago."""
        now = self._clock.monotonic_s()
        if notice == self._last and now < self._again_s:
            return False
        self._last, self._again_s = notice, now + REPEAT_S
        line = {
            "time": self._clock.now_s(),
            "kind": notice.kind,
            "text": notice.text,
            "window": notice.window,
            "warning": notice.warning,
        }
        self._log.info(json.dumps(line))
        return True
