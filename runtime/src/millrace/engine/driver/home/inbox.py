"""What reaches the driver through its inbox: proposals and requests, as events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from millrace.clock import Clock, SystemClock
from millrace.engine.driver.home.newest import Newest
from millrace.engine.driver.letters import DamagedLettersError, decode_letters, replay_of
from millrace.errors import MillraceError
from millrace.homes.documents import Ask, Proposal, Request
from millrace.homes.stores import HomeAwayError, Inbox, PendingRequest
from millrace.homes.tuning import Tuning
from millrace.protocol import events as e
from millrace.protocol.names import LettersObject, read_name, spoken
from millrace.protocol.record import holding, replayable
from millrace.protocol.types import DeadSegment, Record

log = logging.getLogger(__name__)


class Mailbox:
    """Turns an inbox's proposal and requests into events.

    A request is done once the committed record reflects it, so a driver that dies in between
    leaves it to the next one; taking a letter twice changes nothing. ``fetch`` reads an object by
    its name; ``ackers`` is told who is alive; ``snapshots`` is given requests for one, at every
    look until it is done, and calls them done itself; ``waiting`` is told the tokens of all
    requests before that; ``tuned`` is given settings to change to. ``overtaken`` says whether a
    newer driver has begun, which the requests are for then.
    """

    def __init__(
        self,
        inbox: Inbox,
        fetch: Callable[[str], bytes],
        ackers: Callable[[tuple[str, ...]], None],
        snapshots: Callable[[PendingRequest], None] | None = None,
        waiting: Callable[[set[str]], None] = lambda _: None,
        tuned: Callable[[Tuning], None] = lambda _: None,
        overtaken: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self._inbox = inbox
        self._fetch = fetch
        self._ackers = ackers
        self._snapshots = snapshots
        self._all = waiting
        self._tuned = tuned
        self._overtaken = overtaken
        self._seen: Proposal | None = None
        self._newest = Newest(clock or SystemClock())
        self._record: Record | None = None
        self._waiting: dict[str, e.DeadLetterRequest] = {}
        self._stops: list[str] = []

    def look(self) -> Iterator[e.Event]:
        """What is new, one by one. What was given is not given again, so it is to be posted before
        the next is asked for, which may raise ``HomeAwayError``."""
        yield from self._proposals()
        yield from self._new_requests()

    def committed(self, record: Record) -> None:
        """Requests that the record reflects are done."""
        self._record = record
        for token, request in list(self._waiting.items()):
            if self._done(request, record):
                self._inbox.done(token)
                del self._waiting[token]

    def _done(self, request: e.DeadLetterRequest, record: Record) -> bool:
        """Whether nothing is left to do; a letter whose source is gone is never replayed."""
        segment = holding(record, request.segment)
        if segment is None:
            return True
        left = set(request.indexes) - set(segment.removed)
        for index, replay in zip(request.indexes, request.replays, strict=False):
            if index in left and not replayable(record, replay.source, segment.window):
                left.discard(index)
                log.warning(
                    "dead letter %d in %s stays: its source %r is gone",
                    index,
                    spoken(request.segment),
                    replay.source,
                )
        return not left

    def stopped(self) -> None:
        """The driver ends as it was asked to: requests for that are done."""
        if self._stops and self._overtaken():
            return
        for token in self._stops:
            self._inbox.done(token)

    def _proposals(self) -> Iterator[e.Event]:
        proposal = self._inbox.proposal()
        counts = self._newest.counts(proposal)
        if proposal is None or proposal == self._seen or not counts:
            return
        self._seen = proposal
        if proposal.tuning is not None:
            self._tuned(proposal.tuning)
        members = tuple(sorted(proposal.placed(), key=lambda member: member.name))
        if members:
            yield e.MembersSeen(members, proposal.number, proposal.leaving or ())
        # Behind it: the ackers are told through a server, which may be the one that is gone.
        self._ackers(proposal.ackers)

    def _new_requests(self) -> Iterator[e.Event]:
        found = self._inbox.requests()
        self._all({asked.token for asked in found})
        for asked in found:
            if asked.request.action is Ask.STOP and asked.token not in self._stops:
                self._stops.append(asked.token)
                yield e.StopAsked()
        for asked in found:
            if asked.request.action is Ask.STOP or asked.token in self._waiting:
                continue
            if asked.request.action in (Ask.SNAPSHOT, Ask.DELETE_SNAPSHOT):
                if self._snapshots is not None:
                    self._snapshots(asked)
                continue
            if self._record is not None and not _ahead(asked.request.segment, self._record):
                self._take(asked.token, asked.request, self._record)
        yield from list(self._waiting.values())

    def _take(self, token: str, asked: Request, record: Record) -> None:
        """Let a request about letters wait for the record that shows it, or be done at once."""
        request = e.DeadLetterRequest(token, asked.segment, tuple(sorted(set(asked.indexes))), ())
        segment = holding(record, request.segment)
        if segment is None:
            # Taken already, or what is held is that of a snapshot, where it has another name.
            text = "request %s: no dead letters are held in %s; list them anew"
            log.warning(text, token, spoken(request.segment))
        try:
            if asked.action is Ask.REPLAY and segment and not self._done(request, record):
                request = self._with_replays(request, segment)
        except (LookupError, DamagedLettersError) as error:
            log.warning("request %s is dropped: %s", token, error)
            self._finish(token)
        except MillraceError as error:
            log.warning("request %s waits: %s", token, error)
        else:
            if self._done(request, record):
                self._finish(token)
            else:
                self._waiting[token] = request

    def _finish(self, token: str) -> None:
        """One that stays is looked at again; the others do not wait for it."""
        try:
            self._inbox.done(token)
        except HomeAwayError as error:
            log.warning("request %s stays: %s", token, error)

    def _with_replays(
        self, request: e.DeadLetterRequest, segment: DeadSegment
    ) -> e.DeadLetterRequest:
        """With the letters as they are in the object that holds them now. Raises
        ``StateServerError`` while they cannot be read, which may be since the next window has them.
        """
        letters = decode_letters(self._fetch(segment.name))
        replays = tuple(replay_of(letters[i]) for i in request.indexes)
        return replace(request, replays=replays)


def _ahead(segment: str, record: Record) -> bool:
    """Whether letters are of a window that this record does not have yet: of one that is on its
    way, or that only a newer driver knows."""
    name = read_name(segment)
    if not isinstance(name, LettersObject) or name.attempt.execution < record.tag.execution:
        return False
    return name.attempt.window > record.sealed
