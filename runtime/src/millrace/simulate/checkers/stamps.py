"""I5: servers take nothing under a stamp other than their own, and an execution has one driver."""

from __future__ import annotations

from millrace.protocol.types import Member, Stamp
from millrace.simulate import history as h
from millrace.simulate.parts.cluster import Cluster


class Stamps:
    """Keeps its own record of the stamp in effect on each incarnation."""

    def __init__(self, history: h.History, cluster: Cluster) -> None:
        self._cluster = cluster
        self._in_effect: dict[Member, Stamp] = {}
        self._claims: dict[int, int] = {}
        self._executions = 0
        self._epoch = 0
        history.listen(h.ServerStamped, self._stamped)
        history.listen(h.RecordWritten, self._changed)
        history.listen(h.ObjectsPut, self._changed)
        history.listen(h.ObjectsDeleted, self._changed)
        history.listen(h.Claimed, self._claimed)
        history.listen(h.ViewChanged, self._viewed)

    def _stamped(self, entry: h.ServerStamped) -> None:
        self._is_meant(entry.member)
        before = self._in_effect.get(entry.member)
        if before is not None and entry.stamp < before:
            raise h.ViolationError("I5", f"{entry.member} went back from {before} to {entry.stamp}")
        self._in_effect[entry.member] = entry.stamp

    def _changed(self, entry: h.RecordWritten | h.ObjectsPut | h.ObjectsDeleted) -> None:
        self._is_meant(entry.member)
        current = self._in_effect.get(entry.member)
        if entry.stamp != current:
            raise h.ViolationError(
                "I5", f"{entry.member} under stamp {current} took a change under {entry.stamp}"
            )

    def _is_meant(self, member: Member) -> None:
        if not self._cluster.is_alive(member):
            raise h.ViolationError("rule 5", f"a message for {member} was taken by another life")

    def _claimed(self, entry: h.Claimed) -> None:
        owner = self._claims.setdefault(entry.execution, entry.number)
        if owner != entry.number:
            raise h.ViolationError(
                "rule 8", f"drivers {owner} and {entry.number} are both execution {entry.execution}"
            )

    def _viewed(self, entry: h.ViewChanged) -> None:
        if entry.view.execution < self._executions or entry.view.epoch < self._epoch:
            raise h.ViolationError("rule 12", f"the view went back: {entry.view}")
        self._executions, self._epoch = entry.view.execution, entry.view.epoch
