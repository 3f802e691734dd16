"""What the driver needs of the place that its topology lives in.

On one machine that place is the work folder (``state.viewfile``, ``state.inboxfiles``,
``state.journalfiles``), on a cluster ConfigMaps (``kube``). ``homes.memory`` keeps all in the
memory of one process. Every implementation runs the checks of ``millrace.testing.homes``, and
``homes.settings`` says to a driver which it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.errors import MillraceError
from millrace.homes.documents import Proposal, Request, RunEvent, Status
from millrace.protocol.types import View


class HomeAwayError(MillraceError):
    """A store that does not answer. Nothing is known of what was asked of it: it may have been
    done, may be done later, or never. ``status`` is that of HTTP where it answered no more than
    that."""

    retryable = True

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ViewStore(Protocol):
    """A linearizable store for the view of one topology; safe for several threads and processes.

    Whatever one ``cas`` wrote, every ``read`` that begins after its return sees, or what a later
    ``cas`` wrote. Both may block: callers with an event loop call them elsewhere.
    """

    def read(self) -> tuple[int, View | None]:
        """Version and view; (0, None) before the topology exists.

        Versions only rise, and no version ever belongs to two views. Raises ``HomeAwayError``,
        ``ProtocolError`` where what is stored is no view, and ``NewerFormatError``.
        """
        ...

    def cas(self, expected: int, view: View) -> int | None:
        """Replace the view if its version is ``expected``; the new version, or None if it is not.

        All or nothing, and durable on return. Of several with the same ``expected`` at most one
        gets a version. Raises as ``read`` does; after ``HomeAwayError`` the view may have been
        replaced or not, which only a ``read`` tells. That read may find a view with these very
        words that another wrote: who needs to know puts something of its own into the view.
        """
        ...


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request and the ``token`` that it is known by."""

    token: str
    request: Request


class Inbox(Protocol):
    """What is said to the driver of one topology; safe for several threads and processes.

    Every method may block and raise ``HomeAwayError``.
    """

    def propose(self, proposal: Proposal) -> None:
        """Replace the proposal: only the last one counts. Readers see it whole or not at all."""
        ...

    def proposal(self) -> Proposal | None:
        """The last proposal, None where there is none, or one that cannot be read: the proposer
        writes the next one whole. Raises ``NewerFormatError``."""
        ...

    def ask(self, request: Request) -> str:
        """Leave a request, durably; its token. Requests are read in the order of asking."""
        ...

    def requests(self) -> Sequence[PendingRequest]:
        """All requests that are not done. What cannot be read is dropped with a warning; what a
        newer release wrote stays and is left out, with a warning too."""
        ...

    def done(self, token: str) -> None:
        """Forget a request; one that is not there is no error.

        Until then it stays, whoever dies: a driver calls this when what it committed shows the
        request, so that it may be told of one twice.
        """
        ...


class Follower(Protocol):
    """Reads the events of a journal from one moment on; used by one thread."""

    def new(self) -> Sequence[RunEvent]:
        """Events since the last call, in the order in which they were added."""
        ...


class Journal(Protocol):
    """What is told of one topology: events, and the driver's figures. Safe for several threads
    and processes.

    Nothing follows from a journal, so nothing waits for it: a store that is away or full loses
    what it is told, with a line in the log, and raises nothing. ``add`` and ``tell`` return within
    the time of a write to a local disk; a store that is further away needs a thread of its own.
    """

    def add(self, event: RunEvent) -> None:
        """Append an event. Old ones may be dropped to keep the journal small."""
        ...

    def follow(self) -> Follower:
        """Events that are added from now on."""
        ...

    def tell(self, status: Status) -> None:
        """Replace the figures; readers see old or new ones whole."""
        ...

    def status(self) -> Status:
        """The last figures, all None where nothing can be believed. Raises ``NewerFormatError``."""
        ...

    def flush(self) -> None:
        """Before the process ends: what was told and not put down yet is, if that can be done
        within seconds."""
        ...
