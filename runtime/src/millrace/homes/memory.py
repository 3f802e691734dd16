"""Homes in the memory of one process: for tests, which stop and resume a driver in it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.homes.documents import Proposal, Request, RunEvent, Status
from millrace.homes.stores import PendingRequest
from millrace.protocol.types import View


class MemoryView:
    """See ``ViewStore``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[int, View | None] = (0, None)

    def read(self) -> tuple[int, View | None]:
        return self._held

    def cas(self, expected: int, view: View) -> int | None:
        with self._lock:
            if self._held[0] != expected:
                return None
            self._held = (expected + 1, view)
            return expected + 1


class MemoryInbox:
    """See ``Inbox``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._proposal: Proposal | None = None
        self._asked: dict[str, Request] = {}
        self._count = 0

    def propose(self, proposal: Proposal) -> None:
        self._proposal = proposal

    def proposal(self) -> Proposal | None:
        return self._proposal

    def ask(self, request: Request) -> str:
        with self._lock:
            self._count += 1
            token = str(self._count)
            self._asked[token] = request
            return token

    def requests(self) -> Sequence[PendingRequest]:
        with self._lock:
            return [PendingRequest(token, request) for token, request in self._asked.items()]

    def done(self, token: str) -> None:
        with self._lock:
            self._asked.pop(token, None)


class MemoryJournal:
    """See ``Journal``; keeps every event."""

    def __init__(self) -> None:
        self._events: list[RunEvent] = []
        self._status = Status()

    def add(self, event: RunEvent) -> None:
        self._events.append(event)

    def follow(self) -> MemoryFollower:
        return MemoryFollower(self._events, len(self._events))

    def tell(self, status: Status) -> None:
        self._status = status

    def status(self) -> Status:
        return self._status

    def flush(self) -> None:
        pass


class MemoryFollower:
    """See ``Follower``."""

    def __init__(self, events: list[RunEvent], at: int) -> None:
        self._events = events
        self._at = at

    def new(self) -> Sequence[RunEvent]:
        found = self._events[self._at :]
        self._at += len(found)
        return found


@dataclass(frozen=True, slots=True)
class MemoryHome:
    """All that one topology needs."""

    view: MemoryView = field(default_factory=MemoryView)
    inbox: MemoryInbox = field(default_factory=MemoryInbox)
    journal: MemoryJournal = field(default_factory=MemoryJournal)


_HOMES: dict[str, MemoryHome] = {}


def memory_home(name: str) -> MemoryHome:
    """The home of a name in this process, made on first use."""
    return _HOMES.setdefault(name, MemoryHome())
