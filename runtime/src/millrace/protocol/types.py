"""The immutable values that the protocol is about; no I/O and no behaviour beyond small queries.

Everything here can be written as JSON (``protocol.codec``) and is equal to what is read back.
A value marked ``Json`` belongs to a source or a sink and is never looked into by the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

from pydantic import Field, GetPydanticSchema, PlainSerializer, PlainValidator
from pydantic_core import core_schema

from millrace.ids import NO_WINDOW, Epoch, Execution, Seq, Timeline, WindowAttempt, WindowNumber

Json = Annotated[
    Any,
    GetPydanticSchema(
        # Handed over as it is, without the copy that pydantic makes of what it does not know.
        lambda *_: core_schema.any_schema(
            serialization=core_schema.to_string_ser_schema(when_used="json")
        )
    ),
]


def _from_hex(plain: object) -> int:
    if not isinstance(plain, str):
        raise ValueError("Input should be a bit mask in hex")
    return int(plain, 16)


Mask = Annotated[int, PlainSerializer("{:x}".format), PlainValidator(_from_hex)]
"""Key groups as bits of a number; in documents in hex, since JSON's numbers may be short."""

Sequences = Annotated[frozenset[int], PlainSerializer(sorted)]
"""Sequence numbers of roots; in documents a sorted list."""

FORMAT = 2
"""Version of records, views, envelopes and ack messages; a newer one is refused, an older read.

2: a record says which components it was written for, a replay how long it waits, not until when.
"""


class Guarantee(str, Enum):
    AT_MOST_ONCE = "AtMostOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    EXACTLY_ONCE = "ExactlyOnce"


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """What a server compares a write against (rule 5 to 7)."""

    epoch: Epoch
    execution: Execution


@dataclass(frozen=True, slots=True, order=True)
class Tag:
    """Version of a record, compared in this order (rule 2)."""

    timeline: Timeline
    execution: Execution
    epoch: Epoch
    seq: Seq

    def __str__(self) -> str:
        return f"{self.timeline}.{self.execution}.{self.epoch}.{self.seq}"

    @classmethod
    def read(cls, text: str) -> Tag:
        """The tag that was written so. Raises ``ValueError`` for any other text."""
        timeline, execution, epoch, seq = (int(part) for part in text.split("."))
        return cls(Timeline(timeline), Execution(execution), Epoch(epoch), Seq(seq))


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a state server: its name and the run id of this life.

    ``url`` says where to reach it and ``node`` on which node it is, where there are nodes; neither
    is part of its identity.
    """

    name: str
    run_id: str
    url: str = field(default="", compare=False)
    node: str = field(default="", compare=False)


def nodes_of(members: Iterable[Member]) -> dict[str, str]:
    """The node of each member by its name, as far as it is known."""
    return {member.name: member.node for member in members if member.node}


class Phase(str, Enum):
    CREATING = "creating"
    OPEN = "open"
    MOVING = "moving"


@dataclass(frozen=True, slots=True)
class View:
    """The membership document (rule 1).

    ``last_open`` holds the members of the last *open* view (``from`` in the rules), ``target``
    those the view moves to; in an open view both are equal. ``owners[g]`` names the owners of key
    group ``g``. ``restoring``: a restore has written this view, and is not done. A release that
    knows no restores does not know the field, and refuses such a view: it would begin with nothing.
    ``copies`` is for a moving view how many copies of an object the last open one had, which may be
    another number than it will have; 0 where an older release has not said it.
    """

    uid: str
    timeline: Timeline
    epoch: Epoch
    phase: Phase
    execution: Execution
    last_open: Annotated[tuple[Member, ...], Field(alias="source")]
    target: tuple[Member, ...]
    open_epoch: Epoch
    owners: tuple[tuple[str, ...], ...]
    restoring: bool = False
    copies: int = 0

    def stamp(self) -> Stamp:
        return Stamp(self.epoch, self.execution)

    @property
    def owners_each(self) -> int:
        """How many owners each key group has; all have as many."""
        return min(map(len, self.owners))

    def can_spare_others(self, staying: Iterable[Member], copies: int) -> bool:
        """Whether whoever is to leave may: as many of those that stay are members of the last open
        view as there are to be copies. Who leaves before takes one along that nobody has made
        anew."""
        return sum(member in self.last_open for member in staying) >= copies

    @property
    def log_member(self) -> Member:
        """The server on which the ack log lies."""
        return self.target[0]


@dataclass(frozen=True, slots=True)
class RootRange:
    """Consecutive records of one source partition, in offset order.

    ``partition`` is a 64-bit identity, ``start`` the offset (ordinal) of the first record;
    ``locator`` lets the source find the bytes again.
    """

    source: str
    partition: int
    start: int
    count: int
    locator: Json = None


@dataclass(frozen=True, slots=True)
class Replay:
    """A failed root that waits to be read again, alone in its tree.

    ``number`` is how often it will then have been replayed (1 for the first replay).
    ``delay_s`` is how long it waits from the moment in which a driver finds it in a committed
    record: no clock is trusted across processes, so a restart makes it wait anew. ``alone`` asks
    for a window of its own, for a root that is suspected of killing its worker. Only a dead letter
    has a ``trace``, since all that wait are part of the record. ``window`` is the one that read it
    first, 0 where none is known.
    """

    source: str
    partition: int
    offset: int
    number: int
    delay_s: float
    locator: Json = None
    processor: str = ""
    error: str = ""
    alone: bool = False
    trace: str = ""
    window: WindowNumber = NO_WINDOW


@dataclass(frozen=True, slots=True)
class Intent:
    """The plan of a window: exactly these roots, numbered in this order.

    Sequence numbers run over ``ranges`` first and then over ``replays``. A ``final`` window has
    no roots: all input is drained, and aggregations that emit at the end do so. ``time_ms`` is the
    window's time, the same for every attempt and for both halves of a split: the wall-clock time of
    its plan in milliseconds, never before that of an earlier window; 0 where none is known.
    """

    window: WindowNumber
    ranges: tuple[RootRange, ...]
    replays: tuple[Replay, ...] = ()
    final: bool = False
    time_ms: int = 0

    @property
    def roots(self) -> int:
        return sum(r.count for r in self.ranges) + len(self.replays)


@dataclass(frozen=True, slots=True)
class Segment:
    """One state blob in the chains of the key groups in the bit mask ``groups``.

    A base holds the whole state of its groups, a delta what ``window`` changed. ``digest`` is over
    its bytes, ``index`` over what lies at the end of a large one and lets a part of it be read;
    ``columns`` is over the names and types of its columns, "" where no release has said it.
    ``covers`` is over what a base was made of, where another segment has what ``window`` changed.
    """

    name: str
    window: WindowNumber
    groups: Mask
    base: bool
    rows: int = 0
    size_bytes: int = 0
    digest: str = ""
    index: str = ""
    columns: str = ""
    covers: str = ""


@dataclass(frozen=True, slots=True)
class Staged:
    """Output of one task for one sink, invisible until it is published.

    ``stored``: it is an object, of which every owner must hold a copy until then.
    """

    sink: str
    name: str
    digest: str
    rows: int
    size_bytes: int
    locator: Json = None
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Roots:
    """What became of a window's roots: all of ``intent`` but ``replays`` (set aside, or dropped by
    AtMostOnce) and ``letters`` (dead) are completely processed."""

    intent: Intent
    replays: tuple[Replay, ...]
    letters: tuple[Replay, ...]


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a sealed window shows on the sinks, until its publication is confirmed.

    ``digest`` is over the staged outputs and tells two contents of one window apart. ``roots`` is
    there where a source wants to be told of them, and it is known which were dropped.
    """

    window: WindowNumber
    digest: str
    staged: tuple[Staged, ...]
    roots: Roots | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """The last window that a sink shows, with its digest where the sink knows it."""

    sink: str
    window: WindowNumber
    digest: str = ""


