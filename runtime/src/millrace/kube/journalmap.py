"""The journal of a topology as one ConfigMap that changes rarely.

A driver tells its figures many times a second. They are kept here and written by a thread, once in
``FIGURES_S`` however many windows run; an event, or another state of the driver, once in
``EVENTS_S``. Each event has a name of its own, so that one whose answer was lost is not added
twice, and a follower knows where it was. A process that dies loses what it had not written, and
nothing follows from that.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from millrace import checked
from millrace.clock import Clock, SystemClock
from millrace.errors import MillraceError, NewerFormatError
from millrace.homes import codec, pods
from millrace.homes.documents import RunEvent, Status
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import ConfigMap

log = logging.getLogger(__name__)

FIGURES_S = 5.0
EVENTS_S = 1.0

EVENT_BYTES = 20_000
"""Older events make room for newer ones: every write of figures has the API server keep all of the
object once more, until it next compacts its store."""

_WAITING = 500
_TRIES = 50
_STATES = (
    "state",
    "spark",
    "reason",
    "execution",
    "epoch",
    "phase",
    "members",
    "snapshots",
    "troubles",
    "refused",
)


class JournalMap:
    """See ``homes.stores.Journal``.

    ``at_once`` writes before ``add`` and ``tell`` return, for those who tell little.
    """

    def __init__(
        self, config_map: ConfigMap, *, at_once: bool = False, clock: Clock | None = None
    ) -> None:
        self._map = config_map
        self._at_once = at_once
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._events: deque[tuple[str, str]] = deque(maxlen=_WAITING)
        self._status: Status | None = None
        self._told = Status()
        self._urgent = False
        self._written_s = float("-inf")
        self._name = secrets.token_hex(6)
        self._count = 0
        self._thread: threading.Thread | None = None

    def add(self, event: RunEvent) -> None:
        with self._changed:
            self._count += 1
            name = f"{self._name}-{self._count}"
            self._events.append((name, codec.encode_line(event)))
            self._urgent = True
            self._begin()
        if self._at_once:
            self.flush()

    def tell(self, status: Status) -> None:
        with self._changed:
            self._status = status
            self._urgent |= any(
                getattr(status, field) != getattr(self._told, field) for field in _STATES
            )
            self._begin()
        if self._at_once:
            self.flush()

    def flush(self) -> None:
        """Write what waits. Where that fails it waits on, with a line in the log."""
        with self._writing:
            with self._changed:
                events, status = list(self._events), self._status
                self._urgent = False
                self._written_s = self._clock.monotonic_s()
            if not events and status is None:
                return
            try:
                self._write(events, status)
            except MillraceError as error:
                log.warning("%s", error)
                return
            with self._changed:
                while events and self._events and self._events[0] in events:
                    self._events.popleft()
                if status is not None:
                    self._told = status
                if self._status is status:
                    self._status = None

    def follow(self) -> MapFollower:
        return MapFollower(self._map)

    def status(self) -> Status:
        held = self._map.read()
        text = None if held is None else held.data.get(pods.STATUS)
        if text is None:
            return Status()
        try:
            found = codec.decode(Status, text)
        except NewerFormatError as error:
            raise NewerFormatError(f"ConfigMap {self._map.name}: {error}") from error
        except checked.DamagedError:
            return Status()
        return found if found.whole else Status()

    def _begin(self) -> None:
        if self._at_once:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (wait_s := self._due_in_s()) is None or wait_s > 0:
                    self._changed.wait(wait_s)
            try:
                self.flush()
            except Exception:
                # The boundary of a thread: nothing waits for a journal.
                log.exception("the journal cannot be written")

    def _due_in_s(self) -> float | None:
        """Seconds until the next write; None while nothing waits for one."""
        if not self._events and self._status is None:
            return None
        pause_s = EVENTS_S if self._urgent else FIGURES_S
        return self._written_s + pause_s - self._clock.monotonic_s()

    def _write(self, events: Sequence[tuple[str, str]], status: Status | None) -> None:
        for _ in range(_TRIES):
            held = self._map.read()
            before = {} if held is None else held.data
            data = {}
            if status is not None:
                data[pods.STATUS] = json.dumps(codec.encode(status))
            if events:
                data[pods.EVENTS] = _joined(before.get(pods.EVENTS, ""), events)
            if held is None:
                done = self._map.create(data)
            else:
                done = self._map.replace(held.resource_version, data)
            if done:
                return
        raise HomeAwayError(f"ConfigMap {self._map.name}: others write it all the time")


class MapFollower:
    """See ``homes.stores.Follower``."""

    def __init__(self, config_map: ConfigMap) -> None:
        self._map = config_map
        self._last: str | None = None
        with suppress(HomeAwayError):
            self._read()

    def new(self) -> Sequence[RunEvent]:
        """As ``Follower.new``; what cannot be read now comes with a later call."""
        try:
            lines = self._read()
        except HomeAwayError as error:
            log.warning("%s", error)
            return []
        return list(_readable(lines).values())

    def _read(self) -> list[tuple[str, str]]:
        """Lines behind the last one that was read; all of them where that one is gone."""
        held = self._map.read()
        told = _split("" if held is None else held.data.get(pods.EVENTS, ""))
        names = [name for name, _ in told]
        start = names.index(self._last) + 1 if self._last in names else 0
        if names:
            self._last = names[-1]
        return told[start:]


def events_in(data: Mapping[str, str]) -> dict[str, RunEvent]:
    """The events in a journal's data by their names, older ones first."""
    return _readable(_split(data.get(pods.EVENTS, "")))


def _readable(lines: Iterable[tuple[str, str]]) -> dict[str, RunEvent]:
    """What cannot be read, or only by a newer release, is left out: nothing follows from it."""
    found = {}
    for name, line in lines:
        with suppress(checked.DamagedError, NewerFormatError):
            found[name] = codec.decode_line(RunEvent, line.encode())
    return found


def _joined(before: str, events: Iterable[tuple[str, str]]) -> str:
    told = _split(before)
    known = {name for name, _ in told}
    told += [event for event in events if event[0] not in known]
    sizes = [len(name) + len(line.encode()) + 1 for name, line in told]
    while told and sum(sizes) > EVENT_BYTES:
        del told[0], sizes[0]
    return "".join(f"{name} {line.rstrip()}\n" for name, line in told)


def _split(text: str) -> list[tuple[str, str]]:
    lines = (line.partition(" ") for line in text.split("\n") if line)
    return [(name, line) for name, _, line in lines]
