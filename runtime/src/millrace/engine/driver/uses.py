"""Asks the state servers how full they are, all at once and each for a short time.

That is also how a server that is to end hears that this driver still needs it
(``millrace.pods.state_server.Farewell``): no other that hangs may keep it from being asked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from millrace.errors import StateServerError
from millrace.redisserver import MemoryUse
from millrace.state.client import StateAddress, StateClient

log = logging.getLogger(__name__)

ANSWER_S = 1.0
"""How long an answer is waited for: they are asked again soon."""


class MemoryUses:
    """Connections of its own to the servers of a topology; for one thread at a time."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._clients: dict[StateAddress, StateClient] = {}

    def of(self, addresses: Iterable[StateAddress]) -> dict[str, MemoryUse]:
        """By name, without those that do not answer in time. Whoever is not asked any more is not
        connected to, either."""
        wanted = list(addresses)
        for gone in self._clients.keys() - set(wanted):
            self._clients.pop(gone).close()
        if not wanted:
            return {}
        with ThreadPoolExecutor(len(wanted), "memory") as pool:
            found = zip(wanted, pool.map(self._ask, wanted), strict=True)
            return {address.name: use for address, use in found if use is not None}

    def _ask(self, address: StateAddress) -> MemoryUse | None:
        try:
            client = self._clients.get(address)
            if client is None:
                client = StateClient(address, self._uid, timeout_s=ANSWER_S)
                self._clients[address] = client
            return client.memory()
        except StateServerError as error:
            log.debug("the memory of %s is not known: %s", address.name, error)
            return None