@dataclass(frozen=True, slots=True)
class DeadSegment:
    """An immutable object that holds ``count`` dead letters; those in ``removed`` are gone.

    They are those of ``window``, behind those of windows before it where ``first`` names the object
    that these began with ("": there are none). Each object between the two is how this one begins,
    so that an index in that one is the same in this.
    """

    name: str
    window: WindowNumber
    count: int
    removed: tuple[int, ...] = ()
    first: str = ""

    @property
    def begun(self) -> str:
        """The object that it began with: its own where that has letters of one window alone."""
        return self.first or self.name


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts that live with the record, so that they are exact across crashes."""

    roots: int = 0
    windows: int = 0
    replays: int = 0
    dead: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Cohort:
    """Roots that were read together, from ``window`` on (``protocol.cohorts``).

    ``done`` of the ``roots`` are processed, ``dead`` failed for good; the others are open, wait
    for their replay or were dropped.
    """

    window: WindowNumber
    roots: int
    done: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Components:
    """The components of a topology: name → number of the edit that brought it.

    One that is removed and comes back later has another number, so that nothing which is kept of
    the one ever counts for the other. ``edit`` is the number of the last edit.
    """

    edit: int
    sources: Mapping[str, int]
    processors: Mapping[str, int]
    sinks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """The small truth about a topology, replaced atomically by the seal of each window.

    ``offsets`` is where the next plan starts reading, so a root is: at or behind ``offsets``
    (not yet read), in ``intents`` (open), in ``replays``, in ``dead``, or sealed.
    ``sealed`` is the last sealed window, ``published`` the last one confirmed by every sink;
    ``unpublished`` are those between, in order. ``finished``: the last window was a final one.
    ``cohorts`` are in the order of their windows.
    ``components`` is what the record was last written for (None: as the topology was created,
    all with the number 0); ``since`` holds, for sources that an edit brought, the last window
    before it: dead letters up to there are of another source of that name. ``time_ms`` is the time
    of the window that was planned last. ``dead`` are in the order of their windows, which are no
    others' of ``dead``; ``last_dead`` is the last window of this timeline that had dead letters,
    whether or not they are there still (0: none is known).
    """

    uid: str
    tag: Tag
    sealed: WindowNumber
    offsets: Mapping[str, Json]
    intents: tuple[Intent, ...]
    chains: Mapping[str, tuple[Segment, ...]]
    replays: tuple[Replay, ...]
    dead: tuple[DeadSegment, ...]
    unpublished: tuple[Sealed, ...]
    published: WindowNumber
    totals: Totals = Totals()
    finished: bool = False
    cohorts: tuple[Cohort, ...] = ()
    components: Components | None = None
    since: Mapping[str, WindowNumber] = field(default_factory=dict)
    time_ms: int = 0
    last_dead: WindowNumber = NO_WINDOW


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One run of one window by one execution."""

    execution: Execution
    window: WindowNumber
    attempt: WindowAttempt

    def __str__(self) -> str:
        return f"{self.execution}.{self.window}.{self.attempt}"


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One run by Spark of one partition of one pass, within a window attempt."""

    pass_no: int
    partition: int
    task_attempt: int

    def __str__(self) -> str:
        return f"{self.pass_no}.{self.partition}.{self.task_attempt}"


@dataclass(frozen=True, slots=True)
class FailedRoot:
    """A root that cannot be processed in this attempt, with who says so and why.

    ``trace`` shows the user's own lines that raised. ``unreadable``: nothing of it
    went anywhere, and reading it again gives the same, as of a record that its source cannot decode
    or a step straight behind it cannot evaluate. ``lasting``:
    what it holds is at fault, and it fails alike however often it is replayed, though something of
    it may have gone elsewhere.
    """

    sequence: int
    processor: str
    error: str
    trace: str = ""
    unreadable: bool = False
    lasting: bool = False


class Evidence(str, Enum):
    """What the end of an attempt without results says about the roots of its window.

    ``USER_CODE``: a worker died or stalled in user code on a batch of them, or user code failed
    on a batch as a whole. ``ROW``: an expression could not be evaluated for some row. ``NONE``:
    the engine, a connector or Spark failed, which no root is to blame for.
    """

    NONE = "none"
    USER_CODE = "userCode"
    ROW = "row"


EnclosedAcks = tuple[tuple[int, str], ...]
"""Ack messages that a report and a close marker bring along, where no task writes them to the log:
the slice that each is for, and the message as text. A task does one or the other."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What one task attempt says of itself; it counts only if the task is a winner.

    ``read`` are the tasks whose envelopes it read, ``roots_read`` the (first sequence, count)
    runs that a source task read, ``holes`` those among them that carry no record;
    ``partitions`` the slices of the ack log that it has a message for; ``acks`` are those messages,
    and those of tasks before it, that are not in the log;
    ``combined_failures`` the key groups, by processor, that failed after a combine. ``worked_s``
    is for how many seconds user code, or what parses JSON or computes SQL in its place, had tuples,
    ``took_s`` for how many the task ran, until it had only to tell the ackers.
    """

    task: TaskId
    read: tuple[TaskId, ...] = ()
    roots_read: tuple[tuple[int, int], ...] = ()
    holes: tuple[tuple[int, int], ...] = ()
    partitions: tuple[int, ...] = ()
    segments: tuple[tuple[str, Segment], ...] = ()
    staged: tuple[Staged, ...] = ()
    failed: tuple[FailedRoot, ...] = ()
    combined_failures: tuple[tuple[str, int, str], ...] = ()
    worked_s: float = 0.0
    took_s: float = 0.0
    acks: EnclosedAcks = ()


UNSAID_SLICES = 16
"""Slices of the ack log of an attempt that does not say how many: older releases had no other
number, so this one never changes."""


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """All that the engine needs to run one window attempt.

    ``excluded`` are sequence numbers left out; ``uncombined`` the key groups (bit mask) by
    processor whose tuples travel one by one with their ids, so that a failure finds its roots.
    ``chains`` is the state to start from, ``slices`` how many slices of the ack log it has, which
    whoever announced it there knows. ``learning``: servers learn beside it what there is, which
    bases would make anew.
    """

    id: AttemptId
    stamp: Stamp
    intent: Intent
    excluded: Sequences
    uncombined: Mapping[str, Mask]
    chains: Mapping[str, tuple[Segment, ...]]
    slices: int = UNSAID_SLICES
    learning: bool = False


@dataclass(frozen=True, slots=True)
class CloseMarker:
    """Appended to the ack log when an attempt's winners are known.

    ``winners`` pairs each winner with the slices of the log that it says it has a message for;
    ``acks`` are such messages of an attempt of a single task, where they are short; ``excluded``
    roots are neither seeded nor judged; every other root of ``intent`` is seeded, but for
    ``holes``, which are complete where nothing came of them.
    """

    id: AttemptId
    intent: Intent
    excluded: Sequences
    winners: tuple[tuple[TaskId, tuple[int, ...]], ...]
    roots_read: tuple[tuple[int, int], ...]
    holes: tuple[tuple[int, int], ...] = ()
    acks: EnclosedAcks = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The ackers' answer on one slice, or all of them merged: how many roots are complete,
    which are not (with the processor where the tree broke) and whether the window's own tree is.
    """

    id: AttemptId
    partitions: tuple[int, ...]
    complete: int
    incomplete: tuple[FailedRoot, ...]
    window_complete: bool
