"""What the driver machine is told (events) and what it wants done (actions).

The driver machine has no threads and no I/O: the runtime and the simulator both carry out the
actions and feed the events back. An action may be carried out late, twice or never; an event may
be late or belong to an earlier round. The machine tells them apart by the stamp, sequence
number, window attempt or token that both carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace.errors import ExitCode
from millrace.ids import NO_WINDOW, Execution, Seq, WindowNumber
from millrace.protocol.names import TaskObject, read_name
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    CloseMarker,
    DeadSegment,
    Evidence,
    Intent,
    Json,
    Member,
    Record,
    Replay,
    RootRange,
    Sealed,
    Stamp,
    TaskReport,
    Verdict,
    View,
)

# --- actions


@dataclass(frozen=True, slots=True)
class ReadView:
    """Read the view document; answered by ``ViewRead`` with the same ``token``."""

    token: int = 0


@dataclass(frozen=True, slots=True)
class CasView:
    """Replace the view if its version is still ``expected`` (0: it must not exist)."""

    expected: int
    view: View


@dataclass(frozen=True, slots=True)
class SendStamp:
    """``held``: under this stamp it has answered with a record already."""

    member: Member
    stamp: Stamp
    held: bool = False


@dataclass(frozen=True, slots=True)
class SendRecord:
    """Write a record to one member, durably; answered by ``RecordAck`` with its tag's seq."""

    member: Member
    stamp: Stamp
    record: Record


@dataclass(frozen=True, slots=True)
class CopyObjects:
    """Put every object that ``record`` names on its owners in ``view``, from ``sources``.

    ``learning``: the view is one to come, and windows go on: what is gone meanwhile is passed over.
    """

    stamp: Stamp
    record: Record
    view: View
    sources: tuple[Member, ...]
    learning: bool = False

    @property
    def planned(self) -> View | None:
        """The view to come; None where it has come."""
        return self.view if self.learning else None


@dataclass(frozen=True, slots=True)
class FenceSinks:
    """Make every sink refuse executions below this one, unless one is further than ``record``.

    Marks are looked at before any sink is fenced, since a start that is refused must not raise
    the execution that the sinks serve (``record.behind``).
    """

    execution: Execution
    record: Record


@dataclass(frozen=True, slots=True)
class Plan:
    """Find the next input behind ``offsets``; answered once there is some, or none ever."""

    token: int
    offsets: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Open a window attempt in the ack log."""

    id: AttemptId
    roots: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Open a window attempt in the ack log, though its window is not open yet, and begin with its
    first pass where that may run ahead and pays. A ``Run`` of it follows, which is answered with
    what this met (a log that was away is opened then), or a ``Cancel``.

    ``tracked``: the ackers are to judge it.
    """

    plan: AttemptPlan
    tracked: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Run one window attempt, or what is left of it; answered by ``RunDone`` or ``RunDied``.

    ``prepared``: there was a ``Prepare`` of the same attempt, and so no ``OpenLog``.
    """

    plan: AttemptPlan
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    id: AttemptId


@dataclass(frozen=True, slots=True)
class AskVerdict:
    """Append the close marker; answered by ``VerdictGiven`` or ``VerdictLost``."""

    marker: CloseMarker


@dataclass(frozen=True, slots=True)
class WriteDead:
    """Store dead letters, with their payloads, as one object named ``name``; answered by
    ``DeadWritten``.

    Those of the segment ``after``, where there is one, are put before them, at the indexes that
    they have there; where they cannot be had, ``letters`` are stored alone. What is stored under a
    name is the same however often it is asked for.
    """

    name: str
    stamp: Stamp
    window: WindowNumber
    letters: tuple[Replay, ...]
    after: DeadSegment | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Ask the sources to cut an intent after its first ``at`` roots; answered by ``SplitDone``."""

    intent: Intent
    at: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Show a committed window on its sinks."""

    sealed: Sealed
    execution: Execution


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete, under the stamp, what no committed record needs any more.

    The ack logs of ``attempts`` go, and the objects ``names``. Where ``keep`` is not None every
    other object goes too that is not in ``keep`` and belongs to an ended attempt: one of an older
    execution, of a window up to ``sealed``, or one of ``attempts`` (rule 22). Dead letters belong
    to the end of their window, not to the attempt before it: they may be written while this is on
    its way.
    """

    stamp: Stamp
    sealed: WindowNumber
    names: tuple[str, ...]
    attempts: tuple[AttemptId, ...]
    keep: frozenset[str] | None = None

    def covers(self, name: str) -> bool:
        """Whether the object ``name`` is to be deleted; what nobody here has named is not."""
        if name in self.names:
            return True
        if self.keep is None or name in self.keep:
            return False
        made = read_name(name)
        if made is None:
            return False
        if made.attempt.execution != self.stamp.execution:
            return made.attempt.execution < self.stamp.execution
        if made.attempt.window <= self.sealed:
            return True
        return isinstance(made, TaskObject) and made.attempt in self.attempts


