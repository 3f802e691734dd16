"""Puts the objects that a record names on their owners, one by one, as a driver does it."""

from __future__ import annotations

from collections import deque

from millrace.protocol import events as e
from millrace.protocol import server as s
from millrace.protocol.record import object_groups
from millrace.protocol.types import Member, Stamp
from millrace.simulate.parts.cluster import Cluster, owners_of


class Copying:
    """What one ``CopyObjects`` still has to do; ``left`` are (object, owner)."""

    def __init__(self, cluster: Cluster, action: e.CopyObjects) -> None:
        self.action = action
        self._cluster = cluster
        members = {m.name: m for m in action.view.target}
        self.left: deque[tuple[str, Member]] = deque(
            (name, members[owner])
            for name, groups in object_groups(action.record).items()
            for owner in owners_of(action.view.owners, name, groups)
        )

    def one(self) -> e.Event | None:
        """Put the next object where it is missing; an event if that is not possible."""
        name, owner = self.left.popleft()
        stamp = self.action.stamp
        reply = self._cluster.get(owner, stamp, (name,))
        if reply is None:
            return e.Unreachable(owner, stamp)
        if isinstance(reply, s.NotOwner):
            return refused(owner, stamp, reply)
        if isinstance(reply[0], s.Found):
            return None
        silent: Member | None = None
        for source in dict.fromkeys((*self.action.view.target, *self.action.sources)):
            found = self._cluster.get(source, stamp, (name,))
            if found is None or isinstance(found, s.NotOwner):
                silent = source
            elif isinstance(found[0], s.Found):
                taken = self._cluster.put(owner, stamp, (name,)) is not None
                return None if taken else e.Unreachable(owner, stamp)
        if silent is not None:
            return e.Unreachable(silent, stamp)
        if self.action.learning:
            return None
        text = f"{name} is on none of the members it can be copied from"
        return e.CopyFailed(stamp, text, lost=not self._unheard())

    def _unheard(self) -> set[str]:
        """Those that may have held it and are asked no more, since they did not answer."""
        heard = {m.name for m in (*self.action.sources, *self.action.view.target)}
        return {m.name for m in self.action.view.last_open} - heard


def refused(member: Member, stamp: Stamp, reply: s.NotOwner) -> e.Refused:
    """The event for a server's refusal."""
    return e.Refused(member, stamp, reply.reason.value)
