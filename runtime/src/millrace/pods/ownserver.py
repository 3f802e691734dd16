"""A state server of the user's own, as the driver of a pod finds it (``spec.stateServers.url``).

Nobody but the pods of the topology is let in there, so it is the driver that finds out which life
the server is in: what the operator proposes has no members, and the driver adds this one. It waits
before Spark is up for a server that does not answer, refuses the password or lacks a setting, and
tells why: all of that is mended elsewhere, and a driver that ended would only be started again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from millrace.clock import Clock
from millrace.engine.driver.home.journal import figures_before
from millrace.errors import StateServerError
from millrace.homes.documents import (
    SERVER_AWAY,
    Proposal,
    Request,
    RunEvent,
    ServerTrouble,
)
from millrace.homes.stores import Inbox, Journal, PendingRequest
from millrace.protocol.types import Member
from millrace.state.client import StateAddress, StateClient, discover
from millrace.state.own import NAME, own_server
from millrace.topology.model import StateServers

log = logging.getLogger("millrace.driver")

PAUSE_S = 1.0
WATCH_S = 1.0
ANSWER_S = 5.0


class OwnServer:
    """``reach`` once, before all else; then ``member`` and ``password`` from anywhere."""

    def __init__(self, wanted: StateServers, uid: str, journal: Journal, clock: Clock) -> None:
        self._wanted = wanted
        self._uid = uid
        self._journal = journal
        self._clock = clock
        self._address: StateAddress | None = None
        self._told = ""
        self.password: str | None = None

    def reach(self, pause: Callable[[float], None]) -> None:
        """Wait until it answers and has the settings that state needs, then look for new lives of
        it. ``pause`` waits so many seconds, and raises to give up."""
        while self._address is None:
            try:
                self._address = self._ask()
            except StateServerError as error:
                if not error.retryable:
                    raise
                self._tell(str(error))
                pause(PAUSE_S)
        if self._told:
            self._tell("")
        threading.Thread(target=self._watch, name="own server", daemon=True).start()

    def member(self) -> Member:
        """The life of it that was seen last."""
        assert self._address is not None
        return self._address.member()

    @property
    def address(self) -> StateAddress | None:
        """The same with its password; None before it was reached."""
        return self._address

    def look(self) -> None:
        """Find out whether it is in another life; one that is away is where it was."""
        assert self._address is not None
        try:
            found = discover(NAME, self._address.url, self.password, timeout_s=ANSWER_S)
        except StateServerError as error:
            # The driver notices by itself, and waits.
            log.debug("%s", error)
            return
        self._address = found

    def _ask(self) -> StateAddress:
        # Read anew each time: a Secret that is mended comes to the pod while it waits.
        url, self.password = own_server(self._wanted)
        address = discover(NAME, url, self.password, timeout_s=ANSWER_S)
        client = StateClient(address, self._uid, timeout_s=ANSWER_S)
        try:
            client.check_settings()
        finally:
            client.close()
        return address

    def _tell(self, why: str) -> None:
        """What is in the way from now on; nothing where it is empty."""
        if why == self._told:
            return
        self._told = why
        kind, text = "StateServerBack", f"state server {NAME} answers"
        if why:
            kind, text = SERVER_AWAY, f"{why}; the driver waits for it"
        log.log(logging.WARNING if why else logging.INFO, "%s", text)
        now_s = self._clock.now_s()
        self._journal.add(RunEvent(now_s, kind, text, warning=bool(why)))
        troubles = (ServerTrouble(NAME, kind, text),) if why else None
        before = figures_before(self._journal, self._uid)
        told = replace(before, state="starting", troubles=troubles, updated=now_s)
        self._journal.tell(told)

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(WATCH_S):
            try:
                self.look()
            except Exception:
                # The boundary of a thread: the next look may find it.
                log.exception("looking for the state server")


class OwnServerInbox:
    """An inbox (``homes.stores.Inbox``) whose proposals have that server for their one member."""

    def __init__(self, inbox: Inbox, server: OwnServer) -> None:
        self._inbox = inbox
        self._server = server

    def propose(self, proposal: Proposal) -> None:
        self._inbox.propose(proposal)

    def proposal(self) -> Proposal | None:
        found = self._inbox.proposal()
        if found is None:
            return None
        return replace(found, members=(self._server.member(),), nodes=None, leaving=None)

    def ask(self, request: Request) -> str:
        return self._inbox.ask(request)

    def requests(self) -> Sequence[PendingRequest]:
        return self._inbox.requests()

    def done(self, token: str) -> None:
        self._inbox.done(token)
