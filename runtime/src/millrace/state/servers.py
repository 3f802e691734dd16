"""All state servers of a view as one store: objects on their owners, the record on everybody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from millrace.errors import StateServerError
from millrace.ids import name_id
from millrace.protocol.server import Found, NotOwner
from millrace.protocol.types import Stamp, View, nodes_of
from millrace.state import messages
from millrace.state.client import StateAddress, StateClient, connect
from millrace.state.errors import NotOwnerError, ObjectMissingError, UnreachableError

log = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")

_Answer = tuple[list[int], Sequence[object], StateServerError | None]
"""Places of parts among those that are wanted, what a server said of each, and what went wrong."""


@dataclass(frozen=True, slots=True)
class StateAccess:
    """What a task needs to reach the state servers; travels by pickle.

    ``owners[g]`` names the owners of key group ``g``; ``nodes`` are pairs of a member's name and
    the node that it is on, as far as that is known.
    """

    uid: str
    stamp: Stamp
    addresses: tuple[StateAddress, ...]
    owners: tuple[tuple[str, ...], ...]
    nodes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, view: View, passwords: Mapping[str, str | None] | None = None) -> StateAccess:
        """Access under a view; ``passwords`` by member name."""
        known = passwords or {}
        addresses = tuple(StateAddress.of(m, known.get(m.name)) for m in view.target)
        nodes = tuple(nodes_of(view.target).items())
        return cls(view.uid, view.stamp(), addresses, view.owners, nodes)


@dataclass(frozen=True, slots=True)
class StateObject:
    """An immutable object for the owners of the key groups in the bit mask ``groups``.

    Without groups its name decides which key group it goes with.
    """

    name: str
    data: bytes
    groups: int = 0


WHOLE = 1 << 40
"""Larger than any object, in bytes."""


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """``size`` bytes of an object from ``start`` on, or fewer where it ends; ``groups`` as it was
    stored. ``is_intact`` says whether they are as they were."""

    name: str
    groups: int = 0
    start: int = 0
    size: int = WHOLE
    is_intact: Callable[[bytes], bool] = lambda _: True


class StateServers:
    """Reads and writes under one view; safe for use by several threads. Of the owners of an object
    those on the ``node`` of this process are asked first.

    Raises ``NotOwnerError``, ``UnreachableError``, ``OutOfMemoryError`` and
    ``ObjectMissingError``; which servers took a write that failed is not known.
    """

    def __init__(
        self,
        access: StateAccess,
        client: Callable[[StateAddress, str], StateClient] = connect,
        node: str | None = None,
    ) -> None:
        self.access = access
        self._beside = {name for name, on in access.nodes if on == node}
        self._copied = any(len(group) > 1 for group in access.owners)
        self.clients = {a.name: client(a, access.uid) for a in access.addresses}
        self._pool: ThreadPoolExecutor | None = None

    def owners(self, name: str, groups: int = 0) -> tuple[str, ...]:
        """Names of the servers that keep an object."""
        return owners_of(self.access.owners, name, groups)

    def put(self, objects: Iterable[StateObject], *, when_full: bool = False) -> None:
        """Store objects; returns when all owners of each have acknowledged (rule 18)."""
        shares: dict[str, list[tuple[str, bytes]]] = {}
        for one in objects:
            owners = self.owners(one.name, one.groups)
            if one.groups and len(one.data) > messages.MAX_OBJECT_BYTES:
                what = f"object {one.name} of {shown_groups(one.groups)}"
                raise messages.too_large(what, one.data, owners[0])
            for owner in owners:
                shares.setdefault(owner, []).append((one.name, one.data))

        def send(share: tuple[str, list[tuple[str, bytes]]]) -> None:
            owner, held = share
            reply = self._client(owner).put(self.access.stamp, held, when_full=when_full)
            _accepted(owner, reply)

        self._each(send, list(shares.items()))

    def get(self, wanted: Sequence[tuple[str, int]]) -> list[bytes]:
        """Contents of (name, groups), each from the nearest owner that has it."""
        return self.get_parts([ObjectPart(name, groups) for name, groups in wanted])

    def get_parts(self, wanted: Sequence[ObjectPart]) -> list[bytes]:
        """Parts of objects, each from the nearest owner that has it intact; where none has, as it
        is there."""
        damaged: dict[int, bytes] = {}
        found: dict[int, bytes] = {}
        pending = {at: self._nearest(self.owners(p.name, p.groups)) for at, p in enumerate(wanted)}
        last: StateServerError | None = None

        def read(share: tuple[str, list[int]]) -> _Answer:
            owner, places = share
            return places, *self._get_share(owner, [wanted[at] for at in places])

        while pending:
            shares: dict[str, list[int]] = {}
            for at, owners in pending.items():
                if owners:
                    shares.setdefault(owners.pop(0), []).append(at)
                elif at in damaged and last is None:
                    found[at] = damaged[at]
                else:
                    raise last or ObjectMissingError(
                        f"object {wanted[at].name} is on none of its owners; its state server's "
                        "file was replaced, or it was deleted while still needed"
                    )
            for places, data, error in self._each(read, list(shares.items())):
                last = error or last
                for at, content in zip(places, data, strict=False):
                    if not isinstance(content, Found):
                        continue
                    if self._copied and not wanted[at].is_intact(content.data):
                        log.warning("a copy of object %s is damaged", wanted[at].name)
                        damaged.setdefault(at, content.data)
                        continue
                    found[at] = content.data
            pending = {at: owners for at, owners in pending.items() if at not in found}
        return [found[at] for at in range(len(wanted))]

    def close(self) -> None:
        """End helper threads; connections stay with the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    # -- helpers

    def _nearest(self, owners: Sequence[str]) -> list[str]:
        """Those of this node first, otherwise in their order."""
        return sorted(owners, key=lambda name: name not in self._beside)

    def _client(self, name: str) -> StateClient:
        client = self.clients.get(name)
        if client is None:
            raise StateServerError(
                f"the view places key groups on {name}, which is none of its members "
                f"({', '.join(self.clients)})"
            )
        return client

    def _get_share(
        self, owner: str, parts: Sequence[ObjectPart]
    ) -> tuple[Sequence[object], StateServerError | None]:
        asked = [(part.name, part.start, part.size) for part in parts]
        try:
            reply = self._client(owner).get_parts(self.access.stamp, asked)
        except UnreachableError as error:
            return (), error
        if isinstance(reply, NotOwner):
            if not reply.reason.anew:
                raise NotOwnerError(owner, reply)
            return (), NotOwnerError(owner, reply)
        return reply, None

    def _each(self, function: Callable[[A], B], items: list[A]) -> list[B]:
        """Apply to all items, beside each other where there are several servers."""
        if len(items) <= 1:
            return [function(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.clients), "state-servers")
        futures = [self._pool.submit(function, item) for item in items]
        return [future.result() for future in futures]


def shown_groups(groups: int) -> str:
    """Key groups of a bit mask, for messages."""
    numbers = [group for group in range(groups.bit_length()) if groups >> group & 1]
    if len(numbers) == 1:
        return f"key group {numbers[0]}"
    return f"{len(numbers)} key groups, {numbers[0]} to {numbers[-1]}"


@lru_cache(maxsize=4096)
def owners_of(owners: tuple[tuple[str, ...], ...], name: str, groups: int) -> tuple[str, ...]:
    """Owners of an object without repetition, in the order in which readers ask them: each owner of
    a key group is the first for as many objects or groups as the others, so that none serves more
    than its share of the reads."""
    if groups == 0:
        number = name_id(name)
        return _from(owners[number % len(owners)], number // len(owners))
    chosen: dict[str, None] = {}
    group = 0
    while groups:
        if groups & 1:
            chosen.update(dict.fromkeys(_from(owners[group], group)))
        groups >>= 1
        group += 1
    return tuple(chosen)


def _from(names: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Names in their order around the circle, from one that ``number`` chooses."""
    first = number % len(names)
    return names[first:] + names[:first]


def _accepted(server: str, reply: object) -> None:
    if isinstance(reply, NotOwner):
        raise NotOwnerError(server, reply)