@dataclass(frozen=True, slots=True)
class Wake:
    """Send a ``Tick`` at this time, in seconds of the clock that ``Driver.handle`` is told."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the user; ``kind`` is a stable CamelCase reason, ``server`` the name of the state server
    that is spoken of."""

    kind: str
    text: str
    window: WindowNumber = NO_WINDOW
    warning: bool = False
    server: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """A record is committed (rule 3): report it, and call ``on_ack`` and ``on_fail``."""

    record: Record
    version: int


class StopKind(StrEnum):
    """Why a driver ends; the values are what ``status`` shows as its state.

    ``ENGINE``: the engine, a connector or Spark fails again and again, and nothing is sealed.
    ``BEHIND``: what this driver knows is older than what was committed, or than the servers.
    ``LOST``: no state server has the record, or something that it names, any more.
    ``DEAD_LETTERS``: more roots fail for good than the user allows, and they are not sealed.
    ``FAILED``: anything else that waiting does not mend.
    """

    DRAINED = "drained"
    ASKED = "asked"
    FENCED = "fenced"
    FAILED = "failed"
    ENGINE = "engine"
    BEHIND = "behind"
    LOST = "lost"
    DEAD_LETTERS = "deadLetters"


STOP_CODES: Mapping[StopKind, ExitCode | None] = {
    StopKind.DRAINED: ExitCode.OK,
    StopKind.ASKED: ExitCode.INTERRUPTED,
    StopKind.FENCED: ExitCode.FENCED,
    StopKind.FAILED: None,
    StopKind.ENGINE: ExitCode.ENGINE,
    StopKind.BEHIND: ExitCode.SINK,
    StopKind.LOST: ExitCode.STATE_LOST,
    StopKind.DEAD_LETTERS: ExitCode.TOO_MANY_DEAD,
}
"""What a driver exits with; None: with the code of the error that made it fail. 0 says that all
input is drained: one that was asked to end, by whomever, has not done what it was started for, and
another one follows unless the run itself is to end."""

ORDERLY = (StopKind.DRAINED, StopKind.ASKED, StopKind.FENCED)
"""Ends with which nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End this driver; ``code`` is that of the error, where ``STOP_CODES`` has none."""

    kind: StopKind
    text: str
    code: ExitCode | None = None


Action = (
    ReadView
    | CasView
    | SendStamp
    | SendRecord
    | CopyObjects
    | FenceSinks
    | Plan
    | OpenLog
    | Prepare
    | Run
    | Cancel
    | AskVerdict
    | WriteDead
    | Split
    | Publish
    | Forget
    | Wake
    | Notify
    | Committed
    | Stop
)

# --- events


@dataclass(frozen=True, slots=True)
class ViewRead:
    version: int
    view: View | None
    token: int = 0


@dataclass(frozen=True, slots=True)
class CasDone:
    version: int
    view: View


@dataclass(frozen=True, slots=True)
class CasLost:
    """The view had another version, or the answer was lost: read it again to know."""

    view: View


@dataclass(frozen=True, slots=True)
class Stamped:
    """A member accepted the stamp; ``record`` is what it held in that very moment, ``held`` that of
    the ``SendStamp`` that this answers."""

    member: Member
    stamp: Stamp
    record: Record | None
    held: bool = False


@dataclass(frozen=True, slots=True)
class RecordAck:
    member: Member
    stamp: Stamp
    seq: Seq


