"""A driver never goes on from less than it has committed itself, nor stays with emptied servers."""

from __future__ import annotations

from machine_script import Script, describe

from millrace.protocol import events as e
from millrace.protocol.driver import DRAIN_TICKS
from millrace.protocol.membership import Standing

ONE = """
    record R 1.1.1.5 sealed 3
    propose a1
    start
    -> ReadView
    view 4 e1 open x1 a1
    -> CasView 4 e1 open x2 a1
    cas done
    -> SendStamp a1 e1x2
    stamped a1 R
    -> CopyObjects 1.1.1.5 from a1
    copied
    -> SendRecord a1 1.2.1.1 sealed 3 published 3
    ack a1
    -> Notify DriverRecovered
    -> FenceSinks x2
    -> Plan behind {}
    fenced
    planned 4
    -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    ack a1
    -> Run 1 of 4: 0+4
    -> Plan behind {'s': 4}
    """

TWO = """
    record R 1.1.1.5 sealed 3
    propose a1 b1
    start
    view 4 e1 open x1 a1 b1
    cas done
    stamped a1 R
    stamped b1 R
    copied
    ack a1
    ack b1
    fenced
    planned 4
    ack a1
    ack b1
    """


def stops(script: Script) -> list[e.StopKind]:
    return [one.kind for one in script.actions if isinstance(one, e.Stop)]


def two() -> Script:
    script = Script()
    script.tell(*(line.strip() for line in TWO.strip().splitlines()))
    assert script.machine.membership.standing is Standing.RECOVERED
    return script


def test_a_server_that_comes_back_with_less_of_the_same_epoch_is_not_believed() -> None:
    """As behind a file that was cut while it was loaded, or put back from a copy."""
    script = Script(copies=1).play(ONE)
    script.play(
        """
        propose a2
        -> Cancel 1 of 4
        -> CasView 5 e2 moving x2 a1 to a2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp a2 e2x2
        unreachable a1
        stamped a2 R cut
        -> Stop behind
        """
    )


def test_one_that_comes_back_with_all_of_it_is() -> None:
    script = Script(copies=1).play(ONE)
    script.tell("propose a2", "cas done", "unreachable a1", "stamped a2 R")
    assert describe(script.actions[-1]) == "CopyObjects 1.2.1.2 from a2"


def test_of_several_the_one_that_has_the_newest_is_waited_for() -> None:
    script = two()
    script.tell("propose a2", "cas done", "stamped a2 R cut", "unreachable a1", "unreachable b1")
    assert script.machine.membership.standing is Standing.STAMPING
    assert not stops(script)
    script.tell("wait 1", "tick", "wait 1", "tick")
    told = [one for one in script.actions if isinstance(one, e.Notify)]
    (waits,) = [one.text for one in told if one.kind == "StateMissing"]
    assert "b may have the newest" in waits
    # It has only restarted.
    script.tell("propose a2 b2", "cas done", "unreachable a1", "unreachable b1")
    script.tell("stamped a2 R cut", "stamped b2 R")
    assert describe(script.actions[-1]) == "CopyObjects 1.2.1.2 from a2 b2"


def test_where_all_have_less_the_driver_stops() -> None:
    script = two()
    script.tell("propose a2 b2", "cas done", "unreachable a1", "unreachable b1")
    script.tell("stamped a2 R cut", "stamped b2 R cut")
    assert stops(script) == [e.StopKind.BEHIND]


def test_what_was_written_for_a_view_that_never_opened_may_vanish() -> None:
    """A write-back is committed once its view is open."""
    script = two()
    script.tell("propose a1 b1 c1", "died member", "cas done")
    script.tell("stamped a1 R", "stamped b1 R", "stamped c1 none", "copied")
    written = [one.record for one in script.actions if isinstance(one, e.SendRecord)][-1]
    before = {name: script.kept[name] for name in "ab"}
    script.tell("ack a1")
    script.kept |= before
    script.tell("propose a2 b1", "cas done", "unreachable a1", "stamped a2 R", "stamped b1 R")
    assert written.tag > before["a"].tag
    assert not stops(script)
    assert "CopyObjects 1.2.1.2" in str(describe(script.actions[-1]))


def test_a_server_that_was_emptied_in_its_own_life_is_noticed_also_in_the_first_of_a_topology() -> (
    None
):
    """The driver itself has written the record that it holds no more."""
    script = Script(copies=1)
    script.tell("propose a1", "start", "view none", "cas done", "stamped a1 none", "ack a1")
    script.tell("cas done", "fenced", "planned 4")
    assert script.machine.membership.standing is Standing.RECOVERED
    script.tell("refused a1 unstamped", "wait 1", "tick", "wait 1", "tick", "stamped a1 none")
    assert stops(script) == [e.StopKind.LOST]


def test_one_that_loses_its_stamp_while_the_record_is_written_back_is_stamped_again() -> None:
    script = Script(copies=1)
    script.tell("propose a1", "start", "view none", "cas done", "stamped a1 none")
    assert script.machine.membership.standing is Standing.WRITING
    begin = len(script.actions)
    script.tell("refused a1 unstamped")
    asked = [one for one in script.actions[begin:] if isinstance(one, e.SendStamp)]
    assert [one.member.name for one in asked] == ["a"]


def test_a_driver_that_is_to_stop_waits_for_no_server_for_long() -> None:
    script = two()
    script.tell("propose a2 b2", "cas done", "unreachable a1", "unreachable b1", "stamped a2 none")
    script.tell("stop")
    assert not stops(script)
    for _ in range(DRAIN_TICKS):
        script.tell("wait 1", "tick")
    assert stops(script) == [e.StopKind.ASKED]
