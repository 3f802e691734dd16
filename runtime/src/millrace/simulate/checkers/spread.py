"""Objects have as many owners as the user asks for, soon after an edit asks for another number,
and no fewer while there are servers to have them; and a server that is well is a member in the end.

That they truly are on these is for ``durability``.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.protocol.types import Member, Phase, Record, View
from millrace.simulate import history as h
from millrace.simulate.parts.cluster import Cluster, Side, ViewStore

SEALS = 8
"""Windows go on while the others learn what they are to hold, and some are sealed in no time."""

SOON_S = 14.0
"""One that is to join and is not heard of holds the lesson up until it is left out."""


class Spread:
    """Asked at every commit."""

    def __init__(self, history: h.History, copies: int, now_s: Callable[[], float]) -> None:
        self._wanted = copies
        self._now_s = now_s
        self._seals = 0
        self._since_s = 0.0
        history.listen(h.CopiesAsked, lambda entry: self._begin(entry.copies))
        history.listen(
            h.Commit, lambda entry: self._committed(entry.before, entry.after, entry.view)
        )

    def _begin(self, wanted: int) -> None:
        self._wanted, self._seals, self._since_s = wanted, 0, self._now_s()

    def _committed(self, before: Record | None, after: Record, view: View) -> None:
        due = min(self._wanted, len(view.target))
        if all(len(owners) == due for owners in view.owners):
            self._begin(self._wanted)
        elif before is not None and after.sealed > before.sealed:
            self._seals += 1
        if self._seals > SEALS and self._now_s() > self._since_s + SOON_S:
            raise h.ViolationError("copies", f"{due} copies are asked for, and made nowhere")


WELL_S = 15.0
"""Whoever was in trouble may be left out for a while after it."""


class Spared:
    """Asked whenever a server ends that was to leave, and a view is opened: is it missed?"""

    def __init__(self, history: h.History, copies: int, cluster: Cluster) -> None:
        self._wanted = copies
        self._cluster = cluster
        self._open: View | None = None
        self._made = False
        self._members: set[Member] = set()
        """Lives that ever were in a view: while the operator is away no driver knows others."""
        history.listen(h.CopiesAsked, self._asked)
        history.listen(h.ViewChanged, lambda entry: self._changed(entry.view))
        history.listen(h.ServerLeft, lambda _: self._left())

    def _asked(self, entry: h.CopiesAsked) -> None:
        self._wanted, self._made = entry.copies, False

    def _due(self) -> int:
        # Fewer servers than copies are asked for here alone.
        return min(self._wanted, len(self._cluster.wanted))

    def _left(self) -> None:
        view = self._open
        if view is None or not self._made or view.owners_each >= self._due():
            return
        # An older driver, which was made for fewer copies, may just have taken one of theirs away.
        if sum(member in view.target for member in self._cluster.alive()) < self._due():
            raise h.ViolationError("copies", "who could have had a copy has ended")

    def _changed(self, view: View) -> None:
        self._members.update(view.target)
        if view.phase is not Phase.OPEN:
            return
        before, self._open = self._open, view
        self._made = self._made or view.owners_each >= self._due()
        if before is None or before.timeline != view.timeline:
            return
        if view.owners_each >= min(self._due(), before.owners_each):
            return
        gone = [member for member in before.target if member not in view.target]
        alive = [member for member in self._cluster.alive() if member in self._members]
        others = [member for member in alive if member not in view.target]
        missed = [member for member in others if self._only_tasks_miss(member)]
        # However few servers are asked for: R is the topology's (rule 10).
        if any(map(self._only_tasks_miss, gone)) and len(missed) > max(1, self._wanted - 1):
            raise h.ViolationError("copies", "tasks reach nobody, and copies were given up for it")

    def _only_tasks_miss(self, member: Member) -> bool:
        reached = self._cluster.well(member, WELL_S, (Side.DRIVER,))
        return reached and not self._cluster.well(member, 0.0, (Side.TASKS,))


LET_IN_S = 80.0
"""Whoever was left out again and again has to answer for a minute, before the view changes."""


class LetIn:
    """Asked long after the storm, before that driver ends who may have left somebody out."""

    def __init__(self, cluster: Cluster, store: ViewStore) -> None:
        self._cluster = cluster
        self._store = store

    def look(self) -> None:
        view = self._store.view
        if view is None:
            return
        for member in self._cluster.alive():
            if member not in view.target and self._cluster.well(member, LET_IN_S):
                raise h.ViolationError("members", f"{member} is well and was never let in again")