TAG = "tag"
"""Reason of a refusal: the record sent was not above the stored one."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A server refuses; ``reason`` is a ``Reason`` or ``TAG``."""

    member: Member
    stamp: Stamp
    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A message to a member was not answered; ``full``: it has no memory left to store it."""

    member: Member
    stamp: Stamp
    reason: str = ""
    full: bool = False


@dataclass(frozen=True, slots=True)
class Copied:
    """``planned``: the view to come that servers were to learn for, as in ``CopyObjects``; None
    for the copy of a view that moves."""

    stamp: Stamp
    planned: View | None = None


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """``unexpected``: not since a server is away or an object is missing; ``lost``: every server
    that may have held an object has answered, and none has it; ``planned`` as in ``Copied``;
    ``full`` is the name of a server that had no room for an object, or ""."""

    stamp: Stamp
    reason: str
    unexpected: bool = False
    lost: bool = False
    planned: View | None = None
    full: str = ""


@dataclass(frozen=True, slots=True)
class SinksFenced:
    """``untold`` are the sinks that cannot say what they show."""

    execution: Execution
    untold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkRefused:
    """A sink will not take this driver's windows; ``fenced`` if a newer execution has it,
    ``behind`` if it shows more than the record knows."""

    text: str
    fenced: bool
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """``ranges`` are the next roots and ``offsets`` lie behind them; drained: no more, ever."""

    token: int
    ranges: tuple[RootRange, ...]
    offsets: Mapping[str, Json]
    drained: bool


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """A source cannot go on (a file shrank); nothing is lost, the user has to act.

    ``code`` is what the driver is to end with; a driver that cannot say it ends as one that failed.
    """

    token: int
    text: str
    code: ExitCode | None = None


@dataclass(frozen=True, slots=True)
class RunDone:
    """``shape[k]`` is the number of partitions of pass k in this run."""

    id: AttemptId
    shape: tuple[int, ...]
    reports: tuple[TaskReport, ...]


@dataclass(frozen=True, slots=True)
class RunDied:
    """``member_lost``: a state server was away or a sink full; the window waits as long as that
    lasts. Any other failure without ``evidence`` is run again a few times and then ends the run.
    ``full`` names a state server that had no memory left for what the attempt wrote, ``away`` one
    that a task did not reach. ``ended``: the driver has ended it itself, for settings that it began
    without; another one follows at once.
    """

    id: AttemptId
    reason: str
    member_lost: bool = False
    evidence: Evidence = Evidence.NONE
    full: str = ""
    ended: bool = False
    away: str = ""


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The attempt cannot be run at all (a source lost its data); the user has to act.

    ``code`` as ``PlanFailed`` has it.
    """

    id: AttemptId
    text: str
    code: ExitCode | None = None


@dataclass(frozen=True, slots=True)
class VerdictGiven:
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class VerdictLost:
    """The ack log of the attempt is gone: it gets a new attempt."""

    id: AttemptId


@dataclass(frozen=True, slots=True)
class DeadWritten:
    """``carried``: the object begins with the letters that were to be put before the others."""

    name: str
    carried: bool = False


@dataclass(frozen=True, slots=True)
class SplitDone:
    """The two halves; window numbers are set by the machine."""

    window: WindowNumber
    first: Intent
    second: Intent


@dataclass(frozen=True, slots=True)
class Published:
    window: WindowNumber


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """A sink is away or full: tried again."""

    window: WindowNumber
    text: str


@dataclass(frozen=True, slots=True)
class MembersSeen:
    """The incarnations of state servers seen alive by the operator or supervisor; ``number`` is
    that of its proposal, if it has one. Those ``leaving`` are alive, too, and are to go once the
    view does without them."""

    members: tuple[Member, ...]
    number: int = 0
    leaving: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadLetterRequest:
    """Take letters out of a dead segment: into the replay queue, or (no replays) for good."""

    token: str
    segment: str
    indexes: tuple[int, ...]
    replays: tuple[Replay, ...]


@dataclass(frozen=True, slots=True)
class StopAsked:
    """End cleanly: seal nothing new, publish what is sealed."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: resend what is unanswered, look at what is due."""


Event = (
    ViewRead
    | CasDone
    | CasLost
    | Stamped
    | RecordAck
    | Refused
    | Unreachable
    | Copied
    | CopyFailed
    | SinksFenced
    | SinkRefused
    | Planned
    | PlanFailed
    | RunDone
    | RunDied
    | RunFailed
    | VerdictGiven
    | VerdictLost
    | DeadWritten
    | SplitDone
    | Published
    | PublishFailed
    | MembersSeen
    | DeadLetterRequest
    | StopAsked
    | Tick
)
