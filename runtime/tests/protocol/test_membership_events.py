"""Events that are late, repeated or about another round change nothing in the membership."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_script import Script, member

from millrace.protocol import events as e
from millrace.protocol.driver import LOOK_AGAIN
from millrace.protocol.membership import SINCE_CLAIM, SINCE_FURTHER, Standing
from millrace.protocol.types import Phase, Sealed, Stamp, View, nodes_of

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


def test_the_log_lies_elsewhere_as_soon_as_its_server_is_left_out() -> None:
    found = script(CLAIM, STAMPING)
    assert claimed(script(CLAIM)).view.log_member == member("a1")
    found.play(
        """
        propose b1 c1
        -> CasView 5 e2 moving x2 a1 b1 to b1 c1
        """
    )
    assert claimed(found).view.log_member == member("b1")


def test_a_view_names_the_nodes_of_its_members() -> None:
    found = script(CLAIM, STAMPING)
    there = tuple(replace(member(name), node=f"n-{name}") for name in ("a1", "c1"))
    [moving] = told(found, e.MembersSeen(there))
    assert isinstance(moving, e.CasView)
    assert nodes_of(moving.view.target) == {"a": "n-a1", "c": "n-c1"}


def test_a_member_whose_node_nobody_knows_is_on_none() -> None:
    there = (replace(member("a1"), node="n"), member("b1"))
    assert nodes_of(there) == {"a": "n"}


def test_a_lost_move_is_still_wanted() -> None:
    found = script(CLAIM, STAMPING, SERVERS_CHANGED)
    moving = claimed(found).view
    assert told(found, e.CasLost(moving)) == [e.ReadView(SINCE_CLAIM)]
    (again,) = told(found, e.ViewRead(7, replace(moving, epoch=1)))
    assert again == e.CasView(7, moving)


def test_a_record_of_its_own_execution_that_it_has_not_written_ends_it() -> None:
    """The view gave the execution out again, and the members change before any of them is heard."""
    script(CLAIM, STAMPING, SERVERS_CHANGED).play(
        """
        record own 1.2.1.5 sealed 3
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp c1 e2x2
        stamped a1 own
        -> ReadView
        look 6 e2 moving x2 a1 b1 to a1 c1
        -> Stop behind
        """
    )


def test_before_there_is_a_view_nobody_can_refuse() -> None:
    found = script("start\n-> ReadView")
    stamp = Stamp(1, 1)
    assert told(found, e.Refused(member("a1"), stamp, "fenced")) == []
    assert told(found, e.Unreachable(member("a1"), stamp)) == []
    assert told(found, e.Stamped(member("a1"), stamp, None)) == []


def test_before_there_is_a_view_it_should_have_all_that_are_proposed() -> None:
    found = script("propose a1 b1\nstart\n-> ReadView")
    assert found.machine.membership.wanted() == (member("a1"), member("b1"))
    assert not found.machine.membership.view_changed()


@pytest.mark.parametrize(
    ("reason", "looks"),
    [
        ("fenced", True),
        ("staleEpoch", True),
        (e.TAG, False),
        ("behind", False),
        ("unstamped", False),
        ("runId", False),
    ],
)
def test_only_a_newer_stamp_makes_it_look_for_a_successor(reason: str, looks: bool) -> None:
    found = script(CLAIM, STAMPING)
    actions = told(found, e.Refused(member("a1"), Stamp(1, 2), reason))
    assert (e.ReadView(SINCE_FURTHER) in actions) is looks


def test_refusals_and_silence_of_another_round_are_nothing() -> None:
    """A member that could not be reached under an older stamp is not lost under this one."""
    found = script(CLAIM, STAMPING)
    older = Stamp(1, 1)
    assert told(found, e.Refused(member("a1"), older, "fenced")) == []
    for event in (e.Unreachable(member("b1"), older), e.Refused(member("b1"), older, "runId")):
        assert told(found, event) == []
    found.play("stamped a1 R\nunreachable b1\n-> Notify StateServerAway")
    assert found.machine.membership.standing.value == "stamping"


@pytest.mark.parametrize("steps", [(STAMPING,), (STAMPING, COPYING), (STAMPING, COPYING, WRITING)])
def test_other_servers_than_those_of_the_view_make_a_new_one_at_every_step(
    steps: tuple[str, ...],
) -> None:
    found = script(CLAIM, *steps)
    found.play(SERVERS_CHANGED)
    assert found.machine.membership.standing.value == "moving"


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


def test_a_full_server_is_told_once_while_members_change_and_once_that_it_has_room() -> None:
    found = script(CLAIM, STAMPING, COPYING, MOVE_TO_B)
    found.tell("stamped a1 R", "stamped b1 R")
    assert found.machine.membership.standing.value == "copying"
    stamp = Stamp(2, 2)
    assert told(found, e.CopyFailed(Stamp(1, 2), "b is full", full="b")) == []
    (notice,) = told(found, e.CopyFailed(stamp, "b is full", full="b"))
    assert isinstance(notice, e.Notify)
    assert (notice.kind, notice.warning) == ("StateServerFull", True)
    assert notice.text == "b is full; windows wait until then, or until a is a member again"
    assert told(found, e.CopyFailed(stamp, "b is full", full="b")) == []
    again = found.machine.membership.tick()
    assert any(isinstance(action, e.CopyObjects) for action in again), "it is tried again"
    assert found.machine.presence.sealed() == [
        e.Notify("StateServerBack", "state server b has room again", server="b")
    ]


def test_a_copy_that_went_wrong_as_nobody_thought_of_is_told_once_and_asked_for_again() -> None:
    found = script(CLAIM, STAMPING, COPYING)
    stamp = Stamp(1, 2)
    (notice,) = told(found, e.CopyFailed(stamp, "KeyError: 'x'", unexpected=True))
    assert isinstance(notice, e.Notify)
    assert (notice.kind, notice.warning) == ("StateCopyFailed", True)
    assert "KeyError: 'x'" in notice.text
    assert "state server to come back" not in notice.text
    assert told(found, e.CopyFailed(stamp, "KeyError: 'x'", unexpected=True)) == []
    assert any(isinstance(action, e.CopyObjects) for action in found.machine.membership.tick())


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


def test_the_same_servers_again_are_no_change() -> None:
    for steps in ((STAMPING,), (STAMPING, COPYING), (STAMPING, COPYING, WRITING)):
        assert told(script(CLAIM, *steps), e.MembersSeen((member("a1"), member("b1")))) == []


def test_a_view_that_is_there_again_was_never_gone() -> None:
    found = script(CLAIM, STAMPING)
    view = found.machine.membership.view
    for _ in range(2):
        for _ in range(4):
            assert told(found, e.ViewRead(0, None)) == [e.ReadView()]
        assert told(found, e.ViewRead(5, view)) == []


def test_a_late_answer_does_not_change_the_version_that_is_compared() -> None:
    found = script(CLAIM, STAMPING)
    view = found.machine.membership.view
    assert view is not None
    assert told(found, e.ViewRead(9, view)) == []
    assert told(found, e.ViewRead(3, replace(view, execution=1))) == []
    found.play(SERVERS_CHANGED)
    assert told(found, e.ViewRead(3, replace(view, execution=1))) == []


def test_a_view_that_was_installed_is_not_installed_again() -> None:
    found = script(CLAIM)
    claim = claimed(found)
    found.play(STAMPING)
    done = e.CasDone(5, claim.view)
    assert told(found, done) == []
    found.play(SERVERS_CHANGED)
    assert told(found, done) == []
    assert told(found, e.CasLost(claim.view)) == []
    assert found.machine.membership.standing.value == "moving"


def test_answers_of_another_round_are_not_counted() -> None:
    found = script(CLAIM, STAMPING, "stamped a1 R")
    older = Stamp(1, 1)
    assert told(found, e.Stamped(member("b1"), older, found.records["R"])) == []
    assert told(found, e.Copied(Stamp(1, 2))) == [], "nothing is copied yet"
    assert told(found, e.RecordAck(member("a1"), Stamp(1, 2), 1)) == [], "nor written"
    found.play("stamped b1 R\n-> CopyObjects 1.1.1.5 from a1 b1")
    assert told(found, e.Copied(older)) == []
    assert told(found, e.RecordAck(member("a1"), Stamp(1, 2), 1)) == []
    found.play(WRITING)
    assert told(found, e.Copied(Stamp(1, 2))) == [], "it was copied before"


MOVE_TO_B = """
    propose b1
    -> CasView 5 e2 moving x2 a1 b1 to b1
    cas done
    -> SendStamp a1 e2x2
    -> SendStamp b1 e2x2
    """


def test_who_was_silent_in_an_older_round_is_asked_again() -> None:
    """A former owner may stay silent (rule 13), but only in this very round."""
    found = script(CLAIM, STAMPING, "unreachable a1\n-> Notify StateServerAway", MOVE_TO_B)
    assert told(found, e.Unreachable(member("a1"), Stamp(1, 2))) == []
    found.play("stamped b1 R")
    assert found.machine.membership.standing.value == "stamping", (
        "a1 has neither answered nor failed"
    )
    found.play("stamped a1 R\n-> CopyObjects 1.1.1.5 from a1 b1")


def test_servers_that_change_while_the_view_does_make_yet_another_view() -> None:
    script(CLAIM, STAMPING, SERVERS_CHANGED).play(
        """
        propose a1 d1
        cas done
        -> CasView 6 e3 moving x2 a1 b1 to a1 d1
        """
    )


def test_without_any_former_owner_it_waits() -> None:
    """Two copies: the owners of the last open view may come back."""
    found = script(CLAIM, STAMPING)
    found.play(
        """
        propose c1
        -> CasView 5 e2 moving x2 a1 b1 to c1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp c1 e2x2
        stamped c1 none
        """
    )
    for name in ("a1", "b1"):
        assert not any(
            isinstance(action, e.Stop | e.CopyObjects)
            for action in told(found, e.Unreachable(member(name), Stamp(2, 2)))
        )
    assert found.machine.membership.standing.value == "stamping"


def test_that_nobody_holds_anything_is_told_once() -> None:
    found = script(CLAIM, STAMPING)
    found.tell("propose c1", "cas done", "stamped c1 none", "unreachable a1", "unreachable b1")
    for _ in range(3):
        found.tell("wait 1", "tick", "unreachable a1", "unreachable b1")
    kinds = [action.kind for action in found.actions if isinstance(action, e.Notify)]
    assert kinds.count("StateMissing") == 1


def test_one_member_without_a_record_is_enough_to_stop() -> None:
    """With a single copy nobody else has what it held."""
    for copies, kind in ((2, "failed"), (1, "lost")):
        found = Script(copies=copies).play(RECORD)
        for step in (CLAIM, STAMPING):
            found.play(step)
        found.play(f"stamped a1 R\nstamped b1 none\n-> Stop {kind}")


def test_a_claim_and_a_move_that_are_not_answered_are_looked_up() -> None:
    for steps in ((CLAIM,), (CLAIM, STAMPING, SERVERS_CHANGED)):
        script(*steps).play("wait 1.1\ntick\n-> ReadView")


def test_sinks_that_an_older_execution_has_fenced_show_nothing_yet() -> None:
    found = script(CLAIM, STAMPING, COPYING, WRITING)
    found.play("ack a1\nack b1\n-> Notify DriverRecovered\n-> FenceSinks x2\n-> Plan behind {}")
    told(found, e.SinksFenced(1))
    assert not found.machine.windows.sinks_fenced
    told(found, e.SinksFenced(2))
    assert found.machine.windows.sinks_fenced


# --- where membership and windows meet


TO_A_ALONE = """
    propose a1
    -> CasView 5 e2 moving x2 a1 b1 to a1
    cas done
    -> SendStamp a1 e2x2
    -> SendStamp b1 e2x2
    stamped a1 R
    unreachable b1
    -> CopyObjects 1.1.1.5 from a1
    copied
    -> SendRecord a1 1.2.2.1 sealed 3 published 3
    ack a1
    -> CasView 6 e2 open x2 a1
    """


def test_who_has_left_the_view_is_not_away() -> None:
    found = script(CLAIM, STAMPING, "unreachable b1\n-> Notify StateServerAway", TO_A_ALONE)
    assert found.machine.presence.away
    found.play("cas done\n-> Notify DriverRecovered\n-> FenceSinks x2\n-> Plan behind {}")
    assert not found.machine.presence.away


def test_a_change_that_came_while_the_view_opened_follows_at_once() -> None:
    found = script(CLAIM, STAMPING, "unreachable b1\n-> Notify StateServerAway", TO_A_ALONE)
    found.play(
        """
        propose c1
        cas done
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> CasView 7 e3 moving x2 a1 to c1
        """
    )


def test_what_a_sink_has_shown_counts_while_members_change() -> None:
    found = script(CLAIM)
    held = replace(found.records["R"], published=2, unpublished=(Sealed(3, "d", ()),))
    found.records["R"] = held
    found.play(STAMPING)
    for step in (COPYING, WRITING):
        found.play(step.replace("published 3", "published 2"))
    found.play(
        """
        ack a1
        ack b1
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {}
        fenced
        -> Publish 3
        propose a1 c1
        -> CasView 5 e2 moving x2 a1 b1 to a1 c1
        published 3
        """
    )
    assert found.machine.windows.publishing.confirmed == 3


def test_a_stop_does_not_wait_for_sinks_that_do_not_answer() -> None:
    found = script(CLAIM, STAMPING, COPYING, WRITING)
    found.play(
        """
        ack a1
        ack b1
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {}
        stop
        wait 1.1
        tick
        -> Stop asked
        """
    )


def test_only_a_sink_that_is_further_makes_a_look_at_the_view_mean_something() -> None:
    found = script(CLAIM, STAMPING, COPYING, WRITING)
    found.play("ack a1\nack b1\n-> Notify DriverRecovered\n-> FenceSinks x2\n-> Plan behind {}")
    view = found.machine.membership.view
    assert view is not None
    assert told(found, e.ViewRead(5, view, LOOK_AGAIN)) == []
    assert told(found, e.SinkRefused("further", False, behind=True)) == [e.ReadView(LOOK_AGAIN)]
    assert told(found, e.ViewRead(5, view)) == [], "it may have been read before"
    older = replace(view, execution=1)
    assert told(found, e.ViewRead(5, older, LOOK_AGAIN)) == []
    assert told(found, e.ViewRead(5, view, LOOK_AGAIN)) == [e.Stop("behind", "further")]


def test_a_late_answer_of_a_sink_that_has_shown_windows_since_tells_of_no_older_copy() -> None:
    """The question was asked twice; this driver has published between the two answers."""
    found = script(CLAIM, STAMPING, COPYING, WRITING)
    found.play("ack a1\nack b1\n-> Notify DriverRecovered\n-> FenceSinks x2\n-> Plan behind {}")
    told(found, e.SinksFenced(2))
    assert told(found, e.SinkRefused("further", False, behind=True)) == []


# --- what comes late, early or twice


def test_before_the_start_nothing_is_done() -> None:
    Script().play("propose a1\ntick\nstart\n-> ReadView")


def test_a_proposal_while_a_claim_is_under_way_waits_for_it() -> None:
    script(CLAIM).play("propose a1 c1")


def test_a_record_that_is_acknowledged_when_members_have_changed_opens_nothing() -> None:
    found = script(CLAIM, STAMPING, COPYING, WRITING, SERVERS_CHANGED)
    for name in ("a1", "b1"):
        assert told(found, e.RecordAck(member(name), Stamp(1, 2), 1)) == []
    assert found.machine.membership.standing.value == "moving"


def test_a_view_is_opened_once_however_often_its_record_is_acknowledged() -> None:
    found = script(CLAIM, STAMPING, "unreachable b1\n-> Notify StateServerAway", TO_A_ALONE)
    assert told(found, e.RecordAck(member("a1"), Stamp(2, 2), 1)) == []


def test_before_a_proposal_none_is_followed() -> None:
    """Proposals are numbered from one."""
    claim = CLAIM.replace("propose a1 b1\n", "\n")
    found = script(claim, STAMPING, COPYING, WRITING)
    found.tell("ack a1", "ack b1")
    assert found.machine.membership.standing is Standing.RECOVERED
    assert found.machine.membership.followed() == 0


def test_a_proposal_is_followed_once_no_change_can_come_of_an_earlier_one() -> None:
    found = script(CLAIM, STAMPING, COPYING, WRITING)
    follows = found.machine.membership.followed
    same = (member("a1"), member("b1"))
    found.machine.handle(e.MembersSeen(same, 7), found.now_s)
    assert follows() is None
    writes = [action for action in found.actions if isinstance(action, e.SendRecord)]
    for write in writes:
        assert follows() is None
        told(found, e.RecordAck(write.member, write.stamp, write.record.tag.seq))
    assert found.machine.membership.standing is Standing.RECOVERED
    assert follows() == 7
    other = (member("a1"), member("c1"))
    moves = told(found, e.MembersSeen(other, 8))
    assert follows() == (None if any(isinstance(a, e.CasView) for a in moves) else 8)


def test_a_restore_that_is_not_done_is_no_beginning():
    """Only whoever restores knows the record of its timeline (rule 17)."""
    found = Script()
    found.play("propose a1 b1\nstart\n-> ReadView")
    members = (member("a1"), member("b1"))
    owners = (("a", "b"),)
    begun = View("topo", 2, 3, Phase.CREATING, 4, members, members, 3, owners)  # type: ignore[arg-type]
    (stop,) = told(found, e.ViewRead(7, begun))
    assert isinstance(stop, e.Stop)
    assert stop.kind is e.StopKind.FAILED
    assert "a restore of this topology was begun" in stop.text
