"""I3: a verdict says exactly what the winners' tasks truly did, and two never differ.

Two of one life of the log, that is: in a later one it may lack what a winner said, and be told so.
"""

from __future__ import annotations

from millrace.protocol import acklog as al
from millrace.protocol.types import AttemptId, CloseMarker, TaskId, Verdict
from millrace.simulate import history as h
from millrace.simulate.parts.workload import Root, Workload, roots_of

LOST = (0, (), False)
"""Said of a slice that lacks a message of a winner: nothing is complete, and nobody is to blame."""


class VerdictTruth:
    """Asked at every answer of an acker. Compares with counts of tuples, not with check values."""

    def __init__(self, history: h.History, workload: Workload) -> None:
        self._history = history
        self._workload = workload
        self._given: dict[tuple[object, int, int], Verdict] = {}
        self._trees: dict[int, tuple[Root, int]] = {}
        self._forgotten: set[AttemptId] = set()
        history.listen(h.Answered, self._answered)
        history.listen(h.AttemptForgotten, self._forget)

    def _forget(self, entry: h.AttemptForgotten) -> None:
        self._forgotten.add(entry.id)

    def _answered(self, entry: h.Answered) -> None:
        marker, verdict = entry.marker, entry.verdict
        if verdict.id in self._forgotten:
            return
        (partition,) = verdict.partitions
        first = self._given.setdefault((verdict.id, partition, entry.life), verdict)
        if first != verdict:
            raise h.ViolationError("I3", f"two verdicts on slice {partition} of {verdict.id}")
        facts = self._history.attempts[verdict.id]
        if facts.winners is None or {task for task, _ in marker.winners} != set(facts.winners):
            raise h.ViolationError(
                "I3", f"{verdict.id} is judged by tasks that are not its winners"
            )
        incomplete = tuple(root.sequence for root in verdict.incomplete)
        found = (verdict.complete, incomplete, verdict.window_complete)
        if found == LOST and self._may_lack(facts, marker, partition, entry.life):
            return
        wanted = self._truth(facts, marker, partition)
        if found != wanted:
            raise h.ViolationError(
                "I3", f"slice {partition} of {verdict.id} was judged {found}, true is {wanted}"
            )

    def _truth(
        self, facts: h.AttemptFacts, marker: CloseMarker, partition: int
    ) -> tuple[int, tuple[int, ...], bool]:
        window, roots, slices = marker.id.window, marker.intent.roots, facts.plan.slices
        if self._missing(facts, marker, partition):
            return LOST
        mine = al.sequences(window, partition, roots, slices)
        judged = [s for s in mine if s not in marker.excluded]
        broken, window_broken = _broken(facts, tuple(facts.winners or ()))
        read = [s for task in facts.winners or () for s in facts.tasks[task].trees]
        self._are_new(facts, marker)
        listed = roots_of(marker.intent)
        due = {s: 0 if self._workload.is_hole(listed[s][0]) else 1 for s in judged}
        incomplete = tuple(s for s in judged if s in broken or read.count(s) != due[s])
        whole = partition != al.check_partition(window, slices) or not window_broken
        return len(judged) - len(incomplete), incomplete, whole

    def _are_new(self, facts: h.AttemptFacts, marker: CloseMarker) -> None:
        """A replay is a new tree: its tracking id was never another root's or replay's."""
        listed = roots_of(marker.intent)
        for winner in facts.winners or ():
            for sequence, tracking in facts.tasks[winner].trees.items():
                if self._trees.setdefault(tracking, listed[sequence]) != listed[sequence]:
                    raise h.ViolationError(
                        "I3", f"{listed[sequence]} has the tracking id of another"
                    )

    def _may_lack(
        self, facts: h.AttemptFacts, marker: CloseMarker, partition: int, life: int
    ) -> bool:
        """Whether a winner's message is of another life of the log."""
        return not _all_enclosed(facts, marker, partition) and any(
            facts.tasks[task].appended.get(partition, life) != life for task, _ in marker.winners
        )

    def _missing(self, facts: h.AttemptFacts, marker: CloseMarker, partition: int) -> bool:
        if _all_enclosed(facts, marker, partition):
            return False
        return any(
            (partition in parts and not _said(facts.tasks[task], partition))
            or partition in facts.tasks[task].misled - facts.tasks[task].enclosed
            for task, parts in marker.winners
        )


def _said(task: h.TaskFacts, partition: int) -> bool:
    return partition in task.appended or partition in task.enclosed


def _all_enclosed(facts: h.AttemptFacts, marker: CloseMarker, partition: int) -> bool:
    """Whether the marker has all messages of winners to a slice, so that the log cannot lack any,
    nor have one that says otherwise."""
    said = [facts.tasks[task] for task, parts in marker.winners if partition in parts]
    return bool(said) and all(partition in task.enclosed for task in said)


def _broken(facts: h.AttemptFacts, winners: tuple[TaskId, ...]) -> tuple[set[int], bool]:
    """Roots with a tuple that was not processed as often as it was emitted."""
    nets: dict[tuple[int | None, str, object], int] = {}
    for winner in winners:
        for where, count in facts.tasks[winner].tuples.items():
            nets[where] = nets.get(where, 0) + count
    broken = {where[0] for where, net in nets.items() if net}
    return {s for s in broken if s is not None}, None in broken
