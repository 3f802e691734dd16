"""All state servers of a view as one store: objects on their owners, the record on everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from millrace.errors import StateServerError
from millrace.ids import name_id
from millrace.protocol.server import Found, NotOwner, Reason
from millrace.protocol.types import Stamp, View
from millrace.state.client import StateAddress, StateClient, connect
from millrace.state.errors import NotOwnerError, ObjectMissingError, UnreachableError

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class StateAccess:
    """What a task needs to reach the state servers; travels by pickle.

    ``owners[g]`` names the owners of key group ``g``, nearest choice first.
    """

    uid: str
    stamp: Stamp
    addresses: tuple[StateAddress, ...]
    owners: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, view: View, passwords: Mapping[str, str | None] | None = None) -> StateAccess:
        """Access under a view; ``passwords`` by member name."""
        known = passwords or {}
        addresses = (StateAddress.of(m, known.get(m.name)) for m in view.target)
        return cls(view.uid, view.stamp(), tuple(addresses), view.owners)


@dataclass(frozen=True, slots=True)
class StateObject:
    """An immutable object for the owners of the key groups in the bit mask ``groups``.

    Without groups its name decides which key group it goes with.
    """

    name: str
    data: bytes
    groups: int = 0


class StateServers:
    """Reads and writes under one view; safe for use by several threads.

    Raises ``NotOwnerError``, ``UnreachableError``, ``OutOfMemoryError`` and
    ``ObjectMissingError``; which servers took a write that failed is not known.
    """

    def __init__(
        self,
        access: StateAccess,
        client: Callable[[StateAddress, str], StateClient] = connect,
    ) -> None:
        self.access = access
        self.clients = {a.name: client(a, access.uid) for a in access.addresses}
        self._pool: ThreadPoolExecutor | None = None

    def owners(self, name: str, groups: int = 0) -> tuple[str, ...]:
        """Names of the servers that keep an object."""
        return owners_of(self.access.owners, name, groups)

    def put(self, objects: Iterable[StateObject]) -> None:
        """Store objects; returns when all owners of each have acknowledged (rule 18)."""
        shares: dict[str, list[tuple[str, bytes]]] = {}
        for one in objects:
            for owner in self.owners(one.name, one.groups):
                shares.setdefault(owner, []).append((one.name, one.data))

        def send(share: tuple[str, list[tuple[str, bytes]]]) -> None:
            owner, held = share
            _accepted(owner, self._client(owner).put(self.access.stamp, held))

        self._each(send, list(shares.items()))

    def get(self, wanted: Sequence[tuple[str, int]]) -> list[bytes]:
        """Contents of (name, groups), each from the first owner that has it."""
        found: dict[str, bytes] = {}
        pending = {name: list(self.owners(name, groups)) for name, groups in wanted}
        last: StateServerError | None = None
        while pending:
            shares: dict[str, list[str]] = {}
            for name, owners in pending.items():
                if not owners:
                    raise last or ObjectMissingError(
                        f"object {name} is on none of its owners; its state server's file was "
                        "replaced, or it was deleted while still needed"
                    )
                shares.setdefault(owners.pop(0), []).append(name)
            for share, data, error in self._each(self._get_share, list(shares.items())):
                last = error or last
                for name, content in zip(share, data, strict=False):
                    if isinstance(content, Found):
                        found[name] = content.data
                        del pending[name]
        return [found[name] for name, _ in wanted]

    def close(self) -> None:
        """End helper threads; connections stay with the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    # -- helpers

    def _client(self, name: str) -> StateClient:
        client = self.clients.get(name)
        if client is None:
            raise StateServerError(
                f"the view places key groups on {name}, which is none of its members "
                f"({', '.join(self.clients)})"
            )
        return client

    def _get_share(
        self, share: tuple[str, list[str]]
    ) -> tuple[list[str], Sequence[object], StateServerError | None]:
        owner, names = share
        try:
            reply = self._client(owner).get(self.access.stamp, names)
        except UnreachableError as error:
            return names, (), error
        if isinstance(reply, NotOwner):
            if reply.reason is Reason.STAMP:
                raise NotOwnerError(owner, reply)
            return names, (), NotOwnerError(owner, reply)
        return names, reply, None

    def _each(self, function: Callable[[A], B], items: list[A]) -> list[B]:
        """Apply to all items, beside each other where there are several servers."""
        if len(items) <= 1:
            return [function(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.clients), "state-servers")
        futures = [self._pool.submit(function, item) for item in items]
        return [future.result() for future in futures]


@lru_cache(maxsize=4096)
def owners_of(owners: tuple[tuple[str, ...], ...], name: str, groups: int) -> tuple[str, ...]:
    """Owners of an object, in order of preference and without repetition."""
    if groups == 0:
        return owners[name_id(name) % len(owners)]
    chosen: dict[str, None] = {}
    group = 0
    while groups:
        if groups & 1:
            chosen.update(dict.fromkeys(owners[group]))
        groups >>= 1
        group += 1
    return tuple(chosen)


def _accepted(server: str, reply: object) -> None:
    if isinstance(reply, NotOwner):
        raise NotOwnerError(server, reply)
