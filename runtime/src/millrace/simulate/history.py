"""What really happened in a run, told by the simulated world and never by the driver's counters.

Entries are handed to whoever listens for their type at the moment they happen; with ``keep``
they are remembered, too, for a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millrace.protocol import events as e
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    CloseMarker,
    Member,
    Record,
    Replay,
    Sealed,
    Stamp,
    TaskId,
    Verdict,
    View,
)
from millrace.simulate.parts.workload import Root


class ViolationError(Exception):
    """An invariant does not hold. ``rule`` names it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


@dataclass(frozen=True, slots=True)
class Row:
    """The effect of one tuple: the ``ordinal``-th of ``count`` children of a root.

    ``salt`` tells one processing from another where output is not deterministic; ``place`` is
    its position in its key's state (-1 where there is none).
    """

    root: Root
    ordinal: int
    count: int
    salt: str
    key: str
    place: int = -1


StateContent = Mapping[int, Mapping[str, tuple[Row, ...]]]
"""Content of a state object: key group → key → rows, in order."""

Rows = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class ViewChanged:
    version: int
    view: View


@dataclass(frozen=True, slots=True)
class ServerLeft:
    """A server that was to leave is ended, and what it held is deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class CopiesAsked:
    """An edit asks for so many copies of every object."""

    copies: int


@dataclass(frozen=True, slots=True)
class DriverStarted:
    number: int


@dataclass(frozen=True, slots=True)
class StandsBy:
    """A driver life is ready, for when another one is gone."""

    number: int


@dataclass(frozen=True, slots=True)
class TakesOver:
    """It was told that the other one is gone."""

    number: int


@dataclass(frozen=True, slots=True)
class DriverGone:
    """``how`` is killed, frozen, woken or the kind of its ``Stop``."""

    number: int
    how: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """A driver life believes that an execution is its own."""

    number: int
    execution: int


@dataclass(frozen=True, slots=True)
class Acted:
    """A driver life has carried out an action."""

    number: int
    execution: int
    action: e.Action


@dataclass(frozen=True, slots=True)
class CopyBroken:
    """A copy of a driver life has broken off, since a server gave no answer."""

    number: int
    member: Member
    action: e.CopyObjects


@dataclass(frozen=True, slots=True)
class CopyEnded:
    """A copy of a driver life has come to its end."""

    number: int


@dataclass(frozen=True, slots=True)
class ServerStamped:
    member: Member
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """A server has taken a record, durably, and is about to acknowledge it."""

    member: Member
    stamp: Stamp
    record: Record


@dataclass(frozen=True, slots=True)
class ObjectsPut:
    member: Member
    stamp: Stamp
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObjectsDeleted:
    member: Member
    stamp: Stamp
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerGone:
    member: Member


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot counts from now on: of this record, with these objects."""

    record: Record
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class StateGone:
    """These servers have lost what they held, all copies of something among it."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore has opened a view of a new timeline, with this record as its first."""

    record: Record
    view: View


@dataclass(frozen=True, slots=True)
class Commit:
    """A record has become final (rule 3); ``view`` is the open view that it is committed under."""

    before: Record | None
    after: Record
    view: View


@dataclass(slots=True)
class TaskFacts:
    """What one successful task attempt truly did, by root sequence number.

    ``tuples`` counts, for each tuple that left or reached the task, emissions minus processings;
    the key is (sequence number or None for the window's own tree, edge, what identifies it).
    ``trees`` holds the tracking ids of the roots that it read, ``appended`` the slices that it
    wrote to with the life of the log, ``misled`` those that first got a message for another one,
    ``enclosed`` those whose message is in its report.
    """

    task: TaskId
    read: tuple[TaskId, ...]
    trees: dict[int, int] = field(default_factory=dict)
    tuples: dict[tuple[int | None, str, object], int] = field(default_factory=dict)
    appended: dict[int, int] = field(default_factory=dict)
    misled: set[int] = field(default_factory=set)
    enclosed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class AttemptFacts:
    """What one window attempt truly did; ``winners`` once it has ended."""

    plan: AttemptPlan
    tasks: dict[TaskId, TaskFacts] = field(default_factory=dict)
    winners: tuple[TaskId, ...] | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """An acker has judged one slice, as it is in this ``life`` of the log."""

    acker: str
    marker: CloseMarker
    verdict: Verdict
    life: int


@dataclass(frozen=True, slots=True)
class AttemptForgotten:
    """The log of an attempt is deleted by its driver; what is said of it no longer counts."""

    id: AttemptId


@dataclass(frozen=True, slots=True)
class SinkFenced:
    sink: str
    execution: int


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of a window has become visible on a sink."""

    sink: str
    sealed: Sealed
    name: str
    digest: str
    rows: Rows
    execution: int


@dataclass(frozen=True, slots=True)
class Retracted:
    """A sink shows nothing any more of what came behind a window."""

    sink: str
    window: int


@dataclass(frozen=True, slots=True)
class SinkConfirmed:
    """A sink holds all of a window, durably."""

    sink: str
    window: int
    execution: int


@dataclass(frozen=True, slots=True)
class LettersTaken:
    """The user has asked for dead letters to be replayed or, without replays, dropped."""

    request: e.DeadLetterRequest
    letters: tuple[Replay, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault of the simulation may make these roots incomplete in this attempt."""

    attempt: AttemptId
    roots: tuple[Root, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """The engine fails this attempt at its end."""

    plan: AttemptPlan


@dataclass(frozen=True, slots=True)
class Telling:
    """An attempt has ended in a way that says something about its roots."""

    plan: AttemptPlan


@dataclass(frozen=True, slots=True)
class Note:
    """Told for the trace alone."""

    text: str


Entry = object
Listener = Callable[..., None]


class History:
    """Hands entries out; ``contents`` maps the names of objects and staged outputs to what they
    hold (names are unique, contents never change)."""

    def __init__(self, trace: Callable[[object], None] | None = None) -> None:
        self.contents: dict[str, object] = {}
        self.attempts: dict[AttemptId, AttemptFacts] = {}
        self.tracing = trace is not None
        self.muted = False
        """Nobody is told of what happens now, which is undone later, but of what the user asks."""
        self._trace = trace
        self._listeners: dict[type, list[Listener]] = {}

    def listen(self, kind: type, listener: Listener) -> None:
        self._listeners.setdefault(kind, []).append(listener)

    def add(self, entry: Entry) -> None:
        if self._trace is not None:
            self._trace(entry)
        if self.muted and not isinstance(entry, LettersTaken):
            return
        for listener in self._listeners.get(type(entry), ()):
            listener(entry)

    def state(self, name: str) -> StateContent:
        return self.contents[name]  # type: ignore[return-value]

    def rows(self, name: str) -> Rows:
        return self.contents[name]  # type: ignore[return-value]

    def letters(self, name: str) -> tuple[Replay, ...]:
        return self.contents[name]  # type: ignore[return-value]
