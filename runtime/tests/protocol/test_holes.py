"""Offsets without a record: what is claimed is believed unless somebody knows better."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol import cohorts, holes
from millrace.protocol.record import NextWindow, Outcome, first_record, open_next, seal
from millrace.protocol.types import (
    FailedRoot,
    Intent,
    Replay,
    RootRange,
    Tag,
    TaskId,
    TaskReport,
)
from millrace.protocol.windows.decide import Progress, halves
from millrace.protocol.windows.doing import SealDraft
from millrace.protocol.winners import Inconsistent, Winners, find_winners

INTENT = Intent(
    3,
    (RootRange("s", 1, 100, 6), RootRange("s", 2, 0, 4)),
    (Replay("s", 1, 7, 1, 0.0),),
)


def report(partition: int, run: tuple[int, int], *empty: tuple[int, int], attempt: int = 0):
    return TaskReport(TaskId(0, partition, attempt), roots_read=(run,), holes=empty)


BOTH = (report(0, (0, 6), (1, 2)), report(1, (6, 5), (9, 1)))


def doubt(*reports: TaskReport, before: holes.Runs | None = None, losers=()) -> str:
    found = find_winners((2,), reports, INTENT.roots)
    assert isinstance(found, Winners)
    return holes.doubt(found, (*reports, *losers), INTENT, before)


def test_what_is_claimed_once_is_believed() -> None:
    assert doubt(*BOTH) == ""
    assert doubt(*BOTH, before=((1, 2), (9, 1))) == ""
    assert doubt(report(0, (0, 6)), report(1, (6, 5)), before=()) == ""


@pytest.mark.parametrize(
    ("before", "where"),
    [
        ((), "offset 101 of source 's' (partition 0000000000000001)"),
        (((1, 3), (9, 1)), "offset 103 of source 's' (partition 0000000000000001)"),
        (((1, 2),), "offset 3 of source 's' (partition 0000000000000002)"),
        (((1, 2), (8, 2)), "offset 2 of source 's' (partition 0000000000000002)"),
    ],
)
def test_an_attempt_before_that_had_it_otherwise_is_named_with_the_offset(before, where) -> None:
    said = doubt(*BOTH, before=before)
    why = "an attempt before this one had it otherwise, and two in a row have to agree"
    assert said == f"{where}: {why}"


def test_records_that_come_back_are_no_less_strange_than_those_that_go() -> None:
    assert "offset 101" in doubt(report(0, (0, 6)), report(1, (6, 5)), before=((1, 2),))


def test_a_loser_that_read_a_record_contradicts_the_winner() -> None:
    loser = report(0, (0, 6), (1, 1), attempt=1)
    assert "two tasks do not agree on holes: offset 102" in doubt(*BOTH, losers=[loser])
    assert doubt(*BOTH, losers=[report(0, (0, 6), (2, 1), (1, 1), attempt=1)]) == ""


def test_a_loser_that_read_a_hole_where_the_winners_read_records_is_doubted() -> None:
    """Also where neither they nor the attempt before claim any."""
    winners = (report(0, (0, 6)), report(1, (6, 5)))
    loser = report(0, (0, 6), (1, 1), attempt=1)
    for before in (None, ()):
        said = doubt(*winners, before=before, losers=[loser])
        assert "two tasks do not agree on holes: offset 101" in said


def test_a_winner_that_read_nothing_cannot_claim_a_hole_for_others() -> None:
    idle = TaskReport(TaskId(0, 2, 0), holes=((1, 1),))
    winners = (report(0, (0, 6)), report(1, (6, 5)), idle)
    found = find_winners((3,), winners, INTENT.roots)
    assert isinstance(found, Winners)
    assert "two tasks do not agree on holes" in holes.doubt(found, winners, INTENT, None)


def test_tasks_have_to_agree_on_every_run_that_they_read() -> None:
    runs = ((0, 3), (6, 2))
    loser = TaskReport(TaskId(0, 0, 1), roots_read=runs, holes=((1, 1),))
    assert "two tasks do not agree on holes: offset 102" in doubt(*BOTH, losers=[loser])
    assert doubt(*BOTH, losers=[replace(loser, holes=((1, 2),))]) == ""


def test_a_hole_at_the_beginning_of_a_range_is_named_by_that_range() -> None:
    said = doubt(report(0, (0, 6)), report(1, (6, 5), (6, 1)), before=())
    assert said.startswith("offset 0 of source 's' (partition 0000000000000002)")


def test_no_run_is_empty() -> None:
    assert holes.joined([(5, 0), (0, 2), (2, 0), (2, 1)]) == ((0, 3),)
    assert holes.clipped(((0, 2), (4, 3)), (2, 2)) == ()
    assert holes.clipped(((0, 2), (4, 3)), (1, 4)) == ((1, 1), (4, 1))


def test_a_hole_that_was_set_aside_in_an_earlier_attempt_counts_once() -> None:
    winners = Winners((report(0, (0, 6), (1, 2)), report(1, (6, 5), (9, 1))))
    failed = {2: FailedRoot(2, "p", "no")}
    assert SealDraft(winners, Progress(INTENT), 0).holes == 3
    assert SealDraft(winners, Progress(INTENT, failed=failed), 0).holes == 2
    assert SealDraft(None, Progress(INTENT, failed=failed), 0).holes == 0


def test_a_replay_is_never_a_hole() -> None:
    assert "a replay was read as a hole" in doubt(BOTH[0], report(1, (6, 5), (10, 1)))


def test_a_hole_that_nobody_read_is_no_hole() -> None:
    wrong = (report(0, (0, 6), (6, 1)), report(1, (6, 5), (6, 1)))
    assert doubt(*wrong) != ""
    assert "among roots that it did not read" in doubt(report(0, (0, 6), (7, 1)), report(1, (6, 5)))


def test_a_short_read_is_still_one_with_holes_around_it() -> None:
    short = (report(0, (0, 5), (1, 2)), report(1, (6, 5)))
    assert isinstance(find_winners((2,), short, INTENT.roots), Inconsistent)


runs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=6).map(
    lambda found: holes.joined(
        {(number, 1) for first, count in found for number in range(first, first + count)}
    )
)


@given(runs, st.integers(0, 40))
def test_halves_of_a_claim_say_what_the_whole_says(claim: holes.Runs, at: int) -> None:
    low, high = holes.split(claim, at)
    assert low is not None
    assert high is not None
    moved = [number + at for number in holes.numbers(high)]
    assert [*holes.numbers(low), *moved] == list(holes.numbers(claim))
    inside = holes.numbers(holes.clipped(claim, (at, 9)))
    assert list(inside) == [number for number in holes.numbers(claim) if at <= number < at + 9]


@given(runs, runs)
def test_what_is_left_without_other_runs_is_what_they_lack(
    one: holes.Runs, other: holes.Runs
) -> None:
    left = holes.less(one, other)
    lacking = set(holes.numbers(other))
    assert list(holes.numbers(left)) == [n for n in holes.numbers(one) if n not in lacking]
    assert holes.joined(left) == left


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=8))
def test_joined_runs_are_apart_and_hold_the_same_numbers(said: list[tuple[int, int]]) -> None:
    found = holes.joined(said)
    assert list(holes.numbers(found)) == sorted(set(holes.numbers(said)))
    assert all(sum(one) < other[0] for one, other in pairwise(found))


def test_a_claim_of_many_holes_is_not_walked_through_for_each_range() -> None:
    class Walked(tuple[tuple[int, int], ...]):
        seen = 0

        def __getitem__(self, at):
            found = super().__getitem__(at)
            Walked.seen += len(found) if isinstance(at, slice) else 1
            return found

        def __iter__(self):
            Walked.seen += len(self)
            return super().__iter__()

    count, ranges = 10_000, 100
    claim = Walked((2 * n, 1) for n in range(count))
    each = 2 * count // ranges
    parts = [holes.clipped(claim, (each * n, each)) for n in range(ranges)]
    assert [run for part in parts for run in part] == list(claim)
    assert Walked.seen < 3 * count + ranges * 100


def test_the_halves_of_a_window_know_what_its_attempts_claimed() -> None:
    first = Intent(3, (RootRange("s", 1, 100, 4),))
    second = Intent(4, (RootRange("s", 1, 104, 2), RootRange("s", 2, 0, 4)), INTENT.replays)
    low, high = halves(Progress(INTENT, holes=((3, 2), (9, 1))), 4, first, second)
    assert (low.holes, high.holes) == (((3, 1),), ((0, 1), (5, 1)))
    low, high = halves(Progress(INTENT), 4, first, second)
    assert (low.holes, high.holes) == (None, None)


def test_holes_count_as_no_roots() -> None:
    record = first_record("u", Tag(1, 1, 1, 1))
    record = open_next(record, NextWindow(INTENT.ranges, (), {}, False))
    sealed = seal(record, Outcome(holes=3))
    assert sealed.totals.roots == 7
    (cohort,) = sealed.cohorts
    assert (cohort.roots, cohort.done) == (7, 7)
    assert cohorts.judge((), replace(INTENT, replays=()), (), (), 10) == ()
