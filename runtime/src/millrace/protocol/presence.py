"""Which state servers do not answer: told once when one goes and once when it is back.

Whatever a driver waits for, a record write, a verdict, a task's objects, is held up in its own
way by a server that is away. All of them lead to the same two events, since this is told of every
answer, and the driver asks for a sign of life where something waits that names no member.

One whose memory is full answers all the while and refuses what windows write, or what is copied to
it. Room for a little may come and go with every attempt, so it is over when a window is sealed.
"""

from __future__ import annotations

from millrace.protocol import events as e
from millrace.protocol.server import STARTED_ANEW
from millrace.protocol.types import Member, View

_ANSWERS = (e.Stamped, e.RecordAck, e.Refused, e.Unreachable)


class Presence:
    """Told every event. Servers go by their names: the next incarnation of one brings it back.

    Where others have copies windows do not wait for long: the server is left out.
    """

    def __init__(self) -> None:
        self._missing: dict[str, str] = {}
        self._full: set[str] = set()

    @property
    def away(self) -> tuple[str, ...]:
        """Names of the servers that do not answer, or take no record."""
        return tuple(sorted(self._missing))

    def observe(self, event: e.Event, view: View | None) -> list[e.Action]:
        """What is to be told after an event; ``view`` is the one that the driver works under.

        Answers to an older stamp say nothing of today, and only members of the view's target
        are waited for.
        """
        if isinstance(event, e.RunDied) and event.full and view is not None:
            return self._no_room(event.full, event.reason)
        if isinstance(event, e.CopyFailed) and event.full and view is not None:
            waiting = event.planned is None and event.stamp == view.stamp()
            return self._no_room(event.full, event.reason, _left(view)) if waiting else []
        if view is None or not isinstance(event, _ANSWERS):
            return []
        if event.stamp != view.stamp() or event.member not in view.target:
            return []
        match event:
            case e.Unreachable():
                kind = "StateServerFull" if event.full else "StateServerAway"
                return self._gone(event.member, kind, event.reason, view)
            case e.Refused():
                reason = f"state server {event.member.name} was started anew"
                anew = event.reason in STARTED_ANEW
                return self._gone(event.member, "StateServerAway", reason, view) if anew else []
            case e.Stamped() if self._missing.get(event.member.name) == "StateServerFull":
                return []
        return self._back(event.member)

    def follow(self, view: View) -> None:
        """Forget servers that are not waited for any more."""
        names = {m.name for m in view.target}
        self._missing = {name: kind for name, kind in self._missing.items() if name in names}
        self._full &= names

    def sealed(self) -> list[e.Action]:
        """What is to be told once a window has been sealed: all that it wrote had room."""
        full, self._full = sorted(self._full), set()
        return [
            e.Notify("StateServerBack", f"state server {one} has room again", server=one)
            for one in full
        ]

    def _no_room(self, name: str, reason: str, left: str = "") -> list[e.Action]:
        if name in self._full:
            return []
        self._full.add(name)
        until = f"until then, or until {left} is a member again" if left else "until then"
        text = f"{reason}; windows wait {until}"
        return [e.Notify("StateServerFull", text, warning=True, server=name)]

    def _gone(self, member: Member, kind: str, reason: str, view: View) -> list[e.Action]:
        if self._missing.get(member.name) == kind:
            return []
        self._missing[member.name] = kind
        what = reason or f"state server {member.name} does not answer"
        until = "until it is back or left out" if view.owners_each > 1 else "until it is back"
        text = f"{what}; windows wait {until}"
        return [e.Notify(kind, text, warning=True, server=member.name)]

    def _back(self, member: Member) -> list[e.Action]:
        if self._missing.pop(member.name, None) is None:
            return []
        text = f"state server {member.name} answers again"
        return [e.Notify("StateServerBack", text, server=member.name)]


def _left(view: View) -> str:
    """Those whose part of the objects the others take over while members change."""
    names = {m.name for m in view.last_open} - {m.name for m in view.target}
    return " or ".join(sorted(names))
