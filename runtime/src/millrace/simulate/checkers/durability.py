"""I6: what a committed record names is on all its owners (rule 18) and not deleted (rule 22).

Nothing else of earlier executions is left in the end, where a driver has started after the storm.
"""

from __future__ import annotations

from millrace.protocol.names import read_name
from millrace.protocol.types import Record, View
from millrace.simulate import history as h
from millrace.simulate.checkers.ledger import Ledger
from millrace.simulate.options import Options
from millrace.simulate.parts.cluster import Cluster, ViewStore, owners_of


class Durability:
    """Asked at every commit, restore and deletion."""

    def __init__(self, history: h.History, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._needed: dict[str, int] = {}
        self._view: View | None = None
        self._timeline = 1
        history.listen(h.ViewChanged, self._viewed)
        history.listen(h.Commit, lambda entry: self._committed(entry.after, entry.view))
        history.listen(h.Restored, lambda entry: self._committed(entry.record, entry.view))
        history.listen(h.ObjectsDeleted, self._deleted)

    def _viewed(self, entry: h.ViewChanged) -> None:
        """With the claim of another timeline what was committed before is given up."""
        if entry.view.timeline > self._timeline:
            self._timeline = entry.view.timeline
            self._needed = {}

    def _committed(self, record: Record, view: View) -> None:
        needed = named(record)
        same_place = self._view == view
        for name, groups in needed.items():
            if not same_place or self._needed.get(name) != groups:
                self._on_owners(name, groups, view)
        self._needed, self._view = needed, view

    def _on_owners(self, name: str, groups: int, view: View) -> None:
        members = {m.name: m for m in view.target}
        for owner in owners_of(view.owners, name, groups):
            member = members[owner]
            if self._cluster.is_alive(member) and not self._cluster.has(member, name):
                raise h.ViolationError("rule 18", f"{name} is committed and not on {member.name}")

    def _deleted(self, entry: h.ObjectsDeleted) -> None:
        for name in entry.names:
            if name in self._needed:
                raise h.ViolationError("rule 22", f"{name} was deleted and is still needed")


class Leftovers:
    """Asked at the end. What a snapshot was copying may be left until the next driver starts."""

    def __init__(self, options: Options, cluster: Cluster, store: ViewStore) -> None:
        self._asked = options.late and not options.snapshot_s
        self._cluster = cluster
        self._store = store

    def finish(self, record: Record | None) -> None:
        view = self._store.view
        if not self._asked or view is None or record is None:
            return
        needed = named(record)
        for member in view.target:
            for name in self._cluster.objects(member):
                made = read_name(name)
                assert made is not None
                if name not in needed and made.attempt.execution < view.execution:
                    raise h.ViolationError("rule 22", f"{name} is never deleted from {member.name}")


def named(record: Record) -> dict[str, int]:
    """Objects that must be on state servers, with their key groups; counted here on its own, so
    that what copies by another count is found out."""
    wanted = {one.name: 0 for one in record.dead}
    for segment in (one for chain in record.chains.values() for one in chain):
        wanted[segment.name] = wanted.get(segment.name, 0) | segment.groups
    return wanted
