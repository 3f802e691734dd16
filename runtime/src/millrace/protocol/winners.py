"""Which task attempts won, or why no consistent set of winners exists.

A window attempt counts only if every pass has exactly one winner for each partition, every
reader of a pass read that very winner, and the source tasks together read every root of the
intent once. Everything is told from the reports alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.protocol.types import EnclosedAcks, TaskId, TaskReport


@dataclass(frozen=True, slots=True)
class Winners:
    """The reports that count, in the order of pass and partition."""

    reports: tuple[TaskReport, ...]

    def roots_read(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(run for report in self.reports for run in report.roots_read))

    def holes(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(run for report in self.reports for run in report.holes))

    def acks(self) -> EnclosedAcks:
        return tuple(ack for report in self.reports for ack in report.acks)


@dataclass(frozen=True, slots=True)
class Inconsistent:
    """No winners: the attempt must be run again."""

    reason: str


def find_winners(
    shape: Sequence[int], reports: Iterable[TaskReport], roots: int
) -> Winners | Inconsistent:
    """Derive the winners of an attempt.

    ``shape[k]`` is the number of partitions of pass k; ``roots`` the number of roots in the
    intent, excluded ones included. Reports of losers may be among ``reports``.
    """
    by_task = {report.task: report for report in reports}
    last = len(shape) - 1
    wanted = {task for task in by_task if task.pass_no == last}
    winners: list[TaskReport] = []
    for pass_no in range(last, -1, -1):
        chosen = _one_for_each(pass_no, shape[pass_no], wanted)
        if isinstance(chosen, Inconsistent):
            return chosen
        missing = [task for task in chosen if task not in by_task]
        if missing:
            return Inconsistent(f"no report of {_name(missing[0])}, whose output was read")
        winners[:0] = [by_task[task] for task in chosen]
        wanted = {task for winner in chosen for task in by_task[winner].read}
        if pass_no > 0:
            for winner in chosen:
                read = _one_for_each(pass_no - 1, shape[pass_no - 1], by_task[winner].read)
                if isinstance(read, Inconsistent):
                    return Inconsistent(f"{_name(winner)}: {read.reason}")
    found = Winners(tuple(winners))
    return _covers(found, roots) or found


def _one_for_each(
    pass_no: int, partitions: int, tasks: Iterable[TaskId]
) -> list[TaskId] | Inconsistent:
    chosen: dict[int, TaskId] = {}
    for task in tasks:
        if task.pass_no != pass_no:
            return Inconsistent(f"{_name(task)} where pass {pass_no} was expected")
        other = chosen.setdefault(task.partition, task)
        if other != task:
            return Inconsistent(
                f"pass {pass_no} partition {task.partition} was seen as task attempts "
                f"{other.task_attempt} and {task.task_attempt}"
            )
    if sorted(chosen) != list(range(partitions)):
        return Inconsistent(f"pass {pass_no} has {len(chosen)} of {partitions} partitions")
    return [chosen[p] for p in range(partitions)]


def _covers(winners: Winners, roots: int) -> Inconsistent | None:
    position = 0
    for first, count in winners.roots_read():
        if first != position:
            return Inconsistent(f"roots from {position} on were read by no task, or twice")
        position += count
    if position != roots:
        return Inconsistent(f"{position} of {roots} roots were read")
    return None


def _name(task: TaskId) -> str:
    return f"pass {task.pass_no} partition {task.partition} task attempt {task.task_attempt}"
