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
    """Why a server does not take a message (rule 5)."""

    RUN_ID = "runId"
    STAMP = "stamp"
    UNSTAMPED = "unstamped"


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
