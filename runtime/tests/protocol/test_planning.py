"""Planning ahead: one question at a time, and only its own answer."""

from __future__ import annotations

import pytest

from millrace.protocol import events as e
from millrace.protocol.types import RootRange
from millrace.protocol.windows.doing import Surprise
from millrace.protocol.windows.planning import Planning

SOME = (RootRange("s", 0, 0, 4),)


def asked() -> tuple[Planning, int]:
    planning = Planning()
    (plan,) = planning.ask({"s": 0})
    assert isinstance(plan, e.Plan)
    assert plan.offsets == {"s": 0}
    return planning, plan.token


def test_a_question_is_asked_once() -> None:
    planning, token = asked()
    assert planning.ask({"s": 0}) == []
    assert planning.planned(e.Planned(token, SOME, {"s": 4}, False)) == []
    assert planning.ask({"s": 4}) == [], "what was found is not planned yet"


def test_what_a_committed_record_has_planned_leads_to_the_next_question() -> None:
    planning, token = asked()
    planning.planned(e.Planned(token, SOME, {"s": 4}, False))
    planning.committed({"s": 3})
    assert planning.found is not None, "another record was committed"
    planning.committed({"s": 4})
    assert planning.found is None
    assert planning.ask({"s": 4}) == [e.Plan(token + 1, {"s": 4})]


def test_a_commit_before_the_answer_changes_nothing() -> None:
    planning, token = asked()
    planning.committed({"s": 0})
    assert planning.ask({"s": 0}) == []
    assert planning.surprise(e.Planned(token, SOME, {"s": 4}, False)) is None


@pytest.mark.parametrize("ranges", [(), SOME])
def test_drained_sources_are_not_asked_again(ranges: tuple[RootRange, ...]) -> None:
    planning, token = asked()
    planning.planned(e.Planned(token, ranges, {"s": 4}, True))
    assert planning.nothing_left is not bool(ranges)
    planning.committed({"s": 4})
    assert planning.nothing_left
    assert planning.ask({"s": 4}) == []


def test_a_restart_asks_anew_also_of_drained_sources() -> None:
    planning, token = asked()
    planning.planned(e.Planned(token, SOME, {"s": 4}, True))
    planning.restart()
    assert planning.found is None
    assert not planning.nothing_left
    assert planning.ask({"s": 0}) == [e.Plan(token + 1, {"s": 0})]
    late = e.Planned(token, SOME, {"s": 4}, True)
    assert planning.surprise(late) is Surprise.LATE
    assert planning.surprise(e.PlanFailed(token, "gone")) is Surprise.LATE


def test_an_answer_is_late_doubled_or_a_bug() -> None:
    planning, token = asked()
    answer = e.Planned(token, SOME, {"s": 4}, False)
    assert planning.surprise(answer) is None
    assert planning.surprise(e.Planned(token + 1, SOME, {"s": 4}, False)) is Surprise.BUG
    planning.planned(answer)
    assert planning.surprise(answer) is Surprise.DOUBLED
    planning.committed({"s": 4})
    assert planning.surprise(answer) is Surprise.LATE
    unasked = e.Planned(token + 1, SOME, {"s": 8}, False)
    assert planning.surprise(unasked) is Surprise.BUG, "the next question is not asked yet"


def test_a_source_that_cannot_go_on_ends_the_driver() -> None:
    planning, token = asked()
    failed = e.PlanFailed(token, "gone")
    assert planning.surprise(failed) is None
    assert planning.plan_failed(failed) == [e.Stop(e.StopKind.FAILED, "gone")]
    planning.planned(e.Planned(token, SOME, {"s": 4}, False))
    assert planning.surprise(failed) is None
