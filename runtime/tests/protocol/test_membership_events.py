"""Events that are late, repeated or about another round change nothing in the membership."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_script import Script, member

from millrace.protocol import events as e
from millrace.protocol.types import Stamp

RECORD = "record R 1.1.1.5 sealed 3\n"
CLAIM = """
    propose a1 b1
    start
    -> ReadView
    view 4 e1 open x1 a1 b1
    -> CasView 4 e1 open x2 a1 b1
    """
STAMPING = """
    cas done
    -> SendStamp a1 e1x2
    -> SendStamp b1 e1x2
    """
COPYING = """
    stamped a1 R
    stamped b1 R
    -> CopyObjects 1.1.1.5 from a1 b1
    """
WRITING = """
    copied
    -> SendRecord a1 1.2.1.1 sealed 3 published 3
    -> SendRecord b1 1.2.1.1 sealed 3 published 3
    """
SERVERS_CHANGED = """
    propose a1 c1
    -> CasView 5 e2 moving x2 a1 b1 to a1 c1
    """


def script(*steps: str) -> Script:
    found = Script()
    found.play(RECORD)
    for step in steps:
        found.play(step)
    return found


def told(found: Script, event: e.Event) -> list[e.Action]:
    return found.machine.handle(event, found.now_s)


def claimed(found: Script) -> e.CasView:
    action = found.actions[-1]
    assert isinstance(action, e.CasView)
    return action


def test_a_lost_claim_is_looked_up_once() -> None:
    found = script(CLAIM)
    lost = e.CasLost(claimed(found).view)
    assert told(found, lost) == [e.ReadView()]
    assert told(found, lost) == [], "nothing is claimed any more"


def test_the_loss_of_another_claim_is_nothing() -> None:
    found = script(CLAIM)
    other = replace(claimed(found).view, execution=9)
    assert told(found, e.CasLost(other)) == []
    found.play(STAMPING)
    assert told(found, e.CasLost(other)) == []


def test_a_lost_move_is_still_wanted() -> None:
    found = script(CLAIM, STAMPING, SERVERS_CHANGED)
    moving = claimed(found).view
    assert told(found, e.CasLost(moving)) == [e.ReadView()]
    (again,) = told(found, e.ViewRead(7, replace(moving, epoch=1)))
    assert again == e.CasView(7, moving)


def test_before_there_is_a_view_nobody_can_refuse() -> None:
    found = script("start\n-> ReadView")
    stamp = Stamp(1, 1)
    assert told(found, e.Refused(member("a1"), stamp, "stamp", Stamp(1, 2))) == []
    assert told(found, e.Unreachable(member("a1"), stamp)) == []


@pytest.mark.parametrize(
    ("reason", "current", "looks"),
    [
        ("stamp", Stamp(1, 3), True),
        ("stamp", Stamp(2, 2), True),
        ("stamp", Stamp(1, 2), False),
        ("stamp", Stamp(1, 1), False),
        ("stamp", None, False),
        ("unstamped", Stamp(1, 3), False),
        ("runId", None, False),
    ],
)
def test_only_a_newer_stamp_makes_it_look_for_a_successor(
    reason: str, current: Stamp | None, looks: bool
) -> None:
    found = script(CLAIM, STAMPING)
    actions = told(found, e.Refused(member("a1"), Stamp(1, 2), reason, current))
    assert (e.ReadView() in actions) is looks


def test_refusals_and_silence_of_another_round_are_nothing() -> None:
    """A member that could not be reached under an older stamp is not lost under this one."""
    found = script(CLAIM, STAMPING)
    older = Stamp(1, 1)
    assert told(found, e.Refused(member("a1"), older, "stamp", Stamp(1, 3))) == []
    for event in (e.Unreachable(member("b1"), older), e.Refused(member("b1"), older, "runId")):
        assert told(found, event) == []
    found.play("stamped a1 R\nunreachable b1\n-> Notify StateServerAway")
    assert found.machine.membership.step.value == "stamping"


@pytest.mark.parametrize("steps", [(STAMPING,), (STAMPING, COPYING), (STAMPING, COPYING, WRITING)])
def test_other_servers_than_those_of_the_view_make_a_new_one_at_every_step(
    steps: tuple[str, ...],
) -> None:
    found = script(CLAIM, *steps)
    found.play(SERVERS_CHANGED)
    assert found.machine.membership.step.value == "moving"


@pytest.mark.parametrize("event", ["unreachable b1", "refused b1 runId"])
@pytest.mark.parametrize("steps", [(STAMPING, COPYING), (STAMPING, COPYING, WRITING)])
def test_a_member_that_goes_while_the_record_is_on_its_way_is_waited_for(
    steps: tuple[str, ...], event: str
) -> None:
    script(CLAIM, *steps).play(f"{event}\n-> Notify StateServerAway")


def test_missing_state_is_told_once_for_each_round_and_only_while_it_is_copied() -> None:
    found = script(CLAIM, STAMPING)
    stamp = Stamp(1, 2)
    assert told(found, e.CopyFailed(stamp, "x is nowhere")) == []
    found.play(COPYING)
    assert told(found, e.CopyFailed(Stamp(1, 1), "x is nowhere")) == []
    (notice,) = told(found, e.CopyFailed(stamp, "x is nowhere"))
    assert isinstance(notice, e.Notify)
    assert notice.kind == "StateMissing"
    assert told(found, e.CopyFailed(stamp, "x is nowhere")) == []


@pytest.mark.parametrize(("fenced", "kind"), [(True, "fenced"), (False, "failed")])
def test_a_sink_that_refuses_ends_the_driver_and_says_why(fenced: bool, kind: str) -> None:
    found = script(CLAIM, STAMPING, COPYING)
    assert told(found, e.SinkRefused("another has it", fenced)) == [e.Stop(kind, "another has it")]
    assert told(found, e.Tick()) == []


def test_behind_a_stop_nothing_is_answered() -> None:
    found = script(CLAIM, STAMPING)
    found.play("view 5 e1 open x3 a1 b1\n-> Stop fenced")
    for event in (e.Tick(), e.StopAsked(), e.ViewRead(6, None)):
        assert told(found, event) == []
