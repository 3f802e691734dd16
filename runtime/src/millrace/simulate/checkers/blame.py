"""A root is set aside only on evidence about it, and what is no evidence is not repeated for ever.

Evidence is that the root is poisoned, or, for a replay, that a fault lost tuples of this very root.
An engine that fails is evidence of nothing, however often it does.
"""

from __future__ import annotations

from millrace.protocol.types import AttemptPlan, Phase, Record
from millrace.simulate import history as h
from millrace.simulate.parts.workload import Root, RootKind, Workload, root_of, roots_of

LONGEST_ROW = 5
"""Attempts in a row that an engine may fail before the driver has to stop."""

Roots = tuple[tuple[Root, int], ...]


class Blame:
    """Asked at every commit, and whenever the engine fails an attempt."""

    def __init__(self, history: h.History, workload: Workload) -> None:
        self._history = history
        self._workload = workload
        self._hit: set[Root] = set()
        self._asked: set[Root] = set()
        self._rows: dict[tuple[int, Roots], int] = {}
        history.listen(h.Hit, self._was_hit)
        history.listen(h.LettersTaken, self._taken)
        history.listen(h.Commit, self._committed)
        history.listen(h.Broken, self._broken)
        history.listen(h.Telling, self._ended)
        history.listen(h.ViewChanged, self._moved)

    def _was_hit(self, entry: h.Hit) -> None:
        self._hit.update(entry.roots)

    def _taken(self, entry: h.LettersTaken) -> None:
        self._asked |= {root_of(letter) for letter in entry.letters}

    def _committed(self, entry: h.Commit) -> None:
        opened = {tuple(roots_of(intent)) for intent in entry.after.intents}
        self._rows = {row: count for row, count in self._rows.items() if row[1] in opened}
        waiting, dead = self._set_aside(entry.after)
        if entry.before is not None:
            waited, died = self._set_aside(entry.before)
            waiting, dead = waiting - waited, dead - died
        for root in sorted(waiting - self._hit - self._asked):
            if self._workload.kinds[root] is RootKind.GOOD:
                raise h.ViolationError(
                    "blame", f"{root} waits for a replay for no fault of its own"
                )
        for root in sorted(dead):
            kind = self._workload.kinds[root]
            # One that raises once may do so in its last replay, if the others were lost.
            if kind is RootKind.GOOD or (kind is RootKind.RAISES_ONCE and root not in self._hit):
                raise h.ViolationError("blame", f"{root} is dead for no fault of its own")

    def _set_aside(self, record: Record) -> tuple[set[Root], set[Root]]:
        """Roots that wait for their replay, and those that are dead."""
        dead = {
            root_of(letter)
            for one in record.dead
            for index, letter in enumerate(self._history.letters(one.name))
            if index not in one.removed
        }
        return {root_of(replay) for replay in record.replays}, dead

    def _broken(self, entry: h.Broken) -> None:
        row = _row_of(entry.plan)
        self._rows[row] = self._rows.get(row, 0) + 1
        if self._rows[row] > LONGEST_ROW:
            raise h.ViolationError("blame", f"the engine fails {entry.plan.id}, and no end of it")

    def _moved(self, entry: h.ViewChanged) -> None:
        # A driver whose members have changed begins its window anew.
        if entry.view.phase is Phase.MOVING:
            self._rows.clear()

    def _ended(self, entry: h.Telling) -> None:
        self._rows.pop(_row_of(entry.plan), None)


def _row_of(plan: AttemptPlan) -> tuple[int, Roots]:
    """Attempts of one driver life over the same roots."""
    return plan.id.execution, tuple(roots_of(plan.intent))
