"""The inbox of a driver as a ConfigMap: a few keys for the proposal, one for each request.

Every write sets or removes keys of its own and leaves the others alone, so that operator, command
line and driver need no agreement. A write whose answer is lost is done again by whoever asked: the
same keys with the same content.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from millrace import checked
from millrace.clock import Clock, SystemClock
from millrace.errors import NewerFormatError
from millrace.homes import codec, pods
from millrace.homes.documents import Ask, Nodes, Proposal, Request
from millrace.homes.stores import PendingRequest
from millrace.homes.tuning import Tuning
from millrace.kube.configmaps import ApiRefusedError, ConfigMap

log = logging.getLogger(__name__)

Data = Mapping[str, str]

MOST_REQUESTS_BYTES = (1 << 20) - (1 << 16)
"""What requests may fill of a ConfigMap: the rest is for a proposal, which may grow with as many
members as there may be, and must not wait until a driver takes requests."""

_LOOK_BYTES = 1 << 14
"""After so many of its own a process looks anew what others have put beside them."""


class InboxMap:
    """See ``homes.stores.Inbox``. Tokens are the keys of requests without their prefix.

    A proposal of a newer release, as an operator makes after its upgrade, changes nothing.

    ``look`` gives the data of the ConfigMap; a driver, which looks often, gives one that asks the
    API server only where something may have changed (``kube.watching``).
    """

    def __init__(
        self,
        config_map: ConfigMap,
        look: Callable[[], Data] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._map = config_map
        self._look = look or (lambda: read_data(config_map))
        self._clock = clock or SystemClock()
        self._seen: tuple[str | None, ...] = ()
        self._read: Proposal | None = None
        self._done: set[str] = set()
        self._filled: int | None = None
        self._asked = 0
        """Bytes that lie there, and that were added here since that was looked at."""

    def propose(self, proposal: Proposal) -> None:
        self._map.merge(written(proposal))

    def proposal(self) -> Proposal | None:
        data = self._look()
        texts = texts_of(data)
        if texts != self._seen:
            self._read = self._decoded(data)
            self._seen = texts
        return self._read

    def _decoded(self, data: Data) -> Proposal | None:
        try:
            return proposal_in(data)
        except NewerFormatError as error:
            # The operator is of a newer release, and this driver goes on until it is replaced.
            log.warning(
                "the proposal of ConfigMap %s is left alone, the one before stays in force: %s",
                self._map.name,
                error,
            )
            return self._read
        except checked.DamagedError as error:
            log.warning(
                "the proposal of ConfigMap %s is ignored: it cannot be read (%s)",
                self._map.name,
                error,
            )
            return None

    def ask(self, request: Request) -> str:
        # Tokens sort in the order of asking.
        token = f"{int(self._clock.now_s() * 1e9):020d}-{secrets.token_hex(4)}"
        key, text = pods.REQUEST_PREFIX + token, _text(request)
        if request.action in (Ask.REPLAY, Ask.DROP):  # others come one by one
            self._need(len(key) + len(text))
        self._map.merge({key: text})
        return token

    def _need(self, size: int) -> None:
        """Raises ``ApiRefusedError`` where a request of so many bytes has no room."""

        def lacks() -> bool:
            return (self._filled or 0) + self._asked + size > MOST_REQUESTS_BYTES

        if self._filled is None or self._asked > _LOOK_BYTES or lacks():
            there = read_data(self._map).items()
            self._filled, self._asked = sum(len(k) + len(v.encode()) for k, v in there), 0
        if lacks():
            raise ApiRefusedError(
                f"ConfigMap {self._map.name}: has no room for more requests (it holds "
                f"{self._filled} bytes, and {MOST_REQUESTS_BYTES} are for them) until a driver has "
                "taken some; what was asked for before stays, ask for the rest when one runs"
            )
        self._asked += size

    def requests(self) -> Sequence[PendingRequest]:
        found = []
        for key, text in sorted(self._look().items()):
            if not key.startswith(pods.REQUEST_PREFIX):
                continue
            token = key.removeprefix(pods.REQUEST_PREFIX)
            if token in self._done:
                continue  # what is looked at may lag behind
            try:
                found.append(PendingRequest(token, codec.decode(Request, text)))
            except NewerFormatError as error:
                log.warning("request %s is left alone: %s", token, error)
            except checked.DamagedError as error:
                log.warning("request %s is dropped: %s", token, error)
                self.done(token)
        return found

    def done(self, token: str) -> None:
        key = pods.REQUEST_PREFIX + token
        if key in read_data(self._map):
            self._map.merge({key: None})
        self._done.add(token)


def texts_of(data: Data) -> tuple[str | None, ...]:
    """A proposal as it stands in an inbox, by its keys; None for each that is not there."""
    return tuple(data.get(key) for key in (pods.PROPOSAL, pods.NODES, pods.TUNING))


def written(proposal: Proposal) -> dict[str, str | None]:
    """A proposal as keys of the inbox, to be written at once."""
    nodes, tuning = proposal.nodes, proposal.tuning
    return {
        pods.PROPOSAL: _text(replace(proposal, nodes=None, tuning=None)),
        pods.NODES: None if nodes is None else _text(Nodes(proposal.number, nodes)),
        pods.TUNING: None if tuning is None else _text(tuning),
    }


def proposal_in(data: Data) -> Proposal | None:
    """The proposal in an inbox; nodes of another one are none of its. Raises ``NewerFormatError``,
    ``checked.DamagedError``."""
    text, nodes, tuning = texts_of(data)
    if text is None:
        return None
    proposal = codec.decode(Proposal, text)
    if nodes is not None and (told := codec.decode(Nodes, nodes)).number == proposal.number:
        proposal = replace(proposal, nodes=told.nodes)
    # An operator of the release before this one writes them in the proposal, and leaves the key be.
    known = [] if proposal.tuning is None else [proposal.tuning]
    if tuning is not None:
        known.append(codec.decode(Tuning, tuning))
    return replace(proposal, tuning=max(known, key=lambda one: one.number, default=None))


def read_data(config_map: ConfigMap) -> Data:
    """The data of a ConfigMap, empty where it does not exist. Raises as ``ConfigMap.read``."""
    held = config_map.read()
    return {} if held is None else held.data


def _text(document: object) -> str:
    return json.dumps(codec.encode(document))
