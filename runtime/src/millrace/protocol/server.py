"""What a state server answers.

Life of a server, with what is in effect in each state::

    (start, new run id) -> Unstamped -- stamp --> Stamped(epoch, execution) -- stamp >= it --> ...
            ^                                        |
            +------------- restart ------------------+

A message for another run id, or under another stamp, changes nothing and is answered
``NotOwner``; a restarted server has no stamp in effect whatever its file holds (rule 5). What a
crash keeps: everything up to the last fsync, and any prefix of the writes after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from millrace.protocol.types import Stamp, Tag

# --- replies


class Reason(str, Enum):
    """Why a server does not take a message (rule 5).

    ``FENCED``: it is under the stamp of a later execution, or of another driver that has the same
    number, as a view that was put back gives it out again. ``STALE_EPOCH``: under that of a later
    view of the same one. ``BEHIND``: its own stamp is the older one.
    """

    RUN_ID = "runId"
    UNSTAMPED = "unstamped"
    FENCED = "fenced"
    STALE_EPOCH = "staleEpoch"
    BEHIND = "behind"

    @property
    def anew(self) -> bool:
        """Whether the server was started anew: its stamp says nothing about the message's."""
        return self in STARTED_ANEW


STARTED_ANEW = frozenset((Reason.RUN_ID, Reason.UNSTAMPED))
"""Reasons of servers that have another life, or none of a stamp in it."""


@dataclass(frozen=True, slots=True)
class Ok:
    """Done."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """The stamp is in effect; ``record`` and ``tag`` are what was stored in that moment."""

    record: bytes | None
    tag: Tag | None


@dataclass(frozen=True, slots=True)
class NotOwner:
    """The message was not for this incarnation or not under its stamp.

    ``current`` is the stamp in effect, if there is one and the run id was right.
    """

    reason: Reason
    current: Stamp | None = None

    @classmethod
    def under(cls, current: Stamp, sent: Stamp) -> NotOwner:
        """By a server under the stamp ``current``, of a message under another one, or under the
        equal one of another life."""
        if current == sent or current.execution > sent.execution:
            return cls(Reason.FENCED, current)
        return cls(Reason.STALE_EPOCH if current > sent else Reason.BEHIND, current)

    @property
    def why(self) -> str:
        """The reason, for messages."""
        if self.current is None or self.reason.anew:
            return "it was started anew"
        if self.reason is Reason.FENCED:
            return f"execution {self.current.execution} of the topology has taken over"
        if self.reason is Reason.STALE_EPOCH:
            return f"the view has changed, to epoch {self.current.epoch}"
        return f"it still is under epoch {self.current.epoch}, execution {self.current.execution}"


@dataclass(frozen=True, slots=True)
class TagTooLow:
    """The stored record's tag is not below the one sent.

    Equal to the one sent: this very write was made before and its acknowledgement was lost.
    """

    current: Tag


@dataclass(frozen=True, slots=True)
class Missing:
    """This server, whose stamp was right, holds no object of that name."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object's content."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Listed:
    """The names of all objects, sorted."""

    names: tuple[str, ...]


OK = Ok()
MISSING = Missing()

StampReply = Stamped | NotOwner
WriteReply = Ok | NotOwner | TagTooLow
PutReply = Ok | NotOwner
GetReply = tuple[Found | Missing, ...] | NotOwner
ListReply = Listed | NotOwner
