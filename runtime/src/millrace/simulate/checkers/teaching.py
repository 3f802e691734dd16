"""A server that is to join and takes no objects is given up after a while, and somebody is told.

Those that are to leave stay until it has learned what they hold, so that they would stay for ever.
"""

from __future__ import annotations

from collections import Counter

from millrace.protocol import events as e
from millrace.protocol.suspicion import TRIES
from millrace.protocol.types import Member
from millrace.simulate import history as h

MOST = 2 * TRIES
"""Some copies break off while a question to it is still on its way, which do not count."""


class Teaching:
    """Asked whenever a copy breaks off; what comes to its end ends the count, as it does for the
    driver: servers that come and go may break off any number of copies in one life of it."""

    def __init__(self, history: h.History) -> None:
        self._broken: Counter[tuple[int, Member]] = Counter()
        self._answers: set[Member] = set()
        history.listen(h.CopyBroken, self._copy_broken)
        history.listen(h.CopyEnded, self._copy_ended)
        history.listen(h.Acted, self._acted)
        history.listen(h.ServerStamped, self._stamped)

    def _copy_broken(self, entry: h.CopyBroken) -> None:
        action = entry.action
        if entry.member in (*action.view.last_open, *action.sources):
            return  # what it holds may be needed, and it is waited for
        if entry.member not in self._answers:
            return
        self._answers.discard(entry.member)
        self._broken[entry.number, entry.member] += 1
        if self._broken[entry.number, entry.member] > MOST:
            raise h.ViolationError(
                "teaching", f"{entry.member} takes nothing, and is still being taught"
            )

    def _copy_ended(self, entry: h.CopyEnded) -> None:
        self._forget(entry.number)

    def _stamped(self, entry: h.ServerStamped) -> None:
        self._answers.add(entry.member)

    def _acted(self, entry: h.Acted) -> None:
        if isinstance(entry.action, e.Notify) and entry.action.kind == "StateServerLeftOut":
            self._forget(entry.number)

    def _forget(self, number: int) -> None:
        for key in [key for key in self._broken if key[0] == number]:
            del self._broken[key]
