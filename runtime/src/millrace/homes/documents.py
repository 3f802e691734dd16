"""What processes of a run tell each other, as documents: each is defined here and nowhere else.

===================  =====================  ==================================================
document             written by             read by
===================  =====================  ==================================================
``Proposal``         supervisor, operator   the driver
``Request``          the command line       the driver
``Scale``            the command line       the supervisor
``EditAsked``        the command line       the supervisor
``Status``           the driver             the command line, supervisor, operator
``RunEvent``         driver and supervisor  the command line, operator
``ProcessTable``     the supervisor         the command line
===================  =====================  ==================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, PlainSerializer

from millrace.homes.codec import STRICT, decode
from millrace.homes.tuning import Tuning
from millrace.protocol.types import Member, Totals

Index = Annotated[int, Field(ge=0)]


def _readable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


ForPeople = Annotated[str, PlainSerializer(_readable)]
"""A text that may repeat whatever was found, such as the name of a file that is not UTF-8: what no
encoding takes is written out, since a document that has it could not be read."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """State servers and ackers seen alive: incarnations, and names. Whoever wants to know that the
    driver follows this one (``Status.follows``) gives it a ``number`` above that of the last.
    ``nodes`` are pairs of a member's name and the node that it is on, where there are nodes: the
    owners of a key group are chosen on different ones. ``tuning`` are settings that the driver
    takes if they are newer than its own. On a cluster both are written apart (``Nodes``,
    ``Tuning``): a driver of a release that knows nothing of them reads what concerns it.

    Those ``leaving`` are alive, too, and end once the view is open without them; None for nobody,
    for the same reason."""

    __pydantic_config__ = STRICT

    members: tuple[Member, ...]
    ackers: tuple[str, ...]
    number: Index = 0
    nodes: tuple[tuple[str, str], ...] | None = None
    leaving: tuple[Member, ...] | None = None
    tuning: Tuning | None = None

    def placed(self) -> tuple[Member, ...]:
        """The members, each with its node."""
        nodes = dict(self.nodes or ())
        return tuple(replace(m, node=nodes.get(m.name, "")) for m in self.members)


@dataclass(frozen=True, slots=True)
class Nodes:
    """``Proposal.nodes`` of the proposal ``number``."""

    __pydantic_config__ = STRICT

    number: Index
    nodes: tuple[tuple[str, str], ...]


class Ask(StrEnum):
    """What can be asked of a driver."""

    REPLAY = "replay"
    DROP = "drop"
    STOP = "stop"
    SNAPSHOT = "snapshot"
    DELETE_SNAPSHOT = "deleteSnapshot"


@dataclass(frozen=True, slots=True)
class Request:
    """``REPLAY`` and ``DROP`` are about letters of one object of dead letters; ``STOP`` ends the
    driver behind what is sealed, and names nothing. ``SNAPSHOT`` takes one called ``name``, in the
    place ``to`` or where the topology keeps its own; ``DELETE_SNAPSHOT`` deletes one that was taken
    of this life of the topology, for the resource that the token names or by the topology itself.

    Where ``answered`` is set the driver answers in its figures (``Answer``), and whoever asked
    takes the request out of the inbox once it has read that; else the driver does."""

    __pydantic_config__ = STRICT

    action: Ask
    segment: str = ""
    indexes: tuple[Index, ...] = ()
    name: str | None = None
    to: str | None = None
    answered: bool | None = None

    def __post_init__(self) -> None:
        if self.action in (Ask.REPLAY, Ask.DROP) and not self.segment:
            raise ValueError(f"to {self.action} needs a segment")
        if self.action in (Ask.SNAPSHOT, Ask.DELETE_SNAPSHOT) and not self.name:
            raise ValueError("a snapshot needs a name")


_DELETES = "delete-"

_LONGEST = 80
"""Characters of a resource's name that its snapshot is called by."""


def take_token(uid: str) -> str:
    """Of the request that takes the snapshot of a TopologySnapshot."""
    return f"snapshot-{uid}"


def delete_token(uid: str) -> str:
    """Of the request that deletes it."""
    return f"{_DELETES}{uid}"


def deletes_of(token: str) -> str:
    """The TopologySnapshot of a request that deletes."""
    return token.removeprefix(_DELETES)


def named_for(name: str, uid: str) -> str:
    """What the snapshot of a TopologySnapshot is called: nobody else's, also where the resource is
    made anew under its name, or another namespace has the same place."""
    return f"{name[:_LONGEST]}{_named_end(uid)}"


def is_named_for(snapshot: str, uid: str) -> bool:
    """Whether a snapshot is called as one of this resource is."""
    return snapshot.endswith(_named_end(uid))


def may_be_of(snapshot: str, name: str) -> bool:
    """Whether a snapshot is called as that of a resource ``name`` is, of whatever uid, or as one
    that a topology takes by itself, whose resource has the same name."""
    return snapshot == name or snapshot[: -len(_named_end("0" * 8))] == name[:_LONGEST]


def _named_end(uid: str) -> str:
    return f"-{uid[:8]}"


