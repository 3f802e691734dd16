"""Winners are told from the reports alone, or there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.protocol.types import Staged, TaskId, TaskReport
from millrace.protocol.windows.outcomes import outputs
from millrace.protocol.winners import Inconsistent, Winners, find_winners


def task(pass_no: int, partition: int, attempt: int = 0) -> TaskId:
    return TaskId(pass_no, partition, attempt)


def source(partition: int, attempt: int = 0, runs: tuple[tuple[int, int], ...] = ()) -> TaskReport:
    return TaskReport(task(0, partition, attempt), roots_read=runs)


def reader(partition: int, *read: TaskId) -> TaskReport:
    return TaskReport(task(1, partition), read=read)


MAPS = (source(0, runs=((0, 3),)), source(1, 1, runs=((3, 2),)))
READS = (task(0, 0), task(0, 1, 1))
REDUCES = (reader(0, *READS), reader(1, *READS))


def test_the_attempts_that_were_read_win() -> None:
    loser = source(1, 0, runs=((3, 2),))
    found = find_winners((2, 2), [*REDUCES, loser, *MAPS], 5)
    assert isinstance(found, Winners)
    assert found.reports == (*MAPS, *REDUCES)
    assert found.roots_read() == ((0, 3), (3, 2))


def test_one_pass_needs_no_readers() -> None:
    assert isinstance(find_winners((2,), MAPS, 5), Winners)


@pytest.mark.parametrize(
    ("reports", "roots", "reason"),
    [
        ([*MAPS, REDUCES[0]], 5, "pass 1 has 1 of 2 partitions"),
        ([*MAPS, REDUCES[0], reader(1, task(0, 0), task(0, 1, 0))], 5, "was seen as task attempts"),
        ([MAPS[0], *REDUCES], 5, "no report of pass 0 partition 1 task attempt 1"),
        ([*MAPS, REDUCES[0], reader(1, task(0, 0))], 5, "pass 0 has 1 of 2 partitions"),
        ([*MAPS, *REDUCES], 6, "5 of 6 roots were read"),
        ([MAPS[0], replace(MAPS[1], roots_read=((4, 1),)), *REDUCES], 5, "roots from 3 on"),
        ([MAPS[0], replace(MAPS[1], roots_read=((2, 3),)), *REDUCES], 5, "roots from 3 on"),
        ([*MAPS, REDUCES[0], reader(1, task(1, 0), task(0, 1, 1))], 5, "where pass 0 was expected"),
    ],
    ids=[
        "a partition is missing",
        "two readers saw different attempts",
        "a winner has no report",
        "a reader missed a partition",
        "too few roots",
        "a gap",
        "an overlap",
        "a reader read its own pass",
    ],
)
def test_an_inconsistent_attempt_has_no_winners(
    reports: list[TaskReport], roots: int, reason: str
) -> None:
    found = find_winners((2, 2), reports, roots)
    assert isinstance(found, Inconsistent)
    assert reason in found.reason


def test_a_window_without_roots_is_whole() -> None:
    assert isinstance(find_winners((2,), (source(0), source(1)), 0), Winners)


def test_shares_may_be_in_any_order() -> None:
    swapped = (source(0, runs=((3, 2),)), source(1, runs=((0, 3),)))
    found = find_winners((2,), swapped, 5)
    assert isinstance(found, Winners)
    assert found.roots_read() == ((0, 3), (3, 2))


def test_holes_are_named_in_the_order_of_roots() -> None:
    swapped = (
        replace(source(0, runs=((3, 2),)), holes=((4, 1),)),
        replace(source(1, runs=((0, 3),)), holes=((0, 1), (2, 1))),
    )
    found = find_winners((2,), swapped, 5)
    assert isinstance(found, Winners)
    assert found.holes() == ((0, 1), (2, 1), (4, 1))


ACKS = ((0, "a"), (1, "b"), (0, "c"))


def test_what_reports_enclose_is_named_whoever_encloses_it() -> None:
    reports = (replace(source(0), acks=ACKS[:2]), replace(source(1), acks=ACKS[2:]))
    found = find_winners((2,), reports, 0)
    assert isinstance(found, Winners)
    assert found.acks() == ACKS


def test_passes_may_have_different_numbers_of_partitions() -> None:
    first = (source(0, runs=((0, 5),)),)
    middle = tuple(TaskReport(task(1, p), read=(task(0, 0),)) for p in range(3))
    end = tuple(TaskReport(task(2, p), read=tuple(task(1, q) for q in range(3))) for p in range(2))
    found = find_winners((1, 3, 2), [*end, *middle, *first], 5)
    assert isinstance(found, Winners)
    assert found.reports == (*first, *middle, *end)
    blind = replace(end[1], read=(task(1, 0), task(1, 2)))
    assert isinstance(find_winners((1, 3, 2), [end[0], blind, *middle, *first], 5), Inconsistent)


def test_sinks_show_what_many_partitions_staged_in_the_order_of_their_records() -> None:
    """The last row of a key is the newest one."""

    def staged(sink: str, partition: int) -> Staged:
        return Staged(sink, f"1.1.1.0.{partition}.{100 + partition}", "digest", 1, 1)

    reports = tuple(replace(source(n), staged=(staged("b", n), staged("a", n))) for n in range(12))
    _, shown = outputs(Winners(reports))
    assert shown == tuple(staged(sink, n) for sink in ("a", "b") for n in range(12))
