"""What becomes of an attempt, and the bound on the runs of a window with killers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.types import Evidence, FailedRoot, Guarantee, Intent, RootRange
from millrace.protocol.windows.decide import (
    BREAKAGE_PAUSES_S,
    KILLED,
    Died,
    DropIt,
    GiveUp,
    Judged,
    Progress,
    RunAgain,
    SealIt,
    SplitIt,
    decide,
    halves,
)

EXACTLY, AT_LEAST, AT_MOST = (
    Guarantee.EXACTLY_ONCE,
    Guarantee.AT_LEAST_ONCE,
    Guarantee.AT_MOST_ONCE,
)


def intent(count: int, start: int = 0) -> Intent:
    return Intent(1, (RootRange("s", 0, start, count),))


def failed(*sequences: int) -> tuple[FailedRoot, ...]:
    return tuple(FailedRoot(s, "p", "no") for s in sequences)


def judged(*sequences: int, complete: bool = True, combined: int = 0) -> Judged:
    return Judged(failed(*sequences), (("p", combined, "no"),) if combined else (), complete)


def died(reason: str = "oops", evidence: Evidence = Evidence.USER_CODE) -> Died:
    return Died(reason, evidence)


BROKE = died("an assertion in Spark", Evidence.NONE)
LOST = Judged((), (), True, failed(0), last_try=True)
NO_EVIDENCE = [BROKE, judged(complete=False), LOST]
"""Outcomes that say nothing about any root."""


class TestOneDecision:
    def test_a_good_attempt_is_sealed(self) -> None:
        for guarantee in Guarantee:
            assert isinstance(decide(Progress(intent(3)), judged(), guarantee), SealIt)

    def test_failed_roots_are_left_out_next_time(self) -> None:
        decision = decide(Progress(intent(3)), judged(1), EXACTLY)
        assert isinstance(decision, RunAgain)
        assert set(decision.progress.failed) == {1}

    def test_partial_effects_are_sealed_at_least_once(self) -> None:
        decision = decide(Progress(intent(3)), judged(1), AT_LEAST)
        assert isinstance(decision, SealIt)
        assert set(decision.progress.failed) == {1}

    @pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
    def test_a_broken_window_tree_is_never_sealed(self, guarantee: Guarantee) -> None:
        """Not even when some root is known to have failed: of the others nothing is known."""
        for outcome in (judged(complete=False), judged(1, complete=False)):
            decision = decide(Progress(intent(3)), outcome, guarantee)
            assert isinstance(decision, RunAgain)
        assert set(decision.progress.failed) == {1}

    def test_at_most_once_drops_instead(self) -> None:
        named = decide(Progress(intent(3)), judged(0, 2), AT_MOST)
        assert isinstance(named, SealIt)
        assert (set(named.progress.failed), named.dropped) == ({0, 2}, 0)
        assert isinstance(decide(Progress(intent(3)), died(), AT_MOST), DropIt)
        combined = decide(Progress(intent(1)), judged(0, combined=3), AT_MOST)
        assert isinstance(combined, SealIt)
        assert (len(combined.progress.failed), combined.dropped) == (1, 0), "as many as there are"

    def test_a_failure_after_a_combine_asks_for_ids(self) -> None:
        decision = decide(Progress(intent(3)), judged(combined=0b101), EXACTLY)
        assert isinstance(decision, RunAgain)
        assert decision.progress.uncombined == {"p": 0b101}

    def test_two_deaths_split(self) -> None:
        first = decide(Progress(intent(5)), died(), EXACTLY)
        assert isinstance(first, RunAgain)
        second = decide(first.progress, died(), EXACTLY)
        assert isinstance(second, SplitIt)
        assert second.at == 2

    def test_an_expression_that_fails_for_some_row_is_evidence(self) -> None:
        progress = decide(Progress(intent(5)), died("a cast", Evidence.ROW), EXACTLY).progress
        assert isinstance(decide(progress, died("a cast", Evidence.ROW), EXACTLY), SplitIt)

    @pytest.mark.parametrize("outcome", NO_EVIDENCE, ids=["broke", "window tree", "lost tuples"])
    @pytest.mark.parametrize("guarantee", [*Guarantee])
    @pytest.mark.parametrize("roots", [1, 5])
    def test_without_evidence_it_runs_again_ever_later_and_then_stops(
        self, outcome: Judged | Died, guarantee: Guarantee, roots: int
    ) -> None:
        progress, pauses = Progress(intent(roots)), []
        for _ in BREAKAGE_PAUSES_S:
            decision = decide(progress, outcome, guarantee)
            assert isinstance(decision, RunAgain)
            progress = decision.progress
            assert not progress.failed
            pauses.append(decision.pause_s)
        assert pauses == sorted(set(pauses))
        last = decide(progress, outcome, guarantee)
        assert isinstance(last, GiveUp)
        assert last.kind == "engine"
        assert not last.progress.failed

    def test_what_is_no_evidence_counts_neither_as_a_run_nor_as_a_death(self) -> None:
        progress = Progress(intent(1))
        for _ in range(3):
            progress = decide(progress, BROKE, EXACTLY).progress
        first = decide(progress, died(), EXACTLY)
        assert isinstance(first, RunAgain)
        assert not first.progress.failed
        assert first.progress.breakages == 0
        for _ in range(3):
            progress = decide(first.progress, BROKE, EXACTLY).progress
        assert decide(progress, died(), EXACTLY).progress.failed[0].processor == KILLED

    def test_failed_roots_of_a_broken_attempt_are_left_out_of_the_next(self) -> None:
        outcome = Judged(failed(2), (), True, failed(1), last_try=True)
        decision = decide(Progress(intent(3)), outcome, EXACTLY)
        assert isinstance(decision, RunAgain)
        assert set(decision.progress.failed) == {2}

    def test_roots_that_lost_tuples_are_replayed_while_they_may_be(self) -> None:
        outcome = Judged(failed(2), (), True, failed(1))
        for guarantee, kind in ((EXACTLY, RunAgain), (AT_LEAST, SealIt)):
            decision = decide(Progress(intent(3)), outcome, guarantee)
            assert isinstance(decision, kind)
            assert set(decision.progress.failed) == {1, 2}
        dropped = decide(Progress(intent(3)), outcome, AT_MOST)
        assert isinstance(dropped, SealIt)
        assert set(dropped.progress.failed) == {1, 2}

    def test_roots_that_lost_tuples_of_a_broken_window_run_again(self) -> None:
        outcome = Judged(failed(2), (), False, failed(1))
        assert set(decide(Progress(intent(3)), outcome, EXACTLY).progress.failed) == {2}

    def test_a_final_window_whose_user_code_kills_gives_up(self) -> None:
        final = replace(intent(0), final=True)
        progress = decide(Progress(final), died(), EXACTLY).progress
        decision = decide(progress, died(), EXACTLY)
        assert isinstance(decision, GiveUp)
        assert decision.kind == "failed"

    def test_two_deaths_blame_the_only_root(self) -> None:
        first = decide(Progress(intent(1)), died(), EXACTLY)
        second = decide(first.progress, died(), EXACTLY)
        assert isinstance(second, RunAgain)
        assert second.progress.failed[0].processor == KILLED
        assert second.progress.remaining == 0

    def test_the_last_root_is_not_blamed_for_what_others_did(self) -> None:
        progress = decide(Progress(intent(3)), judged(combined=1), EXACTLY).progress
        progress = decide(progress, judged(0), EXACTLY).progress
        third = decide(progress, judged(1), EXACTLY)
        assert isinstance(third, RunAgain)
        assert set(third.progress.failed) == {0, 1}

    def test_halves_know_what_was_known(self) -> None:
        progress = Progress(intent(5), dict(zip((1, 4), failed(1, 4), strict=True)))
        low, high = halves(progress, 2, intent(2), intent(3, 2))
        assert set(low.failed) == {1}
        assert {s: f.sequence for s, f in high.failed.items()} == {2: 2}


# -- whole windows


@dataclass
class World:
    """Roots of one window by their offsets; a killer takes the whole run with it."""

    killers: frozenset[int]
    raising: frozenset[int]
    broken: Iterator[bool]
    runs: int = 0

    def attempt(self, progress: Progress) -> Judged | Died:
        if next(self.broken, False):
            return BROKE
        self.runs += 1
        start = progress.intent.ranges[0].start
        alive = {s: start + s for s in range(progress.intent.roots) if s not in progress.failed}
        if self.killers & set(alive.values()):
            return died("the worker died")
        return judged(*(s for s, offset in alive.items() if offset in self.raising))


def finish(world: World, progress: Progress) -> list[int]:
    """Run a window and its halves to their seals; offsets of the roots that were set aside."""
    while progress.remaining:
        decision = decide(progress, world.attempt(progress), EXACTLY)
        progress = decision.progress
        if isinstance(decision, SealIt):
            break
        if isinstance(decision, SplitIt):
            start, at = progress.intent.ranges[0].start, decision.at
            low, high = halves(
                progress, at, intent(at, start), intent(progress.intent.roots - at, start + at)
            )
            return finish(world, low) + finish(world, high)
        assert isinstance(decision, RunAgain)
    return [progress.intent.ranges[0].start + s for s in sorted(progress.failed)]


def _never_too_often(broken: list[bool]) -> bool:
    """Whether no failure of the engine lasts longer than a window waits."""
    limit = len(BREAKAGE_PAUSES_S)
    return all(len(list(row)) <= limit for bad, row in groupby(broken) if bad)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 64), st.data())
def test_a_window_with_killers_ends_within_the_bound(roots: int, data: st.DataObject) -> None:
    killers = data.draw(st.frozensets(st.integers(0, roots - 1), max_size=min(roots, 5)))
    raising = data.draw(st.frozensets(st.integers(0, roots - 1), max_size=min(roots, 5)))
    broken = data.draw(st.lists(st.booleans(), max_size=40).filter(_never_too_often))
    world = World(killers, raising - killers, iter(broken))
    assert finish(world, Progress(intent(roots))) == sorted(killers | raising)
    assert world.runs <= 3 * (1 + 2 * len(killers) * ceil(log2(roots)))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 6), st.data())
def test_random_deaths_blame_a_root_only_after_two_in_a_row_alone(
    roots: int, data: st.DataObject
) -> None:
    """A worker may be killed from outside at any time."""
    pieces = [Progress(intent(roots))]
    while pieces:
        progress, alone = pieces.pop(), 0
        while progress.remaining:
            left = [s for s in range(progress.intent.roots) if s not in progress.failed]
            bad = data.draw(st.sets(st.sampled_from(left), max_size=2) | st.just("died"))
            outcome = died() if bad == "died" else judged(*sorted(bad))
            alone = alone + 1 if bad == "died" and len(left) == 1 else 0
            decision = decide(progress, outcome, EXACTLY)
            progress = decision.progress
            blamed = any(one.processor == KILLED for one in progress.failed.values())
            assert not blamed or alone == 2
            if isinstance(decision, SplitIt):
                at = decision.at
                pieces += halves(progress, at, intent(at), intent(progress.intent.roots - at))
                break
            if isinstance(decision, SealIt):
                break


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.data())
def test_random_failures_never_blame_a_root_that_did_not_fail(
    roots: int, data: st.DataObject
) -> None:
    """Each run some of the remaining roots fail at random; deaths do not happen."""
    progress, seen = Progress(intent(roots)), set()
    pieces = [progress]
    while pieces:
        progress = pieces.pop()
        while progress.remaining:
            left = [s for s in range(progress.intent.roots) if s not in progress.failed]
            bad = data.draw(st.sets(st.sampled_from(left), max_size=2))
            start = progress.intent.ranges[0].start
            seen |= {start + s for s in bad}
            decision = decide(progress, judged(*sorted(bad)), EXACTLY)
            progress = decision.progress
            assert {start + s for s in progress.failed} <= seen
            if isinstance(decision, SplitIt):
                at = decision.at
                first, second = intent(at, start), intent(progress.intent.roots - at, start + at)
                pieces += halves(progress, at, first, second)
                break
            if isinstance(decision, SealIt):
                break
