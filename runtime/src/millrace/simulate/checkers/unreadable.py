"""What no replay helps is never replayed, unless the user asks for it or a fault hid that."""

from __future__ import annotations

from millrace.simulate import history as h
from millrace.simulate.parts.workload import Root, RootKind, Workload, root_of, roots_of


class Unreadable:
    """Asked at every commit."""

    def __init__(self, history: h.History, workload: Workload) -> None:
        self._workload = workload
        self._excused: set[Root] = set()
        history.listen(h.Commit, self._committed)
        history.listen(h.LettersTaken, self._taken)
        history.listen(h.Hit, self._hit)

    def _taken(self, entry: h.LettersTaken) -> None:
        self._excused |= {root_of(letter) for letter in entry.letters}

    def _hit(self, entry: h.Hit) -> None:
        self._excused |= set(entry.roots)

    def _committed(self, entry: h.Commit) -> None:
        again = {root_of(replay) for replay in entry.after.replays}
        for intent in entry.after.intents:
            again |= {root for root, number in roots_of(intent) if number}
        for root in sorted(again - self._excused):
            kind = self._workload.kinds[root]
            if kind in (RootKind.UNREADABLE, RootKind.LASTING):
                raise h.ViolationError("unreadable", f"{root} {kind.value} and is replayed")