@dataclass(frozen=True, slots=True)
class Scale:
    """How many processes a run is to have, until it ends; None is as in the topology's file.

    A mark tells one asking from another for the same number; a number without one is always new.
    """

    __pydantic_config__ = STRICT

    state_servers: Index | None = None
    ackers: Index | None = None
    state_servers_mark: str | None = field(default=None, compare=False)
    ackers_mark: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EditAsked:
    """A topology that a run is to go on with; the mark tells one asking from another for the
    same."""

    __pydantic_config__ = STRICT

    topology: Mapping[str, Any]
    mark: str


@dataclass(frozen=True, slots=True)
class RunningWindow:
    """A window attempt under way; ``since`` is wall-clock time in seconds."""

    __pydantic_config__ = STRICT

    number: int
    attempt: int
    roots: int
    since: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from a window's first record to its publication."""

    __pydantic_config__ = STRICT

    window: int
    open_to_published_s: float


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """How much memory a state server uses, and may use (0: any); ``full``: it refused what a window
    wrote, which waits."""

    __pydantic_config__ = STRICT

    name: str
    used_bytes: int
    limit_bytes: int
    full: bool = False


SERVER_AWAY, SERVER_FULL = "StateServerAway", "StateServerFull"
SERVER_LEFT_OUT = "StateServerLeftOut"
SERVER_TROUBLES = frozenset({SERVER_AWAY, SERVER_FULL, SERVER_LEFT_OUT})
"""Kinds of events that tell of a state server which is of no use from then on."""


@dataclass(frozen=True, slots=True)
class ServerTrouble:
    """Why the state server ``name`` is of no use to the driver; ``kind`` is one of
    ``SERVER_TROUBLES``, that of the event which has told it."""

    __pydantic_config__ = STRICT

    name: str
    kind: str
    text: ForPeople


class Outcome(StrEnum):
    """What became of a request about a snapshot."""

    TAKEN = "taken"
    DELETED = "deleted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot that a topology has taken by itself; ``created`` is wall-clock time in seconds."""

    __pydantic_config__ = STRICT

    name: str
    window: int
    created: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of the request ``token``: of one that was taken the snapshot and its ``place``,
    of one that failed the reason in ``text``."""

    __pydantic_config__ = STRICT

    token: str
    outcome: Outcome
    snapshot: KeptSnapshot | None = None
    place: str = ""
    text: ForPeople = ""


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """``kept`` are the newest of those that the topology has taken by itself, in ``place``, the
    oldest first; None while that is not known. ``answers`` are those to requests that are still in
    the inbox."""

    __pydantic_config__ = STRICT

    place: str
    kept: tuple[KeptSnapshot, ...] | None = None
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class AckerAdvice:
    """Where there are ``of`` ackers, the load asks for ``wanted``."""

    __pydantic_config__ = STRICT

    of: Index
    wanted: Index


@dataclass(frozen=True, slots=True)
class Status:
    """A driver's figures; ``None`` is what is not known (yet). ``updated`` is wall-clock time.

    ``follows``: number of a proposal; whatever view this driver makes from now on comes of that one
    or a later one. None while that cannot be said. ``troubles`` are those of state servers,
    ``refused`` why the cluster takes no pod of an executor, where it has not for a while.
    """

    __pydantic_config__ = STRICT

    pid: int | None = None
    state: str | None = None
    spark: str | None = None
    reason: ForPeople | None = None
    uid: str | None = None
    execution: int | None = None
    epoch: int | None = None
    phase: str | None = None
    members: tuple[str, ...] | None = None
    sealed: int | None = None
    published: int | None = None
    window: RunningWindow | None = None
    totals: Totals | None = None
    pending_replays: int | None = None
    dead_letters: int | None = None
    lag_records: int | None = None
    roots_per_s: float | None = None
    timings: tuple[Timing, ...] | None = None
    updated: float | None = None
    memory: tuple[ServerMemory, ...] | None = None
    follows: int | None = None
    snapshots: SnapshotFigures | None = None
    ackers: AckerAdvice | None = None
    executors: Index | None = None
    troubles: tuple[ServerTrouble, ...] | None = None
    refused: ForPeople | None = None

    @property
    def own(self) -> bool:
        """Whether this driver has read a record: before that it repeats what the one before had
        sealed and published."""
        return self.totals is not None

    @property
    def whole(self) -> bool:
        """Whether what comes with a record is there all together, or not at all."""
        committed = (
            *(self.execution, self.epoch, self.phase, self.sealed, self.published),
            *(self.pending_replays, self.dead_letters),
        )
        return not self.own or None not in committed


@dataclass(frozen=True, slots=True)
class RunEvent:
    """``time`` is wall-clock time in seconds, ``kind`` a stable CamelCase reason."""

    __pydantic_config__ = STRICT

    time: float
    kind: str
    text: ForPeople
    window: int = 0
    warning: bool = False


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process that the supervisor keeps alive. ``ticks`` is its start in clock ticks since boot,
    ``guard`` the pid of its guard or 0, ``started`` wall-clock time in seconds."""

    __pydantic_config__ = STRICT

    role: str
    name: str
    pid: int
    ticks: int
    guard: int = 0
    started: float = 0.0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """The supervisor itself and its processes."""

    __pydantic_config__ = STRICT

    processes: tuple[ProcessRow, ...] = ()


def decode_processes(data: bytes) -> ProcessTable:
    """A process table of any format: format 1 was a bare list. Errors as ``codec.decode``."""
    if data.lstrip().startswith(b"["):
        data = b'{"processes":%b}' % data
    return decode(ProcessTable, data)
