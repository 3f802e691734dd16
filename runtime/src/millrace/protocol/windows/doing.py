"""What the machine of windows is doing, as tables: its states, its ways, and what surprises it.

``windows`` follows them and raises where a step is not among ``TRANSITIONS``; the diagram in
docs/windows.md is made from them.

Crash rule: nothing here outlives the process. Whatever a driver was doing, the next one begins as
``Idle`` with the committed record, and what that holds open runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from millrace.protocol import events as e
from millrace.protocol.holes import numbers
from millrace.protocol.membership import RecordWrite
from millrace.protocol.types import AttemptId, CloseMarker, DeadSegment, Replay
from millrace.protocol.windows.decide import Progress, SplitIt
from millrace.protocol.winners import Winners

# --- states


@dataclass(frozen=True, slots=True)
class SealDraft:
    """What is known of a window that may be sealed."""

    winners: Winners | None
    progress: Progress
    dropped: int
    replays: tuple[Replay, ...] = ()
    letters: tuple[Replay, ...] = ()
    dead: DeadSegment | None = None
    carried: bool = False

    @property
    def holes(self) -> int:
        """How many of its numbers carry no record, and have not been set aside as failed."""
        found = numbers(self.winners.holes()) if self.winners is not None else ()
        return sum(1 for sequence in found if sequence not in self.progress.failed)


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is on its way: the committed record says what begins next."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The record that plans the next window is being written."""

    write: RecordWrite


@dataclass(frozen=True, slots=True)
class Running:
    """The engine runs a window attempt."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Judging:
    """The ackers are asked for their verdict on an attempt whose winners are known."""

    attempt: AttemptId
    winners: Winners
    marker: CloseMarker


@dataclass(frozen=True, slots=True)
class WritingLetters:
    """Dead letters are stored under ``name``, behind those of ``after`` where they can be had,
    before the window is sealed with them."""

    draft: SealDraft
    name: str
    after: DeadSegment | None


@dataclass(frozen=True, slots=True)
class Splitting:
    """The sources are asked to cut the window."""

    decision: SplitIt


@dataclass(frozen=True, slots=True)
class Halving:
    """The record with the two halves of a window is being written."""

    write: RecordWrite


@dataclass(frozen=True, slots=True)
class Sealing:
    """The record that seals a window, and may plan the next, is being written."""

    write: RecordWrite


@dataclass(frozen=True, slots=True)
class Noting:
    """A record is being written that neither plans, splits nor seals: what is published, dead
    letters that are taken out, an edit, what ``AtMostOnce`` drops."""

    write: RecordWrite


Doing = Idle | Opening | Running | Judging | WritingLetters | Splitting | Halving | Sealing | Noting
Writing = Opening | Halving | Sealing | Noting

# --- transitions

_SET_ASIDE = "a window is open of which all roots are set aside"
_AWAY = "the members change"

TRANSITIONS: Mapping[tuple[type[Doing], type[Doing]], str] = {
    (Idle, Opening): "input or a replay is due, or all input is drained",
    (Idle, Running): "a window is open",
    (Idle, WritingLetters): f"{_SET_ASIDE}, some as dead letters",
    (Idle, Sealing): _SET_ASIDE,
    (Idle, Noting): "there is something to note",
    (Opening, Idle): f"committed; {_AWAY}",
    (Running, Judging): "it is done, with one winner for each task",
    (Running, Idle): f"it is run again; it is held up; a stop is asked for; {_AWAY}",
    (Running, WritingLetters): "it is done, without tracking, with dead letters",
    (Running, Splitting): "it died too often on evidence about its roots",
    (Running, Sealing): "it is done, without tracking; AtMostOnce drops the window",
    (Judging, Idle): f"it is run again; the ack log is lost; a stop is asked for; {_AWAY}",
    (Judging, WritingLetters): "complete but for roots of which some are dead",
    (Judging, Splitting): "roots fail in every attempt",
    (Judging, Sealing): "complete but for roots that are set aside; AtMostOnce drops the window",
    (WritingLetters, Sealing): "they are stored",
    (WritingLetters, Idle): _AWAY,
    (Splitting, Halving): "it is cut",
    (Splitting, Idle): f"a stop is asked for; {_AWAY}",
    (Halving, Idle): f"committed; {_AWAY}",
    (Sealing, Idle): f"committed; {_AWAY}",
    (Noting, Idle): f"committed; {_AWAY}",
}
"""Every step that the machine may take, and when."""

# --- surprises


class Surprise(Enum):
    """What an event is that a state does not wait for. Only a bug is told of, and loudly.

    ``LATE``: it belongs to something that is over. ``DOUBLED``: it was heard before. ``BUG``:
    nobody was asked for it.
    """

    LATE = "late"
    DOUBLED = "doubled"
    BUG = "bug"


_LATE, _DOUBLED, _BUG = Surprise.LATE, Surprise.DOUBLED, Surprise.BUG
_ALL: tuple[type[Doing], ...] = (
    Idle,
    Opening,
    Running,
    Judging,
    WritingLetters,
    Splitting,
    Halving,
    Sealing,
    Noting,
)
_RUNNING: tuple[type[Doing], ...] = (Running, Judging)

Answer = (
    e.RunDone
    | e.RunDied
    | e.RunFailed
    | e.VerdictGiven
    | e.VerdictLost
    | e.DeadWritten
    | e.SplitDone
    | e.RecordAck
)
"""What is heard of something that the machine has asked for."""

WindowEvent = (
    e.Planned
    | e.PlanFailed
    | e.RunDone
    | e.RunDied
    | e.RunFailed
    | e.VerdictGiven
    | e.VerdictLost
    | e.DeadWritten
    | e.SplitDone
    | e.Published
    | e.PublishFailed
    | e.DeadLetterRequest
    | e.StopAsked
)
"""What the machine of windows is told of."""


def _late_but(*waiting: type[Doing], **others: Surprise) -> dict[type[Doing], Surprise]:
    named = {state.__name__: state for state in _ALL}
    late = {state: _LATE for state in _ALL if state not in waiting}
    return late | {named[name]: why for name, why in others.items()}


SURPRISES: Mapping[type[Answer], Mapping[type[Doing], Surprise]] = {
    e.RunDone: _late_but(Running, Judging=_DOUBLED),
    e.RunDied: _late_but(*_RUNNING),
    e.RunFailed: _late_but(*_RUNNING),
    e.VerdictGiven: _late_but(Judging, Running=_BUG),
    e.VerdictLost: _late_but(Judging, Running=_BUG),
    e.DeadWritten: _late_but(WritingLetters, Sealing=_DOUBLED),
    e.SplitDone: _late_but(Splitting, Halving=_DOUBLED),
    e.RecordAck: _late_but(Opening, Halving, Sealing, Noting),
}
"""For every answer the states that do not wait for it, and what it is there.

What speaks of another attempt than the one that runs is late in any state, and a bug if that
attempt was never begun.
"""
