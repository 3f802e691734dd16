"""The last sealed window of a topology on a cluster as its record has it, within half a second.

What the driver tells is behind by seconds, too long to time a recovery by. A thread reads, since
what is asked may be on a node that was just killed, and an answer may take its time.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from millrace.clock import Clock
from millrace.errors import MillraceError, error_text
from millrace.local.inspect.reading import committed_record
from millrace.remote.servers import reachable
from millrace.remote.topology import RemoteTopology

log = logging.getLogger(__name__)

LOOK_S = 0.2
AGAIN_S = 1.0
MEMBERS_S = 15.0
"""So long the members of the view are believed to be the same."""

ANSWER_S = 2.0

CLOSE_S = 10.0
"""How long an answer that is under way is waited for at the end."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The last window that was sealed at the wall-clock time ``at_s`` of this machine; 0 before the
    first is known."""

    at_s: float = 0.0
    window: int = 0


class Sealing:
    """``seen`` only rises. ``trouble`` is why nothing could be read last, "" where it could always;
    ``silent_s`` is the longest time without an answer, in seconds, from the beginning on."""

    def __init__(self, topology: RemoteTopology, clock: Clock) -> None:
        self.seen = Seen()
        self.trouble = ""
        self.silent_s = 0.0
        self._read_s = clock.monotonic_s()
        self._topology = topology
        self._clock = clock
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealing", daemon=True)

    def start(self) -> None:
        """Read until it is closed."""
        self._read_s = self._clock.monotonic_s()
        self._thread.start()

    def close(self) -> None:
        """Read no more, and leave nothing behind; what is known stays."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
            self._silent()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._read()
            except MillraceError as error:
                self.trouble = str(error)
                self._closed.wait(AGAIN_S)
            except Exception as error:
                # The boundary of a thread: what the driver tells is there too.
                self.trouble = error_text(error)
                log.exception("the record of %s cannot be read", self._topology.name)
                self._closed.wait(AGAIN_S)

    def _read(self) -> None:
        end_s = self._clock.monotonic_s() + MEMBERS_S
        with reachable(self._topology, ANSWER_S) as clients:
            while not self._closed.is_set() and self._clock.monotonic_s() < end_s:
                at_s, record = self._clock.now_s(), committed_record(clients)
                if record is not None and record.uid == self._topology.uid:
                    self.seen = Seen(at_s, max(self.seen.window, record.sealed))
                self._silent()
                self._read_s = self._clock.monotonic_s()
                self._closed.wait(LOOK_S)

    def _silent(self) -> None:
        self.silent_s = max(self.silent_s, self._clock.monotonic_s() - self._read_s)
