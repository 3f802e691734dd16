"""Which records are committed (rule 3), told from what servers took and what the view says.

A record is final once every member of the open view it was written under has taken it, or, if
the view was moving then, once that view has become open. The driver may know later, or never.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.protocol.types import Member, Phase, Record, Sealed, Stamp, Tag, View
from millrace.simulate import history as h


@dataclass(slots=True)
class _Writing:
    record: Record
    stamp: Stamp
    members: set[Member] = field(default_factory=set)


class Ledger:
    """``record`` is the last committed one; tells ``Commit`` for each.

    ``sealed`` holds every window that was ever committed as sealed, but for those that a restore
    gave up, which are in ``given_up``. Tells ``Restored`` where one has opened another timeline.
    """

    def __init__(self, history: h.History) -> None:
        self._history = history
        self.record: Record | None = None
        self.view: View | None = None
        self.sealed: dict[int, Sealed] = {}
        self.given_up: list[Sealed] = []
        self.tags: set[Tag] = set()
        self.seals = 0
        self._views: dict[Stamp, View] = {}
        self._writes: dict[Tag, _Writing] = {}
        history.listen(h.ViewChanged, self._viewed)
        history.listen(h.RecordWritten, self._written)

    def _viewed(self, entry: h.ViewChanged) -> None:
        view = entry.view
        before = self._views.get(view.stamp())
        self._views[view.stamp()] = view
        if before is None or before.phase is Phase.OPEN or view.phase is not Phase.OPEN:
            return
        held = [
            w
            for w in self._writes.values()
            if w.stamp == view.stamp() and w.members >= set(view.target)
        ]
        if not held:
            raise h.ViolationError("rule 16", f"view {view.epoch} opened before its write-back")
        record = max(held, key=lambda w: w.record.tag).record
        if self.record is not None and record.tag.timeline > self.record.tag.timeline:
            self._restore(record, view)
        else:
            self._commit(record, view)

    def _restore(self, record: Record, view: View) -> None:
        self.tags.add(record.tag)
        self.record = record
        self.view = view
        self.given_up += [one for window, one in self.sealed.items() if window > record.sealed]
        self.sealed = {w: one for w, one in self.sealed.items() if w <= record.sealed}
        self._history.add(h.Restored(record, view))

    def _written(self, entry: h.RecordWritten) -> None:
        tag = entry.record.tag
        writing = self._writes.setdefault(tag, _Writing(entry.record, entry.stamp))
        if writing.record != entry.record:
            raise h.ViolationError("I5", f"two records under one tag {tag}")
        view = self._views.get(entry.stamp)
        if view is None:
            raise h.ViolationError(
                "rule 8", f"a record under {entry.stamp}, which no view ever had"
            )
        if entry.member not in view.target:
            raise h.ViolationError("rule 11", f"{entry.member} takes a record and is no member")
        writing.members.add(entry.member)
        if view.phase is Phase.OPEN and writing.members >= set(view.target):
            if self.view is not None and entry.stamp < self.view.stamp():
                # Its last member was left out and heard of it late: the view that came instead has
                # taken this record over from the others.
                self._late(entry.record)
            else:
                self._commit(entry.record, view)

    def _late(self, record: Record) -> None:
        self.tags.add(record.tag)
        for sealed in record.unpublished:
            if self.sealed.get(sealed.window) != sealed:
                raise h.ViolationError("rule 13", f"window {sealed.window} was left behind")

    def _commit(self, record: Record, view: View) -> None:
        if record.tag in self.tags:
            return
        before = self.record
        if before is not None and record.tag <= before.tag:
            raise h.ViolationError("rule 2", f"{record.tag} is committed behind {before.tag}")
        self.tags.add(record.tag)
        self.record = record
        self.view = view
        self.seals += record.sealed - (before.sealed if before is not None else 0)
        for sealed in record.unpublished:
            known = self.sealed.setdefault(sealed.window, sealed)
            if known != sealed:
                raise h.ViolationError("I7", f"window {sealed.window} is sealed with two contents")
        self._history.add(h.Commit(before, record, view))
