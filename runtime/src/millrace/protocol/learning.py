"""Servers that join, or that others leave something to, learn it first, beside windows (rule 11).

::

    members to come -> Asked -- all stamped --> Copying -- copied, or failed --> Learned -> moving
          ^                                        |
          +- others are to come, or one has no room +

Members that are to hold more, since another is to leave, learn in the same way: they are stamped
already. The one that leaves stays a member and a source until the view has moved without it; if it
dies or falls silent meanwhile the view moves at once, as for any member. If another one does, the
view moves at once, too, and still has the one that leaves: nobody leaves in haste.

A learner that joins is stamped under the open view. It takes objects and no record, is no member,
and nothing is read from it. What was learned is never taken for complete: the view that moves then
reads the record anew and copies what is lacking (rules 13 to 15), which is little. So whoever dies
at any point leaves objects behind that no record names there, and the next driver goes on from the
view.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.protocol import events as e
from millrace.protocol.types import Member, Record, View


@dataclass(slots=True)
class Lesson:
    """What is learned for the view ``planned``, under the stamp of the open view; ``learners`` are
    those that join with it."""

    planned: View
    learners: frozenset[Member]
    stamped: set[Member] = field(default_factory=set)
    copying: bool = False
    learned: bool = False
    full: set[str] = field(default_factory=set)

    def ask(self) -> list[e.Action]:
        """Stamp the learners, as a sign of life too; what is under way is sent again."""
        if self.learned:
            return []
        self.copying = False
        stamp = self.planned.stamp()
        return [e.SendStamp(m, stamp) for m in sorted(self.learners, key=lambda one: one.name)]

    def go_on(self, record: Record, sources: tuple[Member, ...]) -> list[e.Action]:
        """Copy what the last committed record names, once all learners are stamped."""
        if self.copying or self.learned or self.stamped != self.learners:
            return []
        self.copying = True
        return [e.CopyObjects(self.planned.stamp(), record, self.planned, sources, learning=True)]

    def heard(self, event: e.Stamped) -> None:
        if event.member in self.learners and event.stamp == self.planned.stamp():
            self.stamped.add(event.member)

    def ended(self, event: e.Copied | e.CopyFailed) -> list[e.Action]:
        """The copy has come to its end; not that of another lesson, which has the same stamp. If it
        was an early end the view that moves has more to copy. Where a server has no room that view
        could not open, so windows stay where they are: the next ``ask`` begins the copy anew."""
        if not self.copying or event.planned != self.planned:
            return []
        if isinstance(event, e.CopyFailed) and event.full:
            return self._no_room(event.full, event.reason)
        self.learned = True
        full, self.full = sorted(self.full), set()
        return [
            e.Notify("StateServerBack", f"state server {name} has room again", server=name)
            for name in full
        ]

    def _no_room(self, name: str, reason: str) -> list[e.Action]:
        if name in self.full:
            return []
        self.full.add(name)
        text = f"{reason}; windows go on, and the state servers stay as they are until then"
        return [e.Notify("StateServerFull", text, warning=True, server=name)]
