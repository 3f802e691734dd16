"""Windows get another size while a driver runs: from which one on, and what was found before."""

from __future__ import annotations

from machine_script import Script
from test_windows_events import OPEN, RUN, script

from millrace.protocol import events as e
from millrace.protocol.membership import Standing
from millrace.protocol.types import Guarantee, RootRange


def plans(found) -> list[e.Plan]:
    return [action for action in found.actions if isinstance(action, e.Plan)]


def test_the_next_window_is_planned_anew() -> None:
    """Window 4 runs, and what is found for 5 has the old size: it is asked for again."""
    found = script(OPEN, RUN)
    asked = plans(found)[-1]
    late = e.Planned(asked.token, (RootRange("s", 0, 4, 8),), {"s": 12}, False)
    found.machine.handle(late, found.now_s)
    assert found.machine.windows.planning.found is not None
    assert found.machine.resize(2) == 5
    assert found.machine.windows.planning.found is None
    found.tell("wait 1")
    again = [a for a in found.machine.handle(e.Tick(), found.now_s) if isinstance(a, e.Plan)]
    assert again == [e.Plan(asked.token + 1, {"s": 4})]
    assert found.machine.handle(late, found.now_s) == [], "the answer to the old question is late"
    assert found.machine.windows.planning.found is None


def test_where_nothing_is_open_it_is_the_window_behind_the_sealed_one() -> None:
    found = script(OPEN)
    assert found.machine.resize(2) == 4
    assert found.machine.windows.settings.max_records == 2


def test_not_while_a_record_is_on_its_way_that_may_open_a_window() -> None:
    found = script(OPEN)
    found.tell("planned 4")
    assert found.machine.windows.writing is not None
    assert found.machine.resize(2) is None
    assert found.machine.windows.settings.max_records == 8
    found.tell("ack a1")
    assert found.machine.resize(2) == 5


def test_not_before_at_most_once_has_given_up_what_was_open() -> None:
    """The window that is opened next has the number of the one that is given up."""
    found = Script(guarantee=Guarantee.AT_MOST_ONCE)
    found.tell("record R 1.1.1.5 sealed 3 open 4", "start", "view 4 e1 open x1 a1", "cas done")
    found.tell("stamped a1 R", "copied", "ack a1")
    assert found.machine.resize(2) is None
    found.tell("fenced", "ack a1")
    assert found.machine.resize(2) == 4


def test_not_while_members_change() -> None:
    """What is open when the view is, a restart of this driver may decide."""
    found = script(OPEN)
    found.tell("propose a2")
    assert found.machine.membership.standing is Standing.MOVING
    assert found.machine.resize(2) is None
    assert found.machine.windows.settings.max_records == 8


def test_not_before_the_record_is_known() -> None:
    found = script()
    found.tell("start")
    assert found.machine.resize(2) is None


def test_drained_sources_are_asked_once_more_before_all_is_over() -> None:
    """What was found and is forgotten must not be taken for nothing."""
    found = script(OPEN, RUN)
    asked = plans(found)[-1]
    last = e.Planned(asked.token, (RootRange("s", 0, 4, 8),), {"s": 12}, True)
    found.machine.handle(last, found.now_s)
    assert found.machine.windows.planning.drained
    found.machine.resize(2)
    assert not found.machine.windows.planning.nothing_left
    again = found.machine.handle(e.Tick(), found.now_s)
    assert any(isinstance(action, e.Plan) for action in again)
