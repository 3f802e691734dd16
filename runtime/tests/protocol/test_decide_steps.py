"""Each step of a decision at its edge: how often, how many, and who is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.protocol.types import Evidence, FailedRoot, Guarantee, Intent, RootRange
from millrace.protocol.windows.decide import (
    KILLED,
    Died,
    Judged,
    Progress,
    RunAgain,
    SealIt,
    SplitIt,
    decide,
    halves,
)

EXACTLY, AT_MOST = Guarantee.EXACTLY_ONCE, Guarantee.AT_MOST_ONCE
DEATH = Died("oops", Evidence.USER_CODE)


def window(count: int, **known: int) -> Progress:
    return replace(Progress(Intent(1, (RootRange("s", 0, 0, count),))), **known)


def failed(*sequences: int) -> tuple[FailedRoot, ...]:
    return tuple(FailedRoot(s, "p", "no") for s in sequences)


def combined(*groups: int, roots: tuple[FailedRoot, ...] = ()) -> Judged:
    return Judged(roots, tuple(("p", one, "no") for one in groups), True)


def test_something_unreadable_beside_something_that_failed_runs_again() -> None:
    both = (replace(failed(0)[0], unreadable=True), *failed(1))
    assert isinstance(decide(window(3), Judged(both, (), True), EXACTLY), RunAgain)
    assert isinstance(decide(window(3), Judged(both[:1], (), True), EXACTLY), SealIt)


def test_the_second_failing_attempt_splits() -> None:
    first = decide(window(4), Judged(failed(0), (), True), EXACTLY)
    assert isinstance(first, RunAgain)
    assert (first.progress.runs, first.progress.failing_runs) == (1, 1)
    second = decide(first.progress, Judged(failed(1), (), True), EXACTLY)
    assert isinstance(second, SplitIt)
    assert (second.progress.failing_runs, second.at) == (2, 3)


@pytest.mark.parametrize(("runs", "kind"), [(1, RunAgain), (2, SplitIt)])
def test_the_third_run_of_any_kind_splits(runs: int, kind: type) -> None:
    for outcome in (Judged(failed(0), (), True), DEATH, combined(4)):
        assert isinstance(decide(window(4, runs=runs), outcome, EXACTLY), kind)


def test_the_third_run_blames_the_root_that_was_alone_in_all_of_them() -> None:
    third = decide(window(1, runs=2), combined(4), EXACTLY)
    assert third.progress.failed[0].processor == KILLED


def test_the_second_death_splits() -> None:
    assert isinstance(decide(window(4), DEATH, EXACTLY), RunAgain)
    assert isinstance(decide(window(4, deaths=1, runs=1), DEATH, EXACTLY), SplitIt)


def test_a_failure_after_a_combine_is_told_before_the_windows_own_tree() -> None:
    """The tree is incomplete because of it."""
    outcome = replace(combined(4), window_complete=False)
    again = decide(window(4), outcome, EXACTLY)
    assert isinstance(again, RunAgain)
    assert (again.progress.uncombined, again.progress.breakages) == ({"p": 4}, 0)


def test_key_groups_add_up_and_known_ones_narrow() -> None:
    again = decide(window(4), combined(4, 2), EXACTLY)
    assert again.progress.uncombined == {"p": 6}
    more = decide(again.progress, combined(9), EXACTLY)
    assert isinstance(more, RunAgain)
    assert more.progress.uncombined == {"p": 15}
    known = decide(again.progress, combined(4), EXACTLY)
    assert isinstance(known, SplitIt)


def test_with_somebody_else_to_blame_the_last_root_is_not() -> None:
    known = replace(window(2, runs=1), uncombined={"p": 4})
    spared = decide(known, combined(4, roots=failed(0)), EXACTLY)
    assert isinstance(spared, RunAgain)
    assert set(spared.progress.failed) == {0}
    blamed = decide(replace(window(1, runs=1), uncombined={"p": 4}), combined(4), EXACTLY)
    assert isinstance(blamed, RunAgain)
    assert [root.processor for root in blamed.progress.failed.values()] == [KILLED]


@pytest.mark.parametrize(
    ("count", "before"),
    [
        (3, [Judged(failed(0), (), True), Judged(failed(1), (), True)]),
        (2, [DEATH, Judged(failed(0), (), True)]),
        (2, [combined(4), combined(2), combined(2, roots=failed(0))]),
    ],
    ids=["two failed", "a death beside the other", "after a combine"],
)
def test_one_death_alone_blames_nobody_whatever_happened_beside_others(
    count: int, before: list[Judged | Died]
) -> None:
    progress = window(count)
    for outcome in before:
        decision = decide(progress, outcome, EXACTLY)
        assert isinstance(decision, RunAgain)
        progress = decision.progress
    assert (progress.remaining, progress.runs, progress.deaths) == (1, 0, 0)
    once = decide(progress, DEATH, EXACTLY)
    assert isinstance(once, RunAgain)
    assert once.progress.remaining == 1
    twice = decide(once.progress, DEATH, EXACTLY)
    assert twice.progress.failed[count - 1].processor == KILLED


def test_two_roots_that_are_left_are_parted() -> None:
    again = decide(window(3, runs=1, failing_runs=1), Judged(failed(0), (), True), EXACTLY)
    assert isinstance(again, SplitIt)
    assert again.at == 2
    spared = decide(window(2, runs=1, failing_runs=1), Judged(failed(0), (), True), EXACTLY)
    assert isinstance(spared, RunAgain)
    assert set(spared.progress.failed) == {0}


def test_at_most_once_counts_what_failed_and_what_was_lost_but_no_more_than_there_is() -> None:
    outcome = replace(combined(4, 2, roots=failed(0)), lost=failed(1, 2))
    for roots, dropped in ((9, 5), (5, 5), (4, 4)):
        decision = decide(window(roots), outcome, AT_MOST)
        assert isinstance(decision, SealIt)
        assert len(decision.progress.failed) + decision.dropped == dropped


def test_the_first_root_of_the_second_half_goes_with_it() -> None:
    known = replace(window(4), failed={root.sequence: root for root in failed(1, 2, 3)})
    low, high = halves(known, 2, window(2).intent, window(2).intent)
    assert set(low.failed) == {1}
    assert set(high.failed) == {0, 1}
    assert [root.sequence for root in high.failed.values()] == [0, 1]
